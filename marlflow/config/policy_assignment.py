"""Assign policies to learners, and to agents by rules, by the agents' names, or by a matchmaker."""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from marlflow.base.errors import ConfigInvalid, MatchmakerFailed, Problems
from marlflow.base.sentences import enumerated, meant, nearest
from marlflow.batches.items import Weights
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
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
from marlflow.runtime.spec import LearnerSpec
from marlflow.sampling.mapping import ByGroup, ByRules, Rule, assign, group, policy_of
from marlflow.sampling.population import Population

_OF_LEARNERS = ("placement", "stop", "queue_fragments")


def resolved(experiment: Experiment) -> Experiment:
    """Return a copy whose policies have algorithms (of their learner or own, else PPO) and whose league has numbers."""
    algorithms = {name: learner.algorithm for learner in experiment.learners.values() for name in learner.policies}
    policies = {
        name: replace(policy, algorithm=algorithms.get(name, policy.acts_by))
        for name, policy in experiment.policies.items()
    }
    default = replace(experiment.default_policy, algorithm=experiment.default_policy.acts_by)
    league = None if experiment.league is None else experiment.league.for_run(experiment.stop.env_steps)
    return replace(experiment, policies=policies, default_policy=default, league=league)


def policy_settings(experiment: Experiment, name: str) -> Policy:
    """Return the settings of a policy: its own, or those of default_policy.

    A policy that a learner lists takes only the model of default_policy.
    """
    if name in experiment.policies:
        return experiment.policies[name]
    learner = next((one for one in experiment.learners.values() if name in one.policies), None)
    if learner is None:
        return experiment.default_policy
    return Policy(learner.algorithm, experiment.default_policy.model)


def listed_policies(experiment: Experiment) -> dict[str, Policy]:
    """Return the settings of the policies that learners list."""
    listed = [name for learner in experiment.learners.values() for name in learner.policies]
    return {name: policy_settings(experiment, name) for name in listed}


def learners_of(experiment: Experiment, policies: Mapping[str, Policy]) -> dict[str, LearnerConfig]:
    """Return the learners of `policies`, the resolved policies with agents, in their order."""
    listed = {name: key for key, learner in experiment.learners.items() for name in learner.policies}
    learners: dict[str, LearnerConfig] = {}
    for name, policy in policies.items():
        if name in listed:
            learners.setdefault(listed[name], experiment.learners[listed[name]])
        elif policy.acts_by.capabilities.learns:
            learners[name] = LearnerConfig(
                (name,), policy.acts_by, policy.placement, policy.stop, policy.queue_fragments
            )
    return learners


def learner_problems(experiment: Experiment) -> Iterator[str]:
    """Yield problems of `learners` that do not depend on the agents; `experiment` is unresolved."""
    taken: dict[str, str] = {}
    for key, learner in experiment.learners.items():
        path = f"learners.{key}"
        for name in dict.fromkeys(learner.policies):
            if list(learner.policies).count(name) > 1:
                yield f"{path}.policies has {name!r} more than once; list each policy once"
            if name in taken:
                yield f"policy {name!r} is in learners.{taken[name]} and in {path}; list it in one of them"
            taken.setdefault(name, key)
        yield from _algorithm_problems(path, learner)
        if key in experiment.policies:
            yield from _name_problems(key, learner)
        yield from _member_problems(experiment, path, learner)
    for name, policy in experiment.policies.items():
        if name not in taken and policy.acts_by.capabilities.joint and policy.experience is not None:
            yield _recorded_problem(name, f"policies.{name}", policy.acts_by.name)
    for path, algorithm, placement in experiment.all_learners():
        if algorithm.capabilities.joint and placement.stages:
            yield f"{path}.placement.stages must be null: the stages of {algorithm.name} see joint rows, at its learner"


