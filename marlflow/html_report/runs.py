"""The runs of a report: find their folders, and read what they wrote. Nothing in them is imported or unpickled."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.links import check_links
from marlflow.base.public_names import with_current_names
from marlflow.observe.sinks import METRICS, read_metrics
from marlflow.runs.run_state import UNKNOWN, RunState, run_state
from marlflow.runs.saved_runs import EXPERIMENT

Config: TypeAlias = Mapping[str, Any]

PLAN = "plan.mmd"
_TOO_LARGE = 1e300
_HYDRA_CONFIG = Path(".hydra", "config.yaml")
# Each of these files shows that a folder belongs to a run.
_MARKS = (METRICS, EXPERIMENT, "checkpoints")


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run as it is on disk.

    `config` is the whole configuration, empty if it was not recorded; `reports` are the lines of its metrics.jsonl, at
    least one; `plan` is the Mermaid text of its plan, or empty; `state` says how far it is, and why it ended.
    `problem` says why its configuration does not come from experiment.json, if that file is damaged.
    """

    folder: Path
    config: Config
    reports: Sequence[Mapping[str, Any]]
    plan: str = ""
    state: RunState = UNKNOWN
    problem: str = ""

    @property
    def last(self) -> Mapping[str, Any]:
        """The last report."""
        return self.reports[-1]

    @property
    def seed(self) -> int | None:
        """The seed, if it is known."""
        seed = self.config.get("seed")
        return seed if isinstance(seed, int) and not isinstance(seed, bool) else None

    @property
    def env_steps(self) -> int:
        """Env steps of the last report."""
        return int(self.last["env_steps"])

    @property
    def time_s(self) -> float:
        """Seconds since the run began, evaluations included."""
        return number(self.last, "time_s") or 0.0

    @property
    def stop_env_steps(self) -> int | None:
        """The configured number of env steps of the whole run."""
        steps = number(self.config, "stop", "env_steps")
        return None if steps is None else int(steps)


def number(values: Any, *path: str) -> float | None:
    """Return the number at a path of keys; None if there is none, or one that is too large for an axis."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    if isinstance(values, bool) or not isinstance(values, int | float):
        return None
    return float(values) if abs(values) < _TOO_LARGE else None


def section(values: Any, *path: str) -> Mapping[str, Any]:
    """Return the mapping at a path of keys; empty if there is none."""
    for key in path:
        values = values.get(key) if isinstance(values, Mapping) else None
    return values if isinstance(values, Mapping) else {}


def read_runs(folders: Sequence[Path]) -> tuple[list[ReportedRun], list[str]]:
    """Return the runs in some folders, in order and each once, and a sentence on each that was left out.

    A folder that is not a run is searched for runs. Raises ConfigInvalid if one has none that can be read.
    """
    runs: dict[Path, ReportedRun] = {}
    problems, notes = list[str](), list[str]()
    for folder in folders:
        try:
            found = list(_find(folder))
        except ConfigInvalid as error:
            problems += error.problems
            continue
        left_out = list[str]()
        for run_dir in found:
            if run_dir.resolve() not in runs:
                try:
                    runs[run_dir.resolve()] = read_run(run_dir)
                except InvalidInput as error:
                    left_out += error.problems
        if len(left_out) == len(found):
            problems += left_out
        notes += [f"{sentence}; the run is left out" for sentence in left_out]
    if problems:
        raise ConfigInvalid(problems)
    return list(runs.values()), [*notes, *(run.problem for run in runs.values() if run.problem)]


def find_runs(folders: Sequence[Path]) -> list[Path]:
    """Return the folders of the runs in some folders, in order and each once, also of runs without a report yet.

    Raises ConfigInvalid if a folder has none.
    """
    return list({run.resolve(): run for folder in folders for run in _find(folder)}.values())


def read_run(folder: Path) -> ReportedRun:
    """Read one run; raises InvalidInput if it has no reports, or if they cannot be read."""
    check_links(folder)
    if not (folder / METRICS).is_file():
        raise InvalidInput(
            [f"{folder} has no {METRICS}; a run writes it with its first report, unless log.jsonl=false was set"]
        )
    try:
        reports: list[Any] = read_metrics(folder / METRICS)
    except OSError as error:
        raise InvalidInput([f"{folder / METRICS} cannot be read: {error}"]) from error
    for line, report in enumerate(reports, 1):
        if number(report, "env_steps") is None:
            raise InvalidInput([f"{folder / METRICS}, line {line}: expected a report with env_steps"])
    if not reports:
        raise InvalidInput([f"{folder / METRICS} has no report yet; it gets one every log.every_env_steps env steps"])
    config, problem = configuration(folder)
    return _with_state(ReportedRun(folder, config, reports, _text(folder / PLAN), run_state(folder), problem))


def _with_state(run: ReportedRun) -> ReportedRun:
    # Runs of earlier versions wrote no state; one that has all its env steps is at its end.
    if run.state.name == "unknown" and run.stop_env_steps is not None and run.env_steps >= run.stop_env_steps:
        return replace(run, state=RunState("finished", f"stop.env_steps={run.stop_env_steps}"))
    return run


def _find(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise ConfigInvalid([f"there is no directory {folder}; give the directory of a run, or of several"])
    if _is_run(folder):
        yield folder
        return
    found = False
    for path, names, _ in os.walk(folder):
        names[:] = sorted((name for name in names if not name.startswith(".")), key=_natural)
        for name in [name for name in names if _is_run(Path(path, name))]:
            found = True
            names.remove(name)
            yield Path(path, name)
    if not found:
        raise ConfigInvalid(
            [f"{folder} is not the directory of a run, and no run is in it; a run has {', '.join(_MARKS[:2])} there"]
        )


def _is_run(folder: Path) -> bool:
    return any((folder / mark).exists() for mark in _MARKS)


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key by which 9 is before 10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def configuration(folder: Path) -> tuple[Config, str]:
    """Return the configuration of a run, and a sentence if it does not come from its experiment.json."""
    path, reason = folder / EXPERIMENT, ""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(values, dict):
            return with_current_names(values), ""
        reason = f"expected an object, got {type(values).__name__}"
    except FileNotFoundError:
        # A run of an earlier version, from the command line.
        pass
    except (OSError, ValueError, RecursionError) as error:
        reason = str(error)
    composed = _composed(folder / _HYDRA_CONFIG)
    if not reason:
        return composed, ""
    instead = f"is that of {_HYDRA_CONFIG}, without what only Hydra knows" if composed else "is not known"
    return composed, f"{path} is damaged ({reason}): the run's configuration {instead}, so it may be apart from others"


def _composed(path: Path) -> Config:
    """Return the configuration that Hydra composed, without values known to Hydra alone; empty if it is unreadable."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
        return with_current_names(_resolved(values)) if isinstance(values, dict) else {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}


def _resolved(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values without interpolations, such as `${hydra:runtime.choices.env}`, which are no values."""
    return {
        str(key): _resolved(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if not (isinstance(value, str) and "${" in value)
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
