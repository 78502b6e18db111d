"""Check what algorithms need of the environment: a state, or decisions of several agents in one env step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from marlflow.algorithms.algorithm import Algorithm, JointAlgorithm, TorchAlgorithm, critic_sees
from marlflow.base.errors import Problem
from marlflow.batches.critic_input import OWN_OBSERVATION
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Env, Experiment, LearnerConfig, Policy
from marlflow.config.policy_assignment import learner_subject, learners_of, subject_of
from marlflow.config.records import offline_records
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
    """Yield the reasons why joint algorithms cannot learn in the run; `policies` are all policies that have agents."""
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
    if offline_records(experiment.env) is not None:
        yield f"{subject} learns from joint rows, which are not recorded; use bc, marwil, dqn or sac"
    elif not adapter.parallel:
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
        yield f"league: {needs}, and a league assigns policies in each episode; choose league=none, or {_SINGLE}"
    elif callable(experiment.mapping):
        dealer = matchmaker_name(experiment.mapping)
        yield f"mapping: {needs}, and {dealer} assigns policies in each episode; map by rules, or use {_SINGLE}"


def _memory_problems(subject: str, learner: LearnerConfig, has_memory: Mapping[str, bool]) -> Iterator[str]:
    # Algorithms that need memory, or refuse it, report each policy whose model does not fit.
    if learner.algorithm.capabilities.memory != "optional" or len(set(has_memory.values())) < 2:
        return
    having, lacking = (", ".join(repr(one) for one in has_memory if has_memory[one] is kind) for kind in (True, False))
    yield (
        f"{subject} needs memory in the models of all its policies, or of none: {having} has a recurrent model, and "
        f"{lacking} has none; give all gru or lstm, or all mlp or cnn"
    )


def _has_memory(model: object) -> bool:
    return isinstance(model, RecurrentTorsoConfig)


def critic_environment_problems(env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why policies cannot learn in the environment: no state, or turns where deaths need simultaneous steps."""
    for name, policy in policies.items():
        algorithm = policy.acts_by
        subject = f"policy {name!r} ({algorithm.name})"
        # The names in critic_sees are checked with the policy's spaces; joint algorithms are checked by their learner.
        if algorithm.capabilities.state and not algorithm.capabilities.joint and adapter.state_space() is None:
            yield (
                f"{subject} needs the environment's state, and {environment_name(env)} has no state() with a Box for "
                "its state_space; add wrappers=joint_state, or use an algorithm that needs none"
            )
        if _bootstraps_at_death(algorithm) and not adapter.parallel:
            yield (
                f"{subject} cannot bootstrap at a death (bootstrap_at_death) in {environment_name(env)}, an AEC "
                "environment: its agents decide in turns, so there is no value of all survivors right after a death; "
                "set bootstrap_at_death=false, or use the environment's parallel_env"
            )


def recorded_critic_problems(policies: Mapping[str, Policy], recorded: Collection[str]) -> Iterator[str]:
    """Yield why policies cannot learn from records, which have neither states nor other agents."""
    for name in recorded:
        algorithm = policies[name].acts_by
        settings = {
            "critic_sees": critic_sees(algorithm) != OWN_OBSERVATION,
            "bootstrap_at_death": _bootstraps_at_death(algorithm),
        }
        for setting in (setting for setting, is_set in settings.items() if is_set):
            yield (
                f"policy {name!r} ({algorithm.name}) learns from records, which have only what its agents saw; leave "
                f"algorithm.{setting} at its default"
            )


def _bootstraps_at_death(algorithm: Algorithm) -> bool:
    return isinstance(algorithm, TorchAlgorithm) and algorithm.bootstrap_at_death
