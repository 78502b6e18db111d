"""Group runs that differ only in their seed, by environment, and name the groups."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.html_report.differences import TARGET, identity, short_names
from marlflow.html_report.grouping import BY_CONFIGURATION, Grouping
from marlflow.html_report.measures import measures_of
from marlflow.html_report.runs import Config, ReportedRun, section

LEFT_OUT = ("seed", "log", "checkpoint")
"""Sections of a configuration in which the runs of a group may differ: none of them changes what is learned."""

ADDS_STATE = ("marlflow.env.wrappers.shipped.joint_state",)
"""Wrappers that only add a state: rewards, observations and ends of episodes are those of the environment."""

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


def tasks_of(runs: Sequence[ReportedRun], grouping: Grouping = BY_CONFIGURATION) -> list[Task]:
    """Group runs by environment and then by configuration; both in the order in which the runs were given.

    Raises ConfigInvalid if `grouping` has unknown keys, or merges environments that have no return in common.
    """
    grouping.check(runs)
    by_env: dict[str, list[ReportedRun]] = {}
    for run in runs:
        # Runs whose configuration is not known are compared with each other.
        by_env.setdefault(identity(grouping.merged(environment(run.config))), []).append(run)
    _check_merged(list(by_env.values()))
    names = _told_apart(
        [_env_names(of) for of in by_env.values()], [environment(of[0].config) for of in by_env.values()]
    )
    return [Task(name, _groups(of, grouping)) for name, of in zip(names, by_env.values(), strict=True)]


def _check_merged(tasks: Sequence[Sequence[ReportedRun]]) -> None:
    """Raise ConfigInvalid if environments are merged whose runs have no return in common."""
    problems = []
    for runs in tasks:
        by_env: dict[str, list[ReportedRun]] = {}
        for run in runs:
            by_env.setdefault(identity(environment(run.config)), []).append(run)
        (first, known), *others = [(of, {measure.key for measure in measures_of(of)}) for of in by_env.values()]
        for other, found in others:
            if known and found and not known & found:
                problems.append(
                    f"merge: {first[0].folder} ({_env_name(first[0].config)}: {', '.join(sorted(known))}) and "
                    f"{other[0].folder} ({_env_name(other[0].config)}: {', '.join(sorted(found))}) have no return in "
                    "common; only environments with the same policies can be merged"
                )
    if problems:
        raise ConfigInvalid(problems)


def _groups(runs: Sequence[ReportedRun], grouping: Grouping) -> tuple[RunGroup, ...]:
    by_config: dict[str, list[ReportedRun]] = {}
    for run in runs:
        known = {key: value for key, value in run.config.items() if key not in LEFT_OUT}
        # Without a configuration, each run is a group of its own.
        key = str(run.folder) if not known else grouping.key(known) if grouping.group_by else identity(known)
        by_config.setdefault(key, []).append(run)
    groups = list(by_config.values())
    names = _group_names(groups, grouping)
    return tuple(
        RunGroup(name, tuple(sorted(of, key=lambda run: (run.seed is None, run.seed or 0))))
        for name, of in zip(names, groups, strict=True)
    )


def _group_names(groups: Sequence[Sequence[ReportedRun]], grouping: Grouping) -> list[str]:
    """Return names of groups; those without a whole configuration are named by their folders."""
    configs = [of[0].config for of in groups]
    configured = [str(config.get("name") or of[0].folder.name) for config, of in zip(configs, groups, strict=True)]
    folders = [of[0].folder.resolve() for of in groups]
    shared = os.path.commonpath([folder.parent for folder in folders])
    paths = [os.path.relpath(folder, shared) for folder in folders]
    placed = [path if name == path else f"{name} ({path})" for name, path in zip(configured, paths, strict=True)]
    is_whole = [bool(of[0].config) and not of[0].problem for of in groups]
    if all(is_whole) or not any(is_whole):
        return _told_by_settings(groups, configs, configured, placed, grouping)
    whole = [of for of, known in zip(groups, is_whole, strict=True) if known]
    names = iter(_group_names(whole, grouping))
    found = [next(names) if known else place for known, place in zip(is_whole, placed, strict=True)]
    return found if len(set(found)) == len(found) else placed


def _told_by_settings(
    groups: Sequence[Sequence[ReportedRun]],
    configs: Sequence[Config],
    configured: list[str],
    placed: list[str],
    grouping: Grouping,
) -> list[str]:
    """Return the first of these that tells all groups apart: differences, configured names, folders, or both."""
    if grouping.group_by and all(configs):
        return grouping.names(configs)
    if len(groups) == 1:
        return configured
    candidates = [
        # A wrapper that only adds a state follows from the algorithm.
        short_names([{**config, "env": environment(config)} for config in configs], (*LEFT_OUT, "name")),
        short_names(configs, (*LEFT_OUT, "name")),
        configured,
        # The jobs of a sweep are in one folder.
        [(of[0].folder.resolve().parent if len(of) > 1 else of[0].folder.resolve()).name for of in groups],
    ]
    return next((names for names in candidates if all(names) and len(set(names)) == len(names)), placed)


def _told_apart(names: Sequence[str], configs: Sequence[Config]) -> list[str]:
    """Return names, of equal ones with what differs in their configurations."""
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        details = short_names([configs[place] for place in places])
        for number, (place, detail) in enumerate(zip(places, details, strict=True), 1):
            result[place] = f"{name}, {detail or number}"
    return result


def environment(config: Config) -> dict[str, Any]:
    """Return what makes the environment of a run: its settings, without wrappers that only add a state."""
    env = {key: value for key, value in section(config, "env").items() if key not in _POOL}
    wrappers = env.pop("wrappers", None) or []
    # Earlier versions recorded them by name.
    several = list(wrappers.values()) if isinstance(wrappers, Mapping) else wrappers
    if isinstance(several, list):
        several = [one for one in several if section({"of": one}, "of").get(TARGET) not in ADDS_STATE]
    return {**env, "wrappers": several} if several else env


def _env_names(runs: Sequence[ReportedRun]) -> str:
    return " and ".join(dict.fromkeys(_env_name(run.config) for run in runs))


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
    return named[-1] if named else "environment"
