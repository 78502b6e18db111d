"""Find and check the learners of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from marlflow.base.sentences import meant
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.runtime.spec import LearnerSpec

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
