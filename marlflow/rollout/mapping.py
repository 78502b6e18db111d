"""Which policy plays which agent: rules, of which the first that matches wins."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from marlflow.base.errors import ConfigInvalid


@dataclass(frozen=True, slots=True)
class Rule:
    """Agents whose name matches the glob `match` are played by `policy`."""

    match: str
    policy: str


def group(agent: str) -> str:
    """The name of an agent without its number.

    >>> group("adversary_0"), group("wolf")
    ('adversary', 'wolf')
    """
    return re.sub(r"_\d+$", "", agent)


def policy_of(agent: str, rules: Sequence[Rule]) -> str | None:
    """The policy that plays `agent`, or None if no rule matches."""
    return next((rule.policy for rule in rules if fnmatchcase(agent, rule.match)), None)


@dataclass(frozen=True, slots=True)
class ByRules:
    """The policy of every agent that the rules cover, also of one that is not there yet.

    >>> ByRules([Rule("wolf_*", "pack")])("wolf_7")
    'pack'
    """

    rules: Sequence[Rule]

    def __call__(self, agent: str) -> str | None:
        """The policy that plays `agent`, or None if no rule matches."""
        return policy_of(agent, self.rules)


@dataclass(frozen=True, slots=True)
class ByGroup:
    """The policy of the name of every agent's group, also of one that is not there yet; `policies` are all there are.

    >>> ByGroup(["wolf"])("wolf_7")
    'wolf'
    """

    policies: Collection[str]

    def __call__(self, agent: str) -> str | None:
        """The policy that plays `agent`, or None if its group has none."""
        name = group(agent)
        return name if name in self.policies else None


def assign(agents: Sequence[str], rules: Sequence[Rule], waiting: Collection[Rule] = ()) -> dict[str, str]:
    """Agent to policy, for all `agents`; the rules in `waiting` may be for agents that are not there yet.

    Raises ConfigInvalid with all problems: agents that no rule matches, rules that no agent reaches.

    >>> assign(["wolf_0", "wolf_1", "hare_0"], [Rule("wolf_0", "alpha"), Rule("wolf_*", "pack"), Rule("*", "prey")])
    {'wolf_0': 'alpha', 'wolf_1': 'pack', 'hare_0': 'prey'}
    """
    mapping: dict[str, str] = {}
    problems: list[str] = []
    reached: set[int] = set()
    for agent in agents:
        number = next((number for number, rule in enumerate(rules) if fnmatchcase(agent, rule.match)), None)
        if number is None:
            matches = ", ".join(repr(rule.match) for rule in rules) or "none"
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
        return f"{text} matches no agent; the agents are {', '.join(agents)}"
    return f"{text} reaches no agent: earlier rules take {', '.join(taken)}"
