"""Group runs that differ only in their seed, by environment, and name the groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.html_report.differences import TARGET, as_text, identity, short_names
from marlflow.html_report.runs import Config, ReportedRun, section

LEFT_OUT = ("seed", "log", "checkpoint")
"""Sections of a configuration in which the runs of a group may differ: none of them changes what is learned."""

# Keys of `env` that are not about the task.
_POOL = ("num_envs", "step_timeout_s", "batched")
# Names of functions that make an environment; its module names it.
_FACTORIES = ("env", "parallel_env", "raw_env", "make", "make_env")


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ only in their seed."""

    name: str
    runs: tuple[ReportedRun, ...]

    @property
    def config(self) -> Config:
        """The configuration of its first run."""
        return self.runs[0].config

    @property
    def seeds(self) -> list[int]:
        """The known seeds, in order."""
        return sorted(run.seed for run in self.runs if run.seed is not None)


@dataclass(frozen=True, slots=True)
class Task:
    """Groups of runs in the same environment, which can be compared."""

    name: str
    groups: tuple[RunGroup, ...]

    @property
    def runs(self) -> list[ReportedRun]:
        """All runs in it."""
        return [run for group in self.groups for run in group.runs]


def tasks_of(runs: Sequence[ReportedRun]) -> list[Task]:
    """Group runs by environment and then by configuration; both in the order in which the runs were given."""
    by_env: dict[str, list[ReportedRun]] = {}
    for run in runs:
        # Runs whose configuration is not known are compared with each other.
        by_env.setdefault(identity(_task(run.config)), []).append(run)
    names = _told_apart(
        [_env_name(of[0].config) for of in by_env.values()], [_task(of[0].config) for of in by_env.values()]
    )
    return [Task(name, _groups(of)) for name, of in zip(names, by_env.values(), strict=True)]


def _groups(runs: Sequence[ReportedRun]) -> tuple[RunGroup, ...]:
    by_config: dict[str, list[ReportedRun]] = {}
    for run in runs:
        known = {key: value for key, value in run.config.items() if key not in LEFT_OUT}
        # Without a configuration, each run is a group of its own.
        by_config.setdefault(identity(known) if known else str(run.folder), []).append(run)
    groups = list(by_config.values())
    names = _group_names(groups)
    return tuple(
        RunGroup(name, tuple(sorted(of, key=lambda run: (run.seed is None, run.seed or 0))))
        for name, of in zip(names, groups, strict=True)
    )


def _group_names(groups: Sequence[Sequence[ReportedRun]]) -> list[str]:
    """Return the first of these that tells all groups apart: differences, configured names, folders, numbers."""
    configs = [of[0].config for of in groups]
    configured = [str(config.get("name") or of[0].folder.name) for config, of in zip(configs, groups, strict=True)]
    if len(groups) == 1:
        return configured
    folders = [of[0].folder.resolve() for of in groups]
    candidates = [
        short_names(configs, (*LEFT_OUT, "name")),
        configured,
        # The jobs of a sweep are in one folder.
        [folder.parent.name if len(of) > 1 else folder.name for folder, of in zip(folders, groups, strict=True)],
    ]
    for names in candidates:
        if all(names) and len(set(names)) == len(names):
            return names
    return [f"{name} {number}" for number, name in enumerate(configured, 1)]


def _told_apart(names: Sequence[str], configs: Sequence[Config]) -> list[str]:
    """Return names, of equal ones with what differs in their configurations."""
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        details = short_names([configs[place] for place in places])
        for number, (place, detail) in enumerate(zip(places, details, strict=True), 1):
            result[place] = f"{name}, {detail or number}"
    return result


def _task(config: Config) -> Mapping[str, Any]:
    return {key: value for key, value in section(config, "env").items() if key not in _POOL}


def _env_name(config: Config) -> str:
    """Return the name of an environment's module, or its game.

    >>> _env_name({"env": {"_target_": "pettingzoo.classic.connect_four_v3.env"}})
    'connect_four_v3'
    """
    env = section(config, "env")
    if not env:
        return "environment not recorded"
    for key in ("game", "id", "env_id"):
        if isinstance(env.get(key), str):
            return str(env[key])
    parts = [part for part in str(env.get(TARGET, "")).split(".") if part]
    named = [part for part in parts if part not in _FACTORIES]
    return named[-1] if named else as_text(env)