def without_algorithm(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the policies of a composed configuration whose algorithm is null, though no learner lists them."""
    learners, policies = (values.get(section) or {} for section in ("learners", "policies"))
    members = [learner.get("policies") for learner in _mappings(learners).values()]
    listed = {name for names in members if isinstance(names, list | tuple) for name in names}
    for name, policy in _mappings(policies).items():
        if name not in listed and policy.get("algorithm", ...) is None:
            yield (
                f"policies.{name}.algorithm is null, which is for policies that a learner lists; choose one, "
                f"policy@policies.{name}=ppo, or list it: 'learners.<id>.policies=[{name}]'"
            )
    for default in _mappings({"default_policy": values.get("default_policy")}).values():
        if default.get("algorithm", ...) is None:
            yield (
                "default_policy.algorithm is null, and policies without settings of their own would have none; choose "
                "one, policy@default_policy=ppo: policies that a learner lists take only its model"
            )


def _mappings(section: Any) -> dict[str, Mapping[str, Any]]:
    """Return the entries of a section that have settings; of another value none, which is reported elsewhere."""
    entries = section.items() if isinstance(section, Mapping) else ()
    return {str(name): entry for name, entry in entries if isinstance(entry, Mapping)}


def _name_problems(key: str, learner: LearnerConfig) -> Iterator[str]:
    if list(learner.policies) != [key]:
        yield (
            f"learners.{key} has the name of policy {key!r}, which is not its only one; give the learner another name, "
            f"such as {'_and_'.join(learner.policies) or 'team'}"
        )


def _algorithm_problems(path: str, learner: LearnerConfig) -> Iterator[str]:
    capabilities = learner.algorithm.capabilities
    if not learner.policies:
        yield f"{path}.policies is empty; list the policies that it trains, or remove {path}"
    if not capabilities.learns:
        yield f"{path}: {learner.algorithm.name} does not learn; give it an algorithm that does"
    elif not capabilities.joint and len(learner.policies) > 1:
        yield (
            f"{path}: {learner.algorithm.name} trains one policy, and it lists {len(learner.policies)} "
            f"({', '.join(learner.policies)}); give each policy the algorithm, or {path} one that is joint"
        )


def _member_problems(experiment: Experiment, path: str, learner: LearnerConfig) -> Iterator[str]:
    for name in learner.policies:
        if (policy := experiment.policies.get(name)) is None:
            continue
        if policy.algorithm is not None:
            yield (
                f"policies.{name}.algorithm is {policy.algorithm.name}, and {path} trains {name!r} by "
                f"{learner.algorithm.name}; set policies.{name}.algorithm=null, or take {name!r} out of {path}.policies"
            )
        # Settings that differ from the defaults would be ignored silently.
        defaults = {field.name: getattr(Policy(), field.name) for field in fields(Policy)}
        for setting in _OF_LEARNERS:
            if getattr(policy, setting) != defaults[setting]:
                yield f"policies.{name}.{setting} is not used, since {path} trains {name!r}; set {path}.{setting}"
        if policy.experience is not None and learner.algorithm.capabilities.joint:
            yield _recorded_problem(name, path, learner.algorithm.name)


def _recorded_problem(policy: str, path: str, algorithm: str) -> str:
    return (
        f"policies.{policy}.experience must be null: {path} ({algorithm}) learns from joint rows, which are not "
        "recorded"
    )


def assigned_learner_problems(experiment: Experiment, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield problems of `learners` with `policies`, the policies that have agents."""
    for key, learner in experiment.learners.items():
        if key in policies and key not in experiment.policies:
            yield from _name_problems(key, learner)
        for name in dict.fromkeys(learner.policies):
            # A policy that is set in `policies` is reported with those that no rule or group names.
            if name not in policies and name not in experiment.policies:
                yield f"learners.{key}.policies: no agent is played by a policy {name!r}" + meant(
                    name, policies, "the policies are"
                )


def subject_of(spec: LearnerSpec) -> str:
    """Name a learner in errors: by its policy, if that learns alone."""
    return learner_subject(spec.name, spec.members, spec.algorithm.name)


def learner_subject(name: str, members: Sequence[str], algorithm: str) -> str:
    """Name a learner in errors: by its policy, if that learns alone."""
    # Most users never write `learners`, so errors name the policy.
    return f"{'policy' if tuple(members) == (name,) else 'learner'} {name!r} ({algorithm})"


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
