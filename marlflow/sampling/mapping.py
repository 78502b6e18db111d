"""Policy mapping rules, like RLlib's policy_mapping_fn: the first rule that matches an agent names its policy."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import enumerated

PolicyOf = Callable[[str], str | None]
"""Maps an agent to its policy, or to None, in episodes without a matchup."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Agents whose name matches the glob `match` are played by `policy`."""

    match: str
    policy: str


def group(agent: str) -> str:
    """Return an agent's name without its number.

    >>> group("adversary_0"), group("wolf")
    ('adversary', 'wolf')
    """
    return re.sub(r"_\d+$", "", agent)


def policy_of(agent: str, rules: Sequence[Rule]) -> str | None:
    """Return the policy of `agent`, or None."""
    return next((rule.policy for rule in rules if fnmatchcase(agent, rule.match)), None)


@dataclass(frozen=True, slots=True)
class ByRules:
    """Maps agents to policies by rules.

    >>> ByRules([Rule("wolf_*", "pack")])("wolf_7")
    'pack'
    """

    rules: Sequence[Rule]

    def __call__(self, agent: str) -> str | None:
        return policy_of(agent, self.rules)


@dataclass(frozen=True, slots=True)
class ByGroup:
    """Maps agents to the policy named as their group.

    >>> ByGroup(["wolf"])("wolf_7")
    'wolf'
    """

    policies: Collection[str]

    def __call__(self, agent: str) -> str | None:
        name = group(agent)
        return name if name in self.policies else None


def assign(agents: Sequence[str], rules: Sequence[Rule], waiting: Collection[Rule] = ()) -> dict[str, str]:
    """Return the policy of each of `agents`; rules in `waiting` may match none yet.

    Raises ConfigInvalid with all agents without a rule and all rules without an agent.

    >>> assign(["wolf_0", "wolf_1", "hare_0"], [Rule("wolf_0", "alpha"), Rule("wolf_*", "pack"), Rule("*", "prey")])
    {'wolf_0': 'alpha', 'wolf_1': 'pack', 'hare_0': 'prey'}
    """
    mapping: dict[str, str] = {}
    problems: list[str] = []
    reached: set[int] = set()
    for agent in agents:
        number = next((number for number, rule in enumerate(rules) if fnmatchcase(agent, rule.match)), None)
        if number is None:
            matches = enumerated([repr(rule.match) for rule in rules]) or "none"
            problems.append(f"no mapping rule matches agent {agent!r} (rules: {matches}); add one, or one for '*'")
        else:
            mapping[agent] = rules[number].policy
            reached.add(number)
    idle = [number for number, rule in enumerate(rules) if number not in reached and rule not in waiting]
    problems += [_unreached(number, agents, rules) for number in idle]
    if problems:
        raise ConfigInvalid(problems)
    return mapping


def _unreached(number: int, agents: Sequence[str], rules: Sequence[Rule]) -> str:
    rule = rules[number]
    text = f"mapping rule {number + 1} (match {rule.match!r}, policy {rule.policy!r})"
    taken = [agent for agent in agents if fnmatchcase(agent, rule.match)]
    if not taken:
        return f"{text} matches no agent; the agents are {enumerated(agents)}"
    return f"{text} reaches no agent: earlier rules take {enumerated(taken)}"
