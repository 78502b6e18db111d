"""Who plays whom: the policies of a run and the agents of each, from the rules or from the agents' names."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from marlflow.base.errors import ConfigInvalid
from marlflow.experiment.experiment import Experiment, Policy
from marlflow.experiment.near import meant, nearest
from marlflow.rollout.mapping import assign, group, policy_of


def who_plays(
    experiment: Experiment, agents: Sequence[str], problems: list[str]
) -> tuple[dict[str, Policy], dict[str, str]]:
    """All policies of the run, and agent to policy; adds to `problems` whatever leaves one without the other."""
    return (_by_rules if experiment.mapping else _by_name)(experiment, agents, problems)


def _by_name(
    experiment: Experiment, agents: Sequence[str], problems: list[str]
) -> tuple[dict[str, Policy], dict[str, str]]:
    mapping = {agent: group(agent) for agent in agents}
    groups = list(dict.fromkeys(mapping.values()))
    for name in experiment.policies:
        if name not in groups:
            close = nearest(name, groups)
            remedy = f"did you mean {close!r}?" if close else "rename it, or give it a mapping rule"
            problems.append(
                f"policy {name!r} plays no agent: without a mapping a policy plays the group of its name, and the "
                f"groups of this environment are {', '.join(groups)}; {remedy}"
            )
    return {name: experiment.policies.get(name, experiment.default_policy) for name in groups}, mapping


def _by_rules(
    experiment: Experiment, agents: Sequence[str], problems: list[str]
) -> tuple[dict[str, Policy], dict[str, str]]:
    rules, policies = experiment.mapping, experiment.policies
    try:
        mapping = assign(agents, rules)
    except ConfigInvalid as error:
        problems.extend(error.problems)
        found = {agent: policy_of(agent, rules) for agent in agents}
        mapping = {agent: policy for agent, policy in found.items() if policy is not None}
    named = list(dict.fromkeys(rule.policy for rule in rules))
    unknown = [name for name in named if name not in policies]
    for name in unknown:
        numbers = [str(number) for number, rule in enumerate(rules, 1) if rule.policy == name]
        text = f"mapping rule {' and '.join(numbers)} names policy {name!r}, which does not exist"
        problems.append(text + _remedy(name, policies))
    explained = {nearest(name, policies) for name in unknown}
    for name in policies:
        if name not in named and name not in explained:
            problems.append(
                f"policy {name!r} plays no agent: no mapping rule names it; "
                f"add {{match: <agents>, policy: {name}}} to mapping, or remove it"
            )
    return {name: policies[name] for name in policies if name in named}, mapping


def _remedy(name: str, policies: Collection[str]) -> str:
    question = meant(name, policies, "the policies are")
    return question if "did you mean" in question else f"{question}; add it with policy@policies.{name}=ppo"
