"""From arguments to a composed configuration, which may need --trust, and from a result to its objective."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import Words
from marlflow.config.compose import composing
from marlflow.config.folders import quoted
from marlflow.config.overrides import Prepared, prepare
from marlflow.config.placement import cluster_address
from marlflow.config.schema import plain_values
from marlflow.config.target_nodes import TARGET
from marlflow.config.trust import RECORDED, UNSIGNED, names, refusal, signed, untrusted, untrusted_records
from marlflow.observe.first_lines import first_lines
from marlflow.runtime.forked import template

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment
    from marlflow.driver.train import Result


ALL_OUTPUT = "--all-output"
"""The flag of commands that try an environment; without it, they show some of what it prints."""
_LINES = 20


def prepared(words: Words) -> Prepared:
    """Return the overrides in Hydra's form and the first job's configuration; raises ConfigInvalid."""
    searchpath = [f"file://{Path(folder).resolve()}" for folder in words.config_dirs]
    with composing():
        return prepare(words.overrides, searchpath, words.multirun)


def inline_by_default(overrides: Sequence[str]) -> list[str]:
    """Return the overrides of a job that runs in one process, unless they choose a runtime."""
    named = any(override.lstrip("+").partition("=")[0] == "runtime" for override in overrides)
    return [*overrides, *([] if named else ["runtime=inline"])]


def output_shown(words: Words) -> AbstractContextManager[None]:
    """Redirect what an environment prints to standard error, all of it or the first lines."""
    return first_lines(sys.maxsize if ALL_OUTPUT in words.own_flags else _LINES)


def recorded(config: DictConfig) -> dict[str, str]:
    """Return a run's configuration files, as Hydra would write them, with this user's signature."""
    # Hydra itself would write them before the run is checked, over an existing run's files.
    hydra_config: Any = HydraConfig.instance().cfg
    files = {"config": config, "hydra": hydra_config, "overrides": hydra_config.hydra.overrides.task}
    return signed({f".hydra/{name}.yaml": OmegaConf.to_yaml(content) for name, content in files.items()})


def discard_unless_used(checked: CheckedExperiment, several: bool = False) -> None:
    """End the template of workers that `main` began, unless this process starts a private Ray next."""
    runtime = checked.experiment.runtime
    if several or runtime.name == "inline" or cluster_address(runtime) is not None:
        template.discard()


def outcome(result: Result) -> float | None:
    """Return a run's objective, for sweepers; raises KeyboardInterrupt or Terminated if a signal ended it."""
    from marlflow.driver.graceful_shutdown import REASONS

    if result.stopped_by in REASONS:  # the run ended in order, but an interrupted sweep runs no further job
        raise REASONS[result.stopped_by]
    return result.objective


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
    untrusted = [quoted(name) for name in names(untrusted_records(Path(str(folder))))]
    if not untrusted:
        return ready
    # As an override, so that the run's own configuration has it.
    words.overrides = [*words.overrides, f"env.trust=[{','.join(untrusted)}]"]
    return prepared(words)
