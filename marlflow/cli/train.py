"""`marlflow train`: check everything, then run the job, or with `-m` have Hydra run several."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from marlflow.base.errors import ConfigInvalid
from marlflow.base.links import link_problems
from marlflow.cli.arguments import split
from marlflow.cli.job import TRUST, discard_unless_used, outcome, prepared, recorded, with_trusted_records
from marlflow.cli.sweep import Sweep, direction_of, extra_problems, sweep_problems
from marlflow.config.comments import explained
from marlflow.config.compose import hand_to_hydra, run_job
from marlflow.config.folders import quoted
from marlflow.config.overrides import Prepared

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment

_TIME = re.compile(r"\$\{now:([^}]*)\}")


def run_train(words: list[str]) -> int:
    """Train; return 0, or a sweep's exit code.

    Raises ConfigInvalid before anything starts, and any other MarlflowError of the run.
    """
    parsed = split(words, "train", own=[TRUST])
    if missing := list(extra_problems(parsed.overrides)):
        raise ConfigInvalid(missing)
    ready = with_trusted_records(parsed, prepared(parsed))
    config = ready.config
    if parsed.only_shows:
        if ready.problems:
            raise ConfigInvalid(ready.problems)
        _show([*parsed.hydra_flags, *ready.overrides], config if parsed.shows_configuration else None)
        return 0
    several = parsed.multirun or config.hydra.mode is RunMode.MULTIRUN
    problems = [*ready.problems, *_unused_folders(parsed.overrides, several)]
    # Only the first job can be checked here; Hydra composes the others when they start.
    checked = check_run(ready, [*problems, *(sweep_problems(ready) if several else ())], several)
    folder = new_folder_of(config, several)
    discard_unless_used(checked, several)
    if several:
        named = [] if folder is None else [f"{_folder_key(several)}={quoted(folder)}"]
        target = sweep_folder(config, folder)
        sweep = Sweep(parsed.overrides, parsed.config_dirs, config, ready.fixed, target, direction_of(config))
        return sweep.run([*parsed.hydra_flags, *ready.overrides, *named])
    from marlflow.driver.train import train_checked

    run_job(config, folder, lambda job: outcome(train_checked(checked, _run_dir(), files=recorded(job))))
    return 0


def _show(words: Sequence[str], config: DictConfig | None) -> None:
    output = io.StringIO()
    # Hydra prints; a configuration gets its comments afterwards.
    with redirect_stdout(output):
        hand_to_hydra(words, lambda _: None)
    print(output.getvalue() if config is None else explained(output.getvalue(), _as_written(config)), end="")


def _as_written(config: DictConfig) -> Any:
    # Unresolved: interpolations are shown as written.
    return OmegaConf.to_container(config)


def check_run(ready: Prepared, problems: Sequence[str], several: bool) -> CheckedExperiment:
    """Check a run before its folder is made; in a sweep, the first job."""
    from marlflow.checks.commands import check, machines_of
    from marlflow.config.folders import existing_run_problems, folder_problems
    from marlflow.config.schema import read

    config, all_problems = ready.config, list(problems)
    experiment = read(config, all_problems)
    if not all_problems:  # else it may be made of what is wrong
        folder = Path(OmegaConf.select(config, _folder_key(several)))
        all_problems += [*folder_problems("the folder of the run", folder), *link_problems(folder)]
        if not all_problems and _TIME.search(_folder_template(config, several)) is None:
            all_problems += existing_run_problems(folder / _first_job(config) if several else folder)
    # Slurm's jobs run on other machines than this one.
    elsewhere = several and str(config.hydra.launcher._target_).endswith("SlurmLauncher")
    return check(experiment, all_problems, None if elsewhere else machines_of(experiment))


def _folder_key(several: bool) -> str:
    return "hydra.sweep.dir" if several else "hydra.run.dir"


def _folder_template(config: DictConfig, several: bool) -> str:
    """Return the folder of the run, or of a sweep, with its interpolations `${...}`."""
    section = OmegaConf.to_container(config.hydra.sweep if several else config.hydra.run, resolve=False)
    assert isinstance(section, dict)
    return str(section["dir"])


def _first_job(config: DictConfig) -> str:
    try:
        return str(OmegaConf.select(_with_value(config, "hydra.job.num", 0), "hydra.sweep.subdir"))
    except OmegaConfBaseException:
        return ""  # each job looks again before it begins


def _with_value(config: DictConfig, key: str, value: str | int) -> DictConfig:
    changed = OmegaConf.create(OmegaConf.to_container(config, resolve=False))  # Hydra's own is read-only
    assert isinstance(changed, DictConfig)
    OmegaConf.update(changed, key, value, force_add=True)
    return changed


def new_folder_of(config: DictConfig, several: bool) -> str | None:
    """Make a new folder where it is named by the time, and return its name for Hydra; else None."""
    from marlflow.config.folders import new_folder

    # Runs that start in the same second, such as a Slurm array's, would share a folder otherwise.
    key, template = _folder_key(several), _folder_template(config, several)
    if _TIME.search(template) is None:
        return None
    now = time.localtime()
    template = _TIME.sub(lambda match: time.strftime(match[1], now), template)
    folder = Path(OmegaConf.select(_with_value(config, key, template), key))
    return template + new_folder(folder).name.removeprefix(folder.name)


def sweep_folder(config: DictConfig, template: str | None) -> Path:
    """Return the folder of a sweep; `template` is what `new_folder_of` returned."""
    key = _folder_key(several=True)
    return Path(OmegaConf.select(config if template is None else _with_value(config, key, template), key)).absolute()


def _unused_folders(overrides: Sequence[str], several: bool) -> Iterator[str]:
    """Yield the folders that Hydra would ignore: a single run's in a sweep, and the reverse."""
    for override in overrides:
        key, _, value = override.lstrip("+~").partition("=")
        if several and key == "hydra.run.dir":
            yield (
                f"{override} is the folder of a single run; with -m write hydra.sweep.dir={value}, which has a folder "
                "for each job, by its number or as hydra.sweep.subdir says"
            )
        elif not several and key in ("hydra.sweep.dir", "hydra.sweep.subdir"):
            yield f"{override} is for several jobs, and there is no -m; write hydra.run.dir=<folder>"


def _run_dir() -> Path:
    return Path(HydraConfig.get().runtime.output_dir)
