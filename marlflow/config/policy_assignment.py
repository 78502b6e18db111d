"""Assign policies to agents by rules, by the agents' names, or by a matchmaker."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from marlflow.base.errors import ConfigInvalid, MatchmakerFailed, Problems
from marlflow.base.sentences import enumerated, meant, nearest
from marlflow.batches.items import Weights
from marlflow.config.experiment import Experiment, Policy
from marlflow.config.learners import listed_policies, policy_settings
from marlflow.config.opponents import only_opponents
from marlflow.env import EnvAdapter
from marlflow.matchmaking.matchmakers import (
    TRIAL,
    AllowedSeats,
    EpisodeId,
    MatchmakerFunction,
    change_of,
    deal_one,
    matchmaker_name,
    matchmaker_of,
)
from marlflow.sampling.mapping import ByGroup, ByRules, Rule, assign, group, policy_of
from marlflow.sampling.population import Population

TRIAL_EPISODES = 200
_NOT_RECORDED: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class PolicyAssignment:
    """Hold the policies of a run and their agents.

    `mapping` is for the workers; None: a matchmaker deals each episode.
    """

    policies: Mapping[str, Policy]
    agents: Mapping[str, Sequence[str]]
    mapping: Mapping[str, str] | Callable[[str], str | None] | None


class PlaceholderMatchmaker:
    """Replace a mapping that could not be built, without causing further errors."""

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        raise TypeError("there is no mapping")


def assign_policies(
    experiment: Experiment, adapter: EnvAdapter, problems: Problems, recorded: Mapping[str, str] = _NOT_RECORDED
) -> PolicyAssignment:
    """Assign policies to the agents of `adapter`; append policies and agents left over to `problems`.

    `recorded` is the policy of each agent in the records of an offline run, which stands for a missing mapping.
    """
    # No agent is assigned, so that no error follows from the one reported already.
    if isinstance(experiment.mapping, PlaceholderMatchmaker):
        return PolicyAssignment(experiment.policies, {}, None)
    if callable(experiment.mapping):
        return _by_matchmaker(experiment, experiment.mapping, adapter, problems)
    if experiment.mapping:
        return _by_rules(experiment, experiment.mapping, adapter, problems)
    return _by_name(experiment, adapter, problems, recorded)


def _by_name(
    experiment: Experiment, adapter: EnvAdapter, problems: Problems, recorded: Mapping[str, str]
) -> PolicyAssignment:
    # Policies with other names than the recorded ones play groups, as in any run.
    if not set(experiment.policies) - only_opponents(experiment) <= set(recorded.values()):
        recorded = _NOT_RECORDED
    mapping = {agent: recorded.get(agent, group(agent)) for agent in adapter.agents}
    groups = list(dict.fromkeys(mapping.values()))
    unassigned = [name for name in experiment.policies if name not in groups and name not in only_opponents(experiment)]
    if of_agents := [name for name in unassigned if name in mapping]:
        problems.append(_single_agent_rules_problem(of_agents, mapping, experiment.policies))
    for name in unassigned:
        if name not in of_agents:
            close = nearest(name, groups)
            remedy = f"did you mean {close!r}?" if close else "rename it, or give it a mapping rule"
            problems.append(
                f"policy {name!r} plays no agent: without a mapping a policy plays the group of its name, and the "
                f"groups of this environment are {enumerated(groups)}; {remedy}"
            )
    policies = {name: policy_settings(experiment, name) for name in groups}
    return PolicyAssignment(policies, _agents_of(mapping), mapping if adapter.declared else ByGroup(tuple(groups)))


def _single_agent_rules_problem(names: Sequence[str], groups: Mapping[str, str], policies: Collection[str]) -> str:
    rest = list(dict.fromkeys(group for agent, group in groups.items() if agent not in names))
    rules = [(name, name) for name in names]
    for name in rest:
        agents = [agent for agent, agent_group in groups.items() if agent_group == name and agent not in names]
        rules += [(agent, name) for agent in agents] if name in agents else [(f"{name}_*", name)]
    listed = ", ".join(f'{{match: "{match}", policy: {policy}}}' for match, policy in rules)
    missing = "".join(f" policy@policies.{name}=ppo" for name in rest if name not in policies)
    subject = f"policy {names[0]!r} has the name of an agent"
    if len(names) > 1:
        subject = f"policies {' and '.join(map(repr, names))} have the names of agents"
    here = enumerated(dict.fromkeys(groups.values()))
    return (
        f"{subject}, and without a mapping a policy plays the group of its name, here {here}; "
        f"for policies of single agents write 'mapping=[{listed}]'{missing}"
    )


def _by_rules(
    experiment: Experiment, rules: Sequence[Rule], adapter: EnvAdapter, problems: Problems
) -> PolicyAssignment:
    named = {rule.policy for rule in rules}
    listed = {name: policy for name, policy in listed_policies(experiment).items() if name in named}
    policies = {**listed, **experiment.policies}
    policy_by_agent = {agent: policy_of(agent, rules) for agent in adapter.agents}
    mapping = {agent: policy for agent, policy in policy_by_agent.items() if policy is not None}
    # Where no agents are declared, a rule may be for one that comes later, if another shows the policy's spaces.
    pending_rules = [] if adapter.declared else [rule for rule in rules if rule.policy in mapping.values()]
    try:
        assign(adapter.agents, rules, pending_rules)
    except ConfigInvalid as error:
        problems.extend(error.problems)
    rule_policies = list(dict.fromkeys(rule.policy for rule in rules))
    unknown = [name for name in rule_policies if name not in policies]
    for name in unknown:
        numbers = [str(number) for number, rule in enumerate(rules, 1) if rule.policy == name]
        text = f"mapping rule {' and '.join(numbers)} names policy {name!r}, which does not exist"
        problems.append(text + _remedy(name, policies))
    explained = {nearest(name, policies) for name in unknown}
    for name in policies:
        if name not in rule_policies and name not in explained and name not in only_opponents(experiment):
            problems.append(
                f"policy {name!r} plays no agent: no mapping rule names it; "
                f"add {{match: <agents>, policy: {name}}} to mapping, or remove it"
            )
    played = {name: policies[name] for name in policies if name in rule_policies}
    return PolicyAssignment(played, _agents_of(mapping), mapping if adapter.declared else ByRules(tuple(rules)))


def _by_matchmaker(
    experiment: Experiment, matchmaker: MatchmakerFunction, adapter: EnvAdapter, problems: Problems
) -> PolicyAssignment:
    name, policies = matchmaker_name(matchmaker), {**experiment.policies, **listed_policies(experiment)}
    unassigned = PolicyAssignment(policies, {}, None)
    if not adapter.declared:
        problems.append(
            f"mapping: {name} cannot seat the agents of an environment that does not declare them; "
            "give it possible_agents, or map by rules"
        )
        return unassigned
    learning = [policy for policy, settings in policies.items() if settings.acts_by.capabilities.learns]
    try:
        matchups = _on_trial(matchmaker, tuple(adapter.agents), tuple(policies), learning, experiment.seed)
    except MatchmakerFailed as error:
        problems.append(failure_problem("mapping", error))
        return unassigned
    played = {policy: [a for a in adapter.agents if any(m[a] == policy for m in matchups)] for policy in policies}
    unseated = {policy for policy, agents in played.items() if not agents}
    problems.extend(
        f"policy {policy!r} plays no agent: {name} seated it in none of {TRIAL_EPISODES} trial episodes"
        for policy in played
        if policy in unseated - only_opponents(experiment)
    )
    policies = {name: policy for name, policy in policies.items() if name not in unseated & only_opponents(experiment)}
    return PolicyAssignment(policies, {policy: agents for policy, agents in played.items() if agents}, None)


def _on_trial(
    matchmaker: MatchmakerFunction, agents: Sequence[str], policies: Sequence[str], learning: Sequence[str], seed: int
) -> list[dict[str, str]]:
    """Return the matchups of trial episodes, as policies in place of their frozen versions."""
    try:
        # The trial uses a copy, so that the run starts with a matchmaker in its initial state.
        trial_matchmaker = matchmaker_of(copy.deepcopy(matchmaker))
    except Exception as error:
        where, reason = f"matchmaker {matchmaker_name(matchmaker)}", f"{type(error).__name__}: {error}"
        raise MatchmakerFailed(where, f"it cannot be copied, to be tried before the run ({reason})") from error
    population = Population(dict.fromkeys(policies, agents))
    change = change_of(trial_matchmaker, population, dict.fromkeys(learning, 0), dict.fromkeys(policies, 0))
    population.apply(change, {name: Weights(0, None) for name in learning}, {})
    # All seats are allowed: which spaces fit is known only after the trial.
    seats = AllowedSeats(agents, population.fits)
    dealt = [deal_one(trial_matchmaker, seats, EpisodeId(TRIAL, episode), seed) for episode in range(TRIAL_EPISODES)]
    frozen = population.entries
    return [{agent: frozen.get(entry, entry) for agent, entry in matchup.items()} for matchup in dealt]


def failure_problem(key: str, error: MatchmakerFailed) -> str:
    """Return the problem of a matchmaker that failed on trial, with the user's part of the traceback."""
    text = error.user_traceback
    indented = "\n" + textwrap.indent(text.rstrip(), "    ") if text else ""
    return f"{key}: {error.where}: {error.reason}{indented}"


def _agents_of(mapping: Mapping[str, str]) -> dict[str, list[str]]:
    agents: dict[str, list[str]] = {}
    for agent, policy in mapping.items():
        agents.setdefault(policy, []).append(agent)
    return agents


def _remedy(name: str, policies: Collection[str]) -> str:
    question = meant(name, policies, "the policies are")
    return question if "did you mean" in question else f"{question}; add it with policy@policies.{name}=ppo"
