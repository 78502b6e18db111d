"""Sign contents of files with a key that only this user can read, and recognize them later.

The key is 32 random bytes in `$XDG_STATE_HOME/marlflow/key`, made when it is first needed.
"""

from __future__ import annotations

import hmac
import os
import secrets
from contextlib import suppress
from pathlib import Path

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
            with open(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
            with suppress(FileExistsError):
                os.link(draft, path)
            draft.unlink()
        if len(key := path.read_bytes()) == _KEY_BYTES:
            return key
    return None
