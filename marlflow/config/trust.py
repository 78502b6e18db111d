"""Trust in a run's folder: is its configuration this user's own, or may it name foreign code?

A configuration names classes, which are imported, so a run's folder is code. `marlflow train` signs it with a key that
only this user can read; commands that import what a run names accept this signature.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import yaml

from marlflow.base.errors import ConfigInvalid
from marlflow.config.comments import CONF

SIGNATURE: Final = ".hydra/signature"
SIGNED: Final = (".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml")
_KEY_BYTES = 32
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_RECORDED = "marlflow.offline.environment.recorded_environment"
# Gymnasium imports the module of an environment's id, `module:name` or `module:namespace/name`.
_GYMNASIUM_ID = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:([\w:-]+/)?[\w:.-]+")


def signed(contents: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a configuration with their signature, if this user can have a key."""
    key = _key()
    return dict(contents) if key is None else {**contents, SIGNATURE: _signature(key, contents)}


def is_own(run_dir: Path) -> bool:
    """Return whether the configuration in a run's folder has this user's signature, and so is unchanged."""
    try:
        contents = {name: (run_dir / name).read_text(encoding="utf-8") for name in SIGNED}
        signature = (run_dir / SIGNATURE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    key = _key()
    return key is not None and hmac.compare_digest(_signature(key, contents), signature)


def signature_of(text: str) -> str | None:
    """Return this user's signature of a text, None if there is no place for a key."""
    key = _key()
    return None if key is None else hmac.new(key, text.encode(), "sha256").hexdigest()


def is_signed(text: str, signature: object) -> bool:
    """Return whether a signature is this user's for the text."""
    own = signature_of(text)
    return own is not None and isinstance(signature, str) and hmac.compare_digest(own, signature)


def _signature(key: bytes, contents: Mapping[str, str]) -> str:
    digests = [hashlib.sha256(contents[name].encode()).digest() for name in SIGNED]
    return hmac.new(key, b"".join(digests), "sha256").hexdigest()


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


def names_outside(config: Any) -> set[str]:
    """Return the names that a configuration may import and that marlflow's own conf does not have; import nothing.

    Records that it names may have names, too: those of the environment that was recorded.
    """
    plain = _as_plain(config)
    # A `_target_` is a name wherever it is; other text if it looks like an import path of a module that exists.
    named = {
        text
        for key, text in _texts([plain, *_recorded_environments(plain)])
        if key == "_target_" or (_is_import_path(text) and _is_there(text))
    }
    return {text for text in named - _own_names() if not text.startswith(("marlflow.", "hydra._internal."))}


def _recorded_environments(config: Any) -> Iterator[Any]:
    """Yield, as configurations, how the environments are made in whose records offline runs learn."""
    if isinstance(config, Mapping):
        folder = config.get("folder")
        if config.get("_target_") == _RECORDED and isinstance(folder, str):
            # An interpolation may lead to any folder, so it needs trust itself.
            yield {"_target_": folder} if "${" in folder else _recorded_environment(Path(folder))
        config = list(config.values())
    if isinstance(config, list | tuple):
        for value in config:
            yield from _recorded_environments(value)


def _recorded_environment(folder: Path) -> Any:
    # Imported late: most runs have no records.
    from marlflow.offline.manifest import read_manifest

    try:
        environment = read_manifest(folder).environment
    except ConfigInvalid:  # no environment can be made from it
        return None
    wrappers = [{"_target_": name, **arguments} for name, arguments in environment.wrappers]
    return {"_target_": environment.factory, "arguments": dict(environment.arguments), "wrappers": wrappers}


def _as_plain(config: Any) -> Any:
    if isinstance(config, dict | list):
        return config
    # Imported late: a run is loaded without it.
    from omegaconf import OmegaConf

    return OmegaConf.to_container(config, resolve=False)


def _is_import_path(text: str) -> bool:
    return (_IMPORT_PATH.fullmatch(text) or _GYMNASIUM_ID.fullmatch(text)) is not None


def _is_there(text: str) -> bool:
    try:
        return find_spec(re.split("[.:]", text)[0]) is not None
    except ValueError:  # a module without a spec, as __main__ is
        return True


def _texts(values: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(values, str):
        yield key, values
    elif isinstance(values, Mapping):
        for name, value in values.items():
            yield from _texts(value, str(name))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _texts(value, key)


@functools.cache
def _own_names() -> frozenset[str]:
    texts = {"hydra.conf"}
    for package in (CONF, "hydra.conf"):
        with suppress(ImportError):
            for path in _yaml_files(files(package)):
                with suppress(yaml.YAMLError):
                    texts.update(text for _, text in _texts(yaml.safe_load(path.read_text(encoding="utf-8"))))
    return frozenset(texts)


def _yaml_files(folder: Any) -> Iterator[Any]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _yaml_files(entry)
        elif entry.name.endswith(".yaml"):
            yield entry
