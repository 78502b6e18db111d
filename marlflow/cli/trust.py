"""The option --trust: without it, another user's run or records may name only marlflow's own parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import Words
from marlflow.cli.job import prepared
from marlflow.config.overrides import Prepared
from marlflow.config.schema import plain_values
from marlflow.config.target_nodes import TARGET
from marlflow.config.trust import RECORDED, UNSIGNED, names, refusal, untrusted, untrusted_records

TRUST: Final = "--trust"
_ADD_IT: Final = f"add {TRUST}"
_HYDRA_KEY = re.compile(r"[+~\s]*([^=]*@)?(_global_\.)?hydra\b")
# Keys of Hydra's node that differ between any two compositions, and name nothing that is imported or written to.
_OF_A_COMPOSITION = ("overrides", "runtime", "job.override_dirname")


def check_overrides(run_dir: Path, overrides: Sequence[str]) -> None:
    """Raise ConfigInvalid if an override configures Hydra itself."""
    if found := [override for override in overrides if _HYDRA_KEY.match(override)]:
        raise ConfigInvalid([refusal(f"{run_dir} {UNSIGNED}", found, _ADD_IT)])


def check_names(run_dir: Path, ready: Prepared, new: Sequence[str]) -> None:
    """Raise ConfigInvalid with all that a composed configuration may not name without trust.

    `new` are overrides of this user's own, which may configure Hydra.
    """
    theirs: Any = OmegaConf.to_container(ready.config, resolve=False)
    without_them = prepared(Words([word for word in new if _HYDRA_KEY.match(word)]))
    shipped: Any = OmegaConf.to_container(without_them.config, resolve=False)
    found: list[object] = []
    if _comparable(theirs.pop("hydra")) != _comparable(shipped.pop("hydra")):
        found.append("other settings of Hydra")
    # A resolver reads this user's variables, and may be a package's own.
    known = set(_texts(shipped))
    found += [text for text in _texts(theirs) if "${" in text and ":" in text and text not in known]
    if found := found or [*untrusted(plain_values(ready.config))]:
        raise ConfigInvalid([refusal(f"{run_dir} {UNSIGNED}", found, _ADD_IT)])


def _comparable(hydra: Any) -> Any:
    node = OmegaConf.create(hydra)
    for key in _OF_A_COMPOSITION:
        OmegaConf.update(node, key, None)
    return OmegaConf.to_container(node, resolve=False)


def _texts(values: Any) -> list[str]:
    if isinstance(values, dict):
        values = list(values.values())
    if isinstance(values, list):
        return [text for value in values for text in _texts(value)]
    return [values] if isinstance(values, str) else []


def with_trusted_records(words: Words, ready: Prepared) -> Prepared:
    """Return a configuration which trusts what its records name, if it learns from any and `--trust` is given."""
    if TRUST not in words.own_flags or OmegaConf.select(ready.config, f"env.{TARGET}") != RECORDED:
        return ready
    folder = OmegaConf.select(ready.config, "env.folder", throw_on_resolution_failure=False)
    quoted = ["'" + name.replace("'", "\\'") + "'" for name in names(untrusted_records(Path(str(folder))))]
    if not quoted:
        return ready
    # As an override, so that the run's own configuration has it.
    words.overrides = [*words.overrides, f"env.trust=[{','.join(quoted)}]"]
    return prepared(words)
