"""Check what joint algorithms, which learn from several agents' decisions of one env step, require of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from marlflow.algorithms.algorithm import JointAlgorithm
from marlflow.base.errors import Problem
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Experiment, LearnerConfig, Policy
from marlflow.config.learners import learner_subject, learners_of, subject_of
from marlflow.env import EnvAdapter
from marlflow.matchmaking.matchmakers import matchmaker_name
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.runtime.spec import LearnerSpec

_SINGLE = "an algorithm for single policies, such as mappo or ppo"


def joint_problems(learners: Iterable[LearnerSpec]) -> Iterator[Problem]:
    """Yield why the policies of a joint learner cannot be trained together."""
    for learner in learners:
        if isinstance(learner.algorithm, JointAlgorithm):
            members = {policy.name: policy.member for policy in learner.policies}
            for problem in learner.algorithm.member_problems(members):
                yield replace(problem, subject=subject_of(learner))


def joint_stream_problems(experiment: Experiment, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why joint algorithms cannot learn in the run; `policies` are those that have agents."""
    for name, learner in learners_of(experiment, policies).items():
        if learner.algorithm.capabilities.joint:
            subject = learner_subject(name, learner.policies, learner.algorithm.name)
            yield from _environment_problems(subject, learner, experiment, adapter)
            yield from _matchmaker_problems(subject, learner, experiment)
            models = {member: policies[member].model for member in learner.policies if member in policies}
            yield from _memory_problems(subject, learner, {one: _has_memory(model) for one, model in models.items()})


def _environment_problems(
    subject: str, learner: LearnerConfig, experiment: Experiment, adapter: EnvAdapter
) -> Iterator[str]:
    name = environment_name(experiment.env)
    if not adapter.parallel:
        yield (
            f"{subject} learns from what several agents decide in one env step, and in {name}, an AEC environment, "
            f"they decide in turns; use the environment's parallel_env, or {_SINGLE}"
        )
    elif not adapter.declared:
        yield (
            f"{subject} needs a seat for each of its agents, and {name} does not declare its agents; give it "
            f"possible_agents, or use {_SINGLE}"
        )
    if learner.algorithm.capabilities.state and adapter.state_space() is None:
        yield (
            f"{subject} needs the environment's state, and {name} has no state() with a Box for its state_space; add "
            "wrappers=joint_state, or use an algorithm that needs none"
        )


def _matchmaker_problems(subject: str, learner: LearnerConfig, experiment: Experiment) -> Iterator[str]:
    if learner.algorithm.capabilities.matchmaking:
        return
    needs = f"{subject} needs the same agents in every episode"
    if experiment.league is not None:
        yield f"league: {needs}, and a league seats policies anew in each; choose league=none, or {_SINGLE}"
    elif callable(experiment.mapping):
        dealer = matchmaker_name(experiment.mapping)
        yield f"mapping: {needs}, and {dealer} seats policies anew in each; map by rules, or use {_SINGLE}"


def _memory_problems(subject: str, learner: LearnerConfig, has_memory: Mapping[str, bool]) -> Iterator[str]:
    # Algorithms that need memory, or refuse it, name each policy whose model is another.
    if learner.algorithm.capabilities.memory != "optional" or len(set(has_memory.values())) < 2:
        return
    having, lacking = (", ".join(repr(one) for one in has_memory if has_memory[one] is kind) for kind in (True, False))
    yield (
        f"{subject} needs memory in the models of all its policies, or of none: {having} has a recurrent model, and "
        f"{lacking} has none; give all gru or lstm, or all mlp or cnn"
    )


def _has_memory(model: object) -> bool:
    return isinstance(model, RecurrentTorsoConfig)
