"""`marlflow resume`: continue a run from its last checkpoint, in its own directory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import Words, key_of, split
from marlflow.cli.job import (
    TRUST,
    check_names,
    check_overrides,
    discard_unless_used,
    outcome,
    prepared,
    recorded,
    with_trusted_records,
)
from marlflow.cli.run_folder import suggestion
from marlflow.config.compose import run_job
from marlflow.config.folders import check_resumed
from marlflow.config.overrides import Prepared
from marlflow.config.recorded import check_modules, working_in
from marlflow.config.schema import plain_values
from marlflow.config.trust import is_own, untrusted
from marlflow.runs.saved_runs import check_marks

_NAMED = ("command-line", "hydra.searchpath in command-line")
"""Hydra's message about folders of configuration groups that --config-dir, or hydra.searchpath=[...], named."""
_USAGE = "marlflow resume <run directory> [key=value ...] [--trust]"


def run_resume(words: list[str]) -> int:
    """Continue the run; return 0. Raises InvalidInput before any file is changed, and the run's MarlflowErrors."""
    parsed = split(words, "resume", own=(TRUST,), hydra=False)
    run_dir, new = _run_dir(parsed.overrides)
    is_trusted = TRUST in parsed.own_flags or is_own(run_dir)
    with recomposed(run_dir, new, parsed, is_trusted) as ready:
        if outside := sorted({one.text for one in untrusted(plain_values(ready.config)) if one.is_code}):
            print(f"importing {', '.join(outside)}")
        _resume(ready.config, ready.problems, run_dir)
    return 0


@contextmanager
def recomposed(run_dir: Path, new: Sequence[str], parsed: Words, is_trusted: bool) -> Iterator[Prepared]:
    """Compose a run's configuration again, with `new` overrides, and work in the folder that it was started in.

    Raises ConfigInvalid if it cannot be composed, or names code that is not trusted.
    """
    overrides, config_dirs, started_in = _read_hydra_files(run_dir)
    if not is_trusted:
        check_overrides(run_dir, overrides)
    parsed.overrides = _merge_overrides(overrides, new)
    parsed.config_dirs = [*config_dirs, *(str(Path(folder).resolve()) for folder in parsed.config_dirs)]
    # Modules of an untrusted folder could shadow installed ones.
    with working_in(started_in) if is_trusted else nullcontext():
        ready = with_trusted_records(parsed, prepared(parsed))
        if not is_trusted:
            check_names(run_dir, ready, new)
        check_modules(OmegaConf.to_container(ready.config, resolve=False), started_in)
        yield ready


def _run_dir(words: Sequence[str]) -> tuple[Path, list[str]]:
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        raise ConfigInvalid([f"resume needs the directory of a run first: {_USAGE}"])
    run_dir = Path(words[0]).resolve()
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {words[0]}; resume needs that of a run: {_USAGE}"])
    check_marks(run_dir, words[0])
    check_resumed(run_dir)
    return run_dir, list(words[1:])


def _read_hydra_files(run_dir: Path) -> tuple[list[str], list[str], Path]:
    """Return the run's overrides, folders of configuration groups, and the folder in which it was started."""
    recorded = run_dir / ".hydra"
    if not (recorded / "overrides.yaml").is_file():
        raise ConfigInvalid(
            [
                f"{run_dir} has no .hydra/overrides.yaml, which `marlflow train` leaves{suggestion(run_dir)}; "
                "a run that was started from Python continues with marlflow.resume(experiment, run_dir)"
            ]
        )
    # Interpolations in overrides refer to the configuration, not to this list.
    overrides: Any = OmegaConf.to_container(_load(recorded / "overrides.yaml", ""), resolve=False)
    sources = _load(recorded / "hydra.yaml", "hydra.runtime.config_sources")
    dirs = [source.path for source in sources if source.provider in _NAMED and source["schema"] == "file"]
    started_in = Path(_load(recorded / "hydra.yaml", "hydra.runtime.cwd", str))
    return [str(override) for override in overrides], dirs, started_in


def _load(path: Path, key: str, kind: type = ListConfig) -> Any:
    """Return a value of the run's configuration, without a `key` all of it; raises ConfigInvalid for another kind."""
    try:
        content = OmegaConf.load(path)
        if isinstance(part := OmegaConf.select(content, key) if key else content, kind):
            return part
        expected = "list" if kind is ListConfig else "text"
        reason = f"there is no {expected} at {key}" if key else f"it is no {expected}"
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
    raise ConfigInvalid([f"{path} cannot be read: {reason}; put it back as `marlflow train` left it"])


def _merge_overrides(old: Sequence[str], new: Sequence[str]) -> list[str]:
    renewed = {key_of(override) for override in new}
    return [*(override for override in old if key_of(override) not in renewed), *new]


def _resume(config: DictConfig, problems: Iterable[str], run_dir: Path) -> None:
    from marlflow.checks.commands import check, machines_of
    from marlflow.config.schema import read
    from marlflow.driver.checkpointing import check_identity
    from marlflow.driver.other_runs import with_saved_members
    from marlflow.driver.train import resume_checked
    from marlflow.runs.saved_runs import newest

    problems = list(problems)
    experiment = read(config, problems)
    if experiment is not None:
        experiment = with_saved_members(experiment, run_dir)
    checked = check(experiment, problems, machines_of(experiment))
    # Before run_job, which writes files.
    check_identity(newest(run_dir), checked)
    discard_unless_used(checked)
    # Hydra would resolve an interpolation in the path.
    folder = str(run_dir).replace("${", "\\${")
    run_job(config, folder, lambda job: outcome(resume_checked(checked, run_dir, files=recorded(job))))
