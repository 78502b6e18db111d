"""Check that a policy can act in its spaces, and that its network can be built."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from marlflow.algorithms.algorithm import critic_problems
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import ConfigInvalid
from marlflow.base.problems import Problem, ProblemKind
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Policy
from marlflow.config.memory import parameters_of
from marlflow.config.renamed import renamed_hooks
from marlflow.config.settings import setting_problems
from marlflow.env.frames import raised
from marlflow.policy.torso import build_torso

_MOST_NAMED = 3


def policy_problems(name: str, policy: Policy, spaces: Spaces, players: Sequence[str]) -> Iterator[Problem | str]:
    """Yield why a policy cannot act in `spaces` as `players`, or cannot be built."""
    algorithm = policy.acts_by
    subject = f"policy {name!r} ({algorithm.name})"
    acts = True
    for problem in [*renamed_hooks(algorithm), *algorithm.validate(spaces, policy.model)]:
        # Algorithms of users may yield plain sentences.
        if isinstance(problem, str):
            yield f"{subject}: {problem}"
            continue
        full_problem = replace(problem, subject=subject)
        if problem.kind is ProblemKind.CANNOT_ACT:
            acts = False
            full_problem = replace(full_problem, says=f"{problem.says} of agent {players[0]!r}")
            if others := _alternatives(policy, spaces):
                use = " or ".join(filter(None, [", ".join(others[:-1]), *others[-1:]]))
                full_problem = replace(full_problem, reason="", remedy=f"use {use}")
        yield full_problem
    if unplayable := spaces.problems():
        yield from (f"{subject} cannot play agent {players[0]!r}: {problem}" for problem in unplayable)
    # With invalid settings, building a network could fail or take any amount of memory.
    elif not any(setting_problems(policy)) and not any(critic_problems(algorithm, spaces)):
        yield from (f"{subject}: {problem}" for problem in _parts_problems(policy, spaces, acts))


def _alternatives(policy: Policy, spaces: Spaces) -> list[str]:
    wanted = policy.acts_by.capabilities
    candidates = [candidate for candidate in SHIPPED if not candidate.validate(spaces, policy.model)]
    candidates.sort(
        key=lambda candidate: (
            candidate.capabilities.replay != wanted.replay,
            candidate.capabilities.experience != wanted.experience,
        )
    )
    names = [candidate.name for candidate in candidates]
    return list(dict.fromkeys([*names[:_MOST_NAMED], *(["ppo"] if "ppo" in names else [])]))


def _parts_problems(policy: Policy, spaces: Spaces, acts: bool) -> Sequence[str]:
    try:
        if policy.acts_by.capabilities.learns:
            torso = functools.partial(build_torso, spaces, policy.model, torch.Generator().manual_seed(0))
            actor = functools.partial(policy.acts_by.actor, spaces, policy.model, 0)
            build = actor if acts else torso
            # Counting builds the network without memory; only a network that needs memory is built a second time.
            if parameters_of(build) is None:
                build()
        elif acts:
            policy.acts_by.actor(spaces, policy.model, 0)
    except ConfigInvalid as error:
        return error.problems
    except Exception as error:  # noqa: BLE001  build() of a model of the user's own may raise anything
        return [f"its network ({type(policy.model).__name__}) cannot be built: {raised(error)}"]
    return ()
