"""Find and check the learners of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace

from marlflow.algorithms.algorithm import JointAlgorithm, Member
from marlflow.base.near import meant
from marlflow.base.problems import Problem
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.runtime.spec import LearnerSpec

_OF_LEARNERS = ("placement", "stop", "queue_fragments")


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
        if key in experiment.policies and list(learner.policies) != [key]:
            yield (
                f"{path} has the name of policy {key!r}, which is not its only one; give the learner another name, "
                f"such as {'_and_'.join(learner.policies)}"
            )
        yield from _member_problems(experiment, path, learner)
    for path, algorithm, placement in experiment.all_learners():
        if algorithm.capabilities.joint and placement.stages:
            yield f"{path}.placement.stages must be null: the stages of {algorithm.name} see joint rows, at its learner"


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
            yield (
                f"policies.{name}.experience must be null: {path} ({learner.algorithm.name}) learns from joint rows, "
                "which are not recorded"
            )


def joint_problems(learners: Iterable[LearnerSpec]) -> Iterator[Problem]:
    """Yield why the policies of a joint learner cannot be trained together."""
    for learner in learners:
        if isinstance(learner.algorithm, JointAlgorithm):
            members = {policy.name: Member(policy.spaces, policy.model) for policy in learner.policies}
            for problem in learner.algorithm.member_problems(members):
                yield replace(problem, subject=subject_of(learner))


def unplayed_problems(experiment: Experiment, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield a problem for each policy of a learner that has no agents."""
    for key, learner in experiment.learners.items():
        for name in dict.fromkeys(learner.policies):
            if name not in policies:
                yield f"learners.{key}.policies: no agent is played by a policy {name!r}" + meant(
                    name, policies, "the policies are"
                )


def subject_of(spec: LearnerSpec) -> str:
    """Name a learner in errors: by its policy, if that learns alone."""
    # Most users never write `learners`, so errors name the policy.
    kind = "policy" if spec.members == (spec.name,) else "learner"
    return f"{kind} {spec.name!r} ({spec.algorithm.name})"
