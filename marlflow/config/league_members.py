"""Members of a league from elsewhere: of other runs, of exported files, and policies under another name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.scripted import Random
from marlflow.base.errors import ConfigInvalid, InvalidInput, Problems
from marlflow.base.sentences import absent, meant
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.frozen import described_source
from marlflow.config.imports import imported_policy, load_policy, size_problem, space_problem
from marlflow.env import EnvAdapter
from marlflow.runs.saved_runs import RANDOM

FROM, MEMBER, POLICY = "from", "member", "policy"
COPY: Final = "copy"
"""A key that resuming adds: the file of a checkpoint to load the member from, whose source may be gone."""
_KEYS = (FROM, MEMBER, POLICY)
_NOT_IN_NAMES = "@:/"


def added_members(
    experiment: Experiment, taken: Collection[str], adapter: EnvAdapter, problems: Problems
) -> dict[str, tuple[Policy, list[str]]]:
    """Return the policy of each of `league.members` and the agents whose spaces fit; append to `problems`.

    `taken` are the names of the run's policies. A policy that is only renamed fits every agent.
    """
    assert experiment.league is not None
    added = {}
    for name, given in experiment.league.members.items():
        path = f"league.members.{name}"
        if wrong := _wrong(name, given, taken, path):
            problems += wrong
            continue
        if POLICY in given:
            if (policy := _renamed(given[POLICY], experiment, path, problems)) is not None:
                added[name] = policy, list(adapter.agents)
            continue
        try:
            added[name] = _loaded(given, experiment.league.trust, adapter)
        except InvalidInput as error:
            problems += [f"{path}: {problem}" for problem in error.problems]
    return added


def _wrong(name: str, given: Mapping[str, str], taken: Collection[str], path: str) -> list[str]:
    if name in taken:
        return [f"{path}: the name is taken by a policy of this run; give the member another one"]
    if not name or any(sign in name for sign in _NOT_IN_NAMES):
        return [f"{path}: a name has none of {' '.join(_NOT_IN_NAMES)}, which mark snapshots and sources"]
    keys = (*_KEYS, COPY)
    if unknown := [absent(f"{path}.{key}", key, _KEYS, "a member") for key in given if key not in keys]:
        return unknown
    if (FROM in given) == (POLICY in given) or (MEMBER in given and POLICY in given):
        return [
            f"{path} must be {{from: <folder of a run>, member: <id>}}, {{from: <exported file>}} or "
            f"{{policy: <policy>}}, not {dict(given)}"
        ]
    return []


def _renamed(policy: str, experiment: Experiment, path: str, problems: Problems) -> Policy | None:
    policies = experiment.policies
    if policy == RANDOM and RANDOM not in policies:
        return Policy(Random())
    fixed = [name for name, one in policies.items() if not one.acts_by.capabilities.learns]
    if policy not in policies:
        known = meant(policy, [*fixed, RANDOM], "those that never change are")
        problems.append(f"{path}.policy: there is no policy {policy!r}{known}")
        return None
    if policy not in fixed:
        problems.append(f"{path}.policy: {policy!r} learns, so it is a member itself; name one that never changes")
        return None
    return policies[policy]


def _loaded(given: Mapping[str, str], trust: Sequence[str], adapter: EnvAdapter) -> tuple[Policy, list[str]]:
    saved = load_policy(Path(given.get(COPY, given[FROM])), None if COPY in given else given.get(MEMBER))
    spaces = {agent: _spaces(adapter, agent) for agent in adapter.agents}
    wrong = {agent: space_problem(saved, of_agent, agent) for agent, of_agent in spaces.items()}
    fitting = [agent for agent, problem in wrong.items() if problem is None]
    if not fitting:
        raise ConfigInvalid([f"{next(iter(wrong.values()))}; name a member of a run of this environment"])
    policy = imported_policy(saved, trust)
    if problem := size_problem(policy, spaces[fitting[0]]):
        raise ConfigInvalid([problem])
    return policy, fitting


def _spaces(adapter: EnvAdapter, agent: str) -> Spaces:
    return Spaces(adapter.observation_space(agent), adapter.action_space(agent), adapter.masked(agent))


def described_member(name: str, algorithm: Algorithm) -> str:
    """Return one line on a member from elsewhere, such as `member veteran: main@12 of runs/c4/a (ppo, ...)`."""
    return f"member {name}: {described_source(algorithm)}"
