"""Check that a policy can act in its spaces, that its network can be built, and that it can adapt to tasks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any

import torch

from marlflow.algorithms.algorithm import Algorithm, LearningAlgorithm, critic_problems, critic_sees
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid, Problem, ProblemKind
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION
from marlflow.config.experiment import LearnerConfig, Policy
from marlflow.config.renamed import renamed_hooks
from marlflow.config.settings import setting_problems
from marlflow.env.episode_location import raised
from marlflow.policy.adapted import AdaptingActor
from marlflow.policy.tensors import parameters_of
from marlflow.policy.torso import build_torso
from marlflow.runtime.spec import RunSpec

_MOST_NAMED = 3


def all_policy_problems(
    policies: Mapping[str, Policy],
    learners: Mapping[str, LearnerConfig],
    spaces: Mapping[str, Spaces],
    agents: Mapping[str, Sequence[str]],
) -> Iterator[Problem | str]:
    """Yield why policies cannot act in their `spaces` as their `agents`, or cannot be built.

    A problem of all policies of a learner is reported once, for the learner.
    """
    team_of = {name: key for key, learner in learners.items() for name in learner.policies if len(learner.policies) > 1}
    found: dict[str, list[tuple[str, Problem | str]]] = {}
    for name in (name for name in spaces if name in policies):
        algorithm, team = policies[name].acts_by.name, team_of.get(name)
        subject = f"policy {name!r}{f' of learner {team!r}' if team else ''} ({algorithm})"
        problems = policy_problems(subject, policies[name], spaces[name], agents[name], team)
        found[name] = [(subject, problem) for problem in problems]
    for name, of_policy in found.items():
        team = team_of.get(name)
        others = [found[one] for one in learners[team].policies if one in found and one != name] if team else []
        for subject, problem in of_policy:
            bare = _with_subject(problem, subject, "")
            shared = others and all(any(_with_subject(p, s, "") == bare for s, p in other) for other in others)
            if not shared:
                yield problem
            elif next(one for one in found if team_of.get(one) == team) == name:
                yield _with_subject(problem, subject, f"learner {team!r} ({policies[name].acts_by.name})")


def _with_subject(problem: Problem | str, subject: str, new: str) -> Problem | str:
    return f"{new}{problem.removeprefix(subject)}" if isinstance(problem, str) else replace(problem, subject=new)


def policy_problems(
    subject: str, policy: Policy, spaces: Spaces, players: Sequence[str], team: str | None
) -> Iterator[Problem | str]:
    """Yield why a policy cannot act in `spaces` as `players`, or cannot be built.

    `team` is its learner, if that trains several policies.
    """
    algorithm = policy.acts_by
    acts = True
    try:
        found = list(algorithm.validate(spaces, policy.model) or ())
    except Exception as error:  # noqa: BLE001  an algorithm of the user's own may raise anything
        yield f"{subject}: its validate() fails: {raised(error)}"
        return
    if algorithm.capabilities.learns:
        yield from (f"{subject}: {problem}" for problem in _schedule_problems(algorithm))
    for problem in [*renamed_hooks(algorithm), *found]:
        # Algorithms of users may yield plain sentences.
        if isinstance(problem, str):
            yield f"{subject}: {problem}"
            continue
        full_problem = replace(problem, subject=subject)
        if problem.kind is ProblemKind.CANNOT_ACT:
            acts = False
            full_problem = replace(full_problem, says=f"{problem.says} of agent {players[0]!r}")
            if remedy := _remedy(policy, spaces, team):
                full_problem = replace(full_problem, reason="", remedy=remedy)
        yield full_problem
    if unplayable := spaces.problems():
        yield from (f"{subject} cannot play agent {players[0]!r}: {problem}" for problem in unplayable)
    # With invalid settings, building a network could fail or take any amount of memory.
    elif not any(setting_problems(policy)) and not any(critic_problems(algorithm, spaces)):
        yield from (f"{subject}: {problem}" for problem in _parts_problems(policy, spaces, acts))


def _schedule_problems(algorithm: Any) -> Iterator[str]:
    try:
        values = algorithm.schedules(0)
    except Exception as error:  # noqa: BLE001  an algorithm of the user's own may raise anything
        yield f"its schedules() fails: {raised(error)}"
        return
    if not isinstance(values, Mapping):
        yield f"its schedules() returned a {type(values).__name__}, and no mapping of names to numbers"
        return
    for name, value in values.items():
        if not isinstance(value, Real) or math.isnan(value):
            yield f"its schedules() has {name}={value!r}, which is no number"


def _remedy(policy: Policy, spaces: Spaces, team: str | None) -> str:
    fitting = _alternatives(policy, spaces)
    joint = [candidate.name for candidate in fitting if candidate.capabilities.joint]
    others = [candidate.name for candidate in fitting if not candidate.capabilities.joint]
    if team is not None and joint:
        return f"use {_listed(joint[:_MOST_NAMED])}"
    single = list(dict.fromkeys([*others[:_MOST_NAMED], *(["ppo"] if "ppo" in others else [])]))
    if not single:
        return ""
    return (
        f"use {_listed(single)}" if team is None else f"take it out of learners.{team}.policies for {_listed(single)}"
    )


def _listed(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def _alternatives(policy: Policy, spaces: Spaces) -> list[Algorithm]:
    """Return the shipped algorithms that can act in `spaces`, the most similar first."""
    wanted = policy.acts_by.capabilities
    candidates = [candidate for candidate in SHIPPED if not candidate.validate(spaces, policy.model)]
    candidates.sort(
        key=lambda candidate: (
            candidate.capabilities.replay != wanted.replay,
            candidate.capabilities.experience != wanted.experience,
        )
    )
    return candidates


def _parts_problems(policy: Policy, spaces: Spaces, acts: bool) -> Sequence[str]:
    try:
        if policy.acts_by.capabilities.learns:
            torso = functools.partial(build_torso, spaces, policy.model, torch.Generator().manual_seed(0))
            actor = functools.partial(policy.acts_by.actor, spaces, policy.model, 0)
            builds: list[Callable[[], Any]] = [actor if acts else torso]
            if (
                acts
                and isinstance(policy.acts_by, LearningAlgorithm)
                and critic_sees(policy.acts_by) != OWN_OBSERVATION
            ):
                # A central critic sees other columns than the actor, which the model may not fit.
                builds.append(functools.partial(policy.acts_by.network, spaces, policy.model, 0))
            for build in builds:
                # Counting builds the network without memory; only one that needs memory is built a second time.
                if parameters_of(build) is None:
                    build()
        elif acts:
            policy.acts_by.actor(spaces, policy.model, 0)
    except ConfigInvalid as error:
        return error.problems
    except Exception as error:  # noqa: BLE001  build() of a model of the user's own may raise anything
        return [f"its network ({type(policy.model).__name__}) cannot be built: {raised(error)}"]
    return ()


def adaptation_problems(spec: RunSpec, has_tasks: bool) -> Iterator[str]:
    """Yield why a policy cannot adapt, or cannot act at all.

    `has_tasks` is whether the environment has tasks.
    """
    for name in spec.learning:
        policy = spec.policies[name]
        subject = f"policy {name!r} ({policy.algorithm.name})"
        try:
            actor = policy.actor()
        except Exception as error:  # noqa: BLE001  a network of the user's own may raise anything
            yield f"{subject}: what acts cannot be made: {raised(error)}"
            continue
        if not isinstance(actor, AdaptingActor):
            continue
        # One phase for each step of adaptation, and one that acts with the adapted parameters.
        phases = 1 + actor.inner_steps
        if policy.algorithm.capabilities.tasks and not has_tasks:
            yield (
                f"{subject} adapts to tasks, and the environment has none; take a family of them, such as "
                'env=cartpole_family, or say so of your own by metadata["tasks"] = True, if its reset takes '
                'options={"task": n}; or use ppo'
            )
        if spec.ticks < phases:
            # Env steps of all phases over the envs of one worker, rounded up.
            least = -(-phases * spec.num_envs // spec.num_workers)
            yield (
                f"{subject} adapts in {phases} phases of a collect, but an env takes {spec.ticks} env steps in one; "
                f"raise rollouts.fragment_env_steps to at least {least}, better to {phases} whole episodes of each"
            )
        if spec.inference is not None:
            yield (
                f"{subject} adapts on the rollout workers, each env apart, so no inference actor can act for it; "
                "set placement.inference=null"
            )
