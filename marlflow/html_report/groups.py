"""Group runs by environment, and then runs that differ only in their seed or as a user chose; name the groups."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import nearest
from marlflow.html_report.differences import (
    ALGORITHM,
    MISSING,
    TARGET,
    as_text,
    class_name,
    identity,
    named,
    short_keys,
    short_names,
    whole,
)
from marlflow.html_report.measures import measures_of
from marlflow.html_report.runs import Config, ReportedRun, section

_ENV = "env"
_DEFAULT = "default_policy"
_OWNERS = ("policies", "learners")
_LONGEST_NAME = 60


@dataclass(frozen=True, slots=True)
class Grouping:
    """Keys of configurations, whole or their ends: runs that are equal in `group_by` are a group.

    Without `group_by`, runs that are equal in everything except the seed are a group. Environments that differ only in
    keys of `merge` are compared with each other.
    """

    group_by: tuple[str, ...] = ()
    merge: tuple[str, ...] = ()

    def check(self, runs: Sequence[ReportedRun]) -> None:
        """Raise ConfigInvalid for keys that no configuration has, or that are not of an environment."""
        known = dict.fromkeys(key for run in runs for key, _ in entries(run.config))
        problems = [
            f"group_by: no run has a key {word!r} in its configuration{_near(word, known)}"
            for word in self.group_by
            if not _matching(word, known)
        ]
        of_env = [key for key in known if key == _ENV or key.startswith(f"{_ENV}.")]
        for word in self.merge:
            if not _matching(word, of_env):
                reason = "is not a key of env" if _matching(word, known) else "is a key of no run's env"
                problems.append(
                    f"merge: {word!r} {reason}{_near(word, of_env)}. It takes keys of env in which environments may "
                    "differ and still be compared, such as env.max_cycles, or env for all; group_by= chooses groups"
                )
        if problems:
            raise ConfigInvalid(problems)

    def merged(self, env: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the settings of an environment without the settings that may differ."""
        paths = [path for word in self.merge for path in _matching(word, [key for key, _ in entries({_ENV: env})])]
        return {} if _ENV in paths else _without(env, _ENV, paths)

    def key(self, config: Config) -> str:
        """Return a text that is the same for runs of a group."""
        return identity([sorted(self.texts(config, word).items()) for word in self.group_by])

    def texts(self, config: Config, word: str) -> dict[str, str]:
        """Return the values of a configuration's keys that `word` names, as texts; an algorithm counts by its class."""
        known = dict(entries(config))
        paths = _matching(word, known)
        # The default policy says nothing about a run whose policies have settings of their own.
        owned = [path for path in paths if path.partition(".")[0] in _OWNERS]
        chosen = [path for path in paths if not (owned and path.partition(".")[0] == _DEFAULT)]
        return {
            path: (path.endswith(ALGORITHM) and class_name(known[path])) or as_text(whole(known[path]))
            for path in chosen
        }

    def names(self, configs: Sequence[Config]) -> list[str]:
        """Return the names of groups, from one configuration of each."""
        for short in (True, False):
            names = [
                ", ".join(self._name(config, word, configs, short) for word in self.group_by) for config in configs
            ]
            cut = [name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…" for name in names]
            if len(set(cut)) == len(cut):
                return cut
        return [f"{name} ({number})" for number, name in enumerate(cut, 1)]

    def _name(self, config: Config, word: str, configs: Sequence[Config], short: bool) -> str:
        texts = self.texts(config, word)
        last = word.rpartition(".")[2]
        if not texts:
            return named({last: MISSING}, {last: last})
        if short and len(set(texts.values())) == 1:
            return named({last: next(iter(texts.values()))}, {last: last})
        return named(texts, short_keys(list(texts), configs))


BY_CONFIGURATION: Final = Grouping()
"""The default: all keys count, except the seed."""


def entries(config: Config, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all keys of a configuration with their values, sections before their keys."""
    for name, value in config.items():
        key = f"{path}.{name}" if path else str(name)
        yield key, value
        if isinstance(value, Mapping):
            yield from entries(value, key)


def _matching(word: str, keys: Sequence[str] | Mapping[str, Any]) -> list[str]:
    """Return the key `word`, or else all keys that end with it."""
    return [word] if word in keys else [key for key in keys if key.endswith(f".{word}")]


def _without(values: Mapping[str, Any], path: str, left_out: Sequence[str]) -> dict[str, Any]:
    return {
        name: _without(value, f"{path}.{name}", left_out) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if f"{path}.{name}" not in left_out
    }


def _near(word: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    ends = list(dict.fromkeys([*known, *(key.rpartition(".")[2] for key in known)]))
    close = nearest(word, ends)
    if close is not None:
        return f"; did you mean {close!r}?"
    return f"; there are {', '.join(ends[:10])}, ..." if ends else "; no configuration was recorded"


LEFT_OUT = ("seed", "log", "checkpoint")
"""Sections of a configuration that have no influence on learning, so that runs of a group may differ in them."""

ADDS_STATE = ("marlflow.env.wrappers.shipped.joint_state",)
"""Wrappers that only add a state: rewards, observations and ends of episodes stay the environment's."""

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
        [" and ".join(dict.fromkeys(_env_name(run.config) for run in of)) for of in by_env.values()],
        [environment(of[0].config) for of in by_env.values()],
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
        key = str(run.folder) if not known else grouping.key(run.config) if grouping.group_by else identity(known)
        by_config.setdefault(key, []).append(run)
    groups = list(by_config.values())
    names = _group_names(groups, grouping)
    return tuple(
        RunGroup(name, tuple(sorted(of, key=lambda run: (run.seed is None, run.seed or 0))))
        for name, of in zip(names, groups, strict=True)
    )


def _group_names(groups: Sequence[Sequence[ReportedRun]], grouping: Grouping) -> list[str]:
    """Return names of groups; groups without a whole configuration are named by their folders."""
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
    """Return names; equal names are extended by the differences of their configurations."""
    result = list(names)
    for name in {name for name in names if names.count(name) > 1}:
        places = [place for place, other in enumerate(names) if other == name]
        details = short_names([configs[place] for place in places])
        for number, (place, detail) in enumerate(zip(places, details, strict=True), 1):
            result[place] = f"{name}, {detail or number}"
    return result


def environment(config: Config) -> dict[str, Any]:
    """Return the settings that define the environment of a run, without wrappers that only add a state."""
    env = {key: value for key, value in section(config, "env").items() if key not in _POOL}
    wrappers = env.pop("wrappers", None) or []
    # Earlier versions recorded them by name.
    several = list(wrappers.values()) if isinstance(wrappers, Mapping) else wrappers
    if isinstance(several, list):
        several = [one for one in several if section({"of": one}, "of").get(TARGET) not in ADDS_STATE]
    return {**env, "wrappers": several} if several else env


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
