"""Trust in a run's folder: is its configuration this user's own, or may it name foreign code?

A configuration names classes, which are imported, so a run's folder is code, and so is a folder of records. Both are
signed with a key that only this user can read; commands that import what they name accept this signature. Any other
configuration may name the parts of `shipped_parts`, each in its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import is_signed, signature_of
from marlflow.config.shipped_parts import ENVIRONMENT, EXPERIMENT, Allowed
from marlflow.config.target_nodes import IMPORT_PATH, TARGET, UNSET

SIGNATURE: Final = ".hydra/signature"
SIGNED: Final = (".hydra/config.yaml", ".hydra/hydra.yaml", ".hydra/overrides.yaml")
RECORDED: Final = "marlflow.offline.environment.recorded_environment"
_MOST_SHOWN, _LONGEST = 5, 150
UNSIGNED: Final = "was not written by this user on this machine, or was changed since, and it"


def signed(contents: Mapping[str, str]) -> dict[str, str]:
    """Return the files of a configuration with their signature, if this user can have a key."""
    signature = signature_of(_signed_content(contents))
    return dict(contents) if signature is None else {**contents, SIGNATURE: signature}


def is_own(run_dir: Path) -> bool:
    """Return whether the configuration in a run's folder has this user's signature, and so is unchanged."""
    try:
        contents = {name: (run_dir / name).read_text(encoding="utf-8") for name in SIGNED}
        signature = (run_dir / SIGNATURE).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return is_signed(_signed_content(contents), signature)


def _signed_content(contents: Mapping[str, str]) -> bytes:
    return b"".join(hashlib.sha256(contents[name].encode()).digest() for name in SIGNED)


@dataclass(frozen=True, slots=True)
class Untrusted:
    """A text of a configuration, and its place, that only a user who trusts the configuration may let in."""

    path: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{'.'.join(self.path).replace('.[', '[')}={self.text!r}"

    @property
    def is_code(self) -> bool:
        """Whether it is imported, and so no path, address or id."""
        return self.path[-1] == TARGET or IMPORT_PATH.fullmatch(self.text) is not None


def untrusted(
    config: Mapping[str, Any], trust: Collection[str] | None = (), place: Allowed = EXPERIMENT
) -> list[Untrusted]:
    """Return the texts of a resolved configuration that need trust and are not in `trust` (None: any); import nothing.

    Those of the manifest of the records that it plays are among them, unless this user signed it.
    """
    if trust is None:
        return []
    found, env = list(_found(config, place, ())), config.get("env")
    if isinstance(env, Mapping) and env.get(TARGET) == RECORDED and isinstance(folder := env.get("folder"), str):
        found += untrusted_records(Path(folder))
    return [one for one in found if one.text not in trust]


def untrusted_records(folder: Path, trust: Collection[str] = ()) -> list[Untrusted]:
    """Return what needs trust, beyond `trust`, in the manifest of a folder of records; nothing if it is unreadable."""
    # Imported late: most runs have no records.
    from marlflow.offline.manifest import NAME, read_manifest

    try:
        manifest = read_manifest(folder)
    except ConfigInvalid:  # no environment can be made from it
        return []
    if manifest.is_own or manifest.environment.unknown:
        return []
    made, place = manifest.environment, (str(folder / NAME), "environment")
    wrappers = [{**arguments, TARGET: name} for name, arguments in made.wrappers]
    found = [
        *_found({**made.arguments, TARGET: made.factory}, ENVIRONMENT, place),
        *_found({"wrappers": wrappers}, ENVIRONMENT, place),
    ]
    return [one for one in found if one.text not in trust]


def _found(value: Any, place: Allowed, path: tuple[str, ...]) -> Iterator[Untrusted]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key != TARGET:
                yield from _found(entry, place.below(value, str(key)), (*path, str(key)))
            elif isinstance(entry, str) and entry not in place.parts and entry != UNSET:
                yield Untrusted((*path, TARGET), entry)
    elif isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _found(entry, place, (*path, f"[{number}]"))
    # YAML has paths and bytes, too, which open files as texts do.
    elif not isinstance(value, bool | int | float | None) and value != UNSET and not place.text.fullmatch(str(value)):
        yield Untrusted(path, str(value))


def names(found: Sequence[Untrusted]) -> list[str]:
    """Return what `trust` has to list."""
    return sorted({one.text for one in found})


def listed(found: Sequence[Untrusted], quote: str = "") -> str:
    """Return the list that `trust` is to be, for a message."""
    return f"[{_shown([f'{quote}{name}{quote}' for name in names(found)])}]"


def refusal(subject: str, found: Sequence[object], remedy: str) -> str:
    """Return the sentence that refuses a configuration, which `subject` names, for what was found in it."""
    return (
        f"{subject} names what is none of marlflow's parts for its place, and may run code, or connect or write "
        f"elsewhere: {_shown([str(one) for one in found])}; look at it, and if you trust it {remedy}"
    )


def _shown(texts: Sequence[str]) -> str:
    # A stranger wrote them: they may be long, and have signs that control the terminal.
    shown = [text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..." for text in texts[:_MOST_SHOWN]]
    shown += [f"and {len(texts) - _MOST_SHOWN} more"] if len(texts) > _MOST_SHOWN else []
    return ", ".join(text if text.isprintable() else repr(text) for text in shown)
