"""File names for user-chosen names, files that are new and whole or not there, and signatures of contents.

Contents are signed with a key that only this user can read, to recognize them later. The key is 32 random bytes in
`$XDG_STATE_HOME/marlflow/key`, made when it is first needed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import string
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LONGEST = 255
_PLAIN = frozenset(string.ascii_lowercase + string.digits + "_-~")


def file_name(name: str, suffix: str = "", plain: str = "") -> str:
    """Encode `name`, any text, as a file name that ends in `suffix`.

    Distinct names stay distinct, also on case-insensitive file systems. No result is in another folder.

    >>> file_name("prey"), file_name("Prey"), file_name("manifest.json")
    ('prey', '%50rey', 'manifest%2Ejson')
    """
    # The empty name becomes a lone %, which no other name gives.
    quoted = "".join(char if char in _PLAIN or char in plain else _encoded(char) for char in name) or "%"
    if len(quoted) + len(suffix) > _LONGEST:
        # File systems limit names to 255 bytes; the hash keeps shortened ones distinct.
        digest = hashlib.sha256(quoted.encode()).hexdigest()
        quoted = f"{quoted[: _LONGEST - len(suffix) - len(digest) - 1]}-{digest}"
    return quoted + suffix


def _encoded(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))


def description_of(file: Path) -> Path:
    """Return where the description of a film or an exported policy is.

    >>> str(description_of(Path("carts.mp4")))
    'carts.mp4.json'
    """
    return file.with_name(f"{file.name}.json")


def write_new(path: Path, data: bytes) -> None:
    """Write a file; raises FileExistsError if there is one, and OSError without leaving a part of it."""
    file = path.open("xb")
    try:
        with file:
            file.write(data)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def cache_folder(topic: str) -> Path:
    """Return this user's folder of files about `topic` that can be made again; raises RuntimeError without a home."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marlflow" / topic


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path to write to; its file then replaces the one at `path`, which stays after an exception."""
    aside = path.with_name(f".{path.name}.part")
    try:
        yield aside
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


_KEY_BYTES = 32


def signature_of(content: bytes) -> str | None:
    """Return this user's signature, None if there is no place for a key."""
    key = _key()
    return None if key is None else hmac.new(key, content, "sha256").hexdigest()


def is_signed(content: bytes, signature: object) -> bool:
    """Return whether a signature is this user's for the content."""
    own = signature_of(content)
    if own is None or not isinstance(signature, str):
        return False
    return hmac.compare_digest(own.encode(), signature.encode(errors="replace"))


def _key() -> bytes | None:
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    path = state / "marlflow" / "key"
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Linked once complete, because another process may be making one too.
        draft = path.with_name(f"key.{secrets.token_hex(8)}")
        if not path.exists():
            try:
                with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(_KEY_BYTES))
                try:
                    os.link(draft, path)
                except FileExistsError:
                    pass
                except OSError:  # this file system has no hard links
                    os.rename(draft, path)
            finally:
                draft.unlink(missing_ok=True)
        if len(key := path.read_bytes()) == _KEY_BYTES:
            return key
    return None
