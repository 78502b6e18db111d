"""`marlflow resume`: goes on with a run from its last checkpoint, in its own directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import split
from marlflow.cli.job import prepared
from marlflow.cli.train import hand_to_hydra, outcome, quoted, recorded

_USAGE = "marlflow resume <run directory> [key=value ...]"


def run_resume(words: list[str]) -> int:
    """Goes on; returns 0. Raises InvalidInput before anything is touched, any other MarlflowError from the run."""
    found = split(words, "resume", hydra=False)
    run_dir, new = _run_dir(found.overrides)
    overrides, config_dirs = _recorded(run_dir)
    found.overrides = _replaced(overrides, new)
    found.config_dirs = [*config_dirs, *found.config_dirs]
    ready = prepared(found)
    _check(ready.config, ready.problems, run_dir)
    flags = [word for folder in found.config_dirs for word in ("--config-dir", folder)]

    def job(config: DictConfig) -> float | None:
        from marlflow.experiment.schema import from_config
        from marlflow.experiment.train import resume

        return outcome(lambda: resume(from_config(config), run_dir, files=recorded(config)))

    folder = quoted(str(run_dir).replace("${", "\\${"))
    hand_to_hydra([*flags, *ready.overrides, f"hydra.run.dir={folder}"], job)
    return 0


def _run_dir(words: Sequence[str]) -> tuple[Path, list[str]]:
    if not words or ("=" in words[0] and not Path(words[0]).exists()):
        raise ConfigInvalid([f"resume needs the directory of a run first: {_USAGE}"])
    run_dir = Path(words[0]).resolve()
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {words[0]}; resume needs that of a run: {_USAGE}"])
    return run_dir, list(words[1:])


def _recorded(run_dir: Path) -> tuple[list[str], list[str]]:
    """The overrides and the folders of configuration groups that the run was started with."""
    recorded = run_dir / ".hydra"
    if not (recorded / "overrides.yaml").is_file():
        raise ConfigInvalid(
            [
                f"{run_dir} has no .hydra/overrides.yaml, which `marlflow train` leaves{_near(run_dir)}; a run that "
                "was started from Python goes on with marlflow.resume(experiment, run_dir)"
            ]
        )
    overrides = _loaded(recorded / "overrides.yaml", "")
    sources = _loaded(recorded / "hydra.yaml", "hydra.runtime.config_sources")
    dirs = [source.path for source in sources if source.provider == "command-line" and source["schema"] == "file"]
    return [str(override) for override in overrides], dirs


def _near(folder: Path) -> str:
    """The run that was probably meant: one that the folder is in, or the newest in it."""
    inside = sorted(folder.glob("*/.hydra"), key=lambda recorded: recorded.stat().st_mtime)
    around = [part / ".hydra" for part in folder.parents if (part / ".hydra").is_dir()]
    found = [*around[:1], *reversed(inside)]
    return f" (did you mean {found[0].parent}?)" if found else ""


def _loaded(path: Path, key: str) -> Any:
    """The list at `key` of a file that Hydra wrote, or the list that it is."""
    try:
        found = OmegaConf.load(path)
        if isinstance(part := OmegaConf.select(found, key) if key else found, ListConfig):
            return part
        reason = f"there is no list at {key}" if key else "it is no list"
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        reason = " ".join(str(error).split())
    raise ConfigInvalid([f"{path} cannot be read: {reason}; put it back as `marlflow train` left it"])


def _replaced(old: Sequence[str], new: Sequence[str]) -> list[str]:
    """The old overrides, but those that the new ones give another value."""
    renewed = {_key(override) for override in new}
    return [*(override for override in old if _key(override) not in renewed), *new]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]


def _check(config: DictConfig, problems: Sequence[str], run_dir: Path) -> None:
    """The checks of a run, and whether it can go on from what is kept there, before anything in it is touched."""
    from marlflow.experiment.keeping import check_identity, newest
    from marlflow.experiment.schema import read
    from marlflow.experiment.train import check, machines_of

    found = list(problems)
    experiment = read(config, found)
    check_identity(newest(run_dir), check(experiment, found, machines_of(experiment)))
