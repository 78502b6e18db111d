"""Parts for tests of joint actor-critics: a team of two policies, its rows, and what plain loops make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from tests.algorithms.parts import forward, terms_of_step

ROWS, STATE = 7, 4
LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32)
SEATS = {"scout": 2, "archer": 1}
OBS = {"scout": 2, "archer": 3}
CHOICES = 3
STATE_SPACE = gym.Box(-np.inf, np.inf, (STATE,), np.float32)
SCOUT = Spaces(gym.Box(-1.0, 1.0, (2,), np.float32), gym.Discrete(CHOICES), True, STATE_SPACE, 3, (0, 2))
ARCHER = Spaces(gym.Box(-1.0, 1.0, (3,), np.float32), gym.Box(LOW, HIGH), False, STATE_SPACE, 3, (1,))
TEAM = {"scout": mf.Member(SCOUT, mf.MLP((5,))), "archer": mf.Member(ARCHER, mf.MLP((4,)))}


def team_learner(algorithm: Any, members: Mapping[str, mf.Member] = TEAM, seed: int = 0) -> mf.TorchLearner:
    """A learner whose parameters differ from its target's, so that it shows which network is asked."""
    learner: mf.TorchLearner = algorithm.learner("team", members, seed, ON_CPU)
    noise = np.random.default_rng(3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.4)
    return learner


def masks(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Legal actions, at least one everywhere."""
    mask = rng.random((*shape, CHOICES)) < 0.5
    np.put_along_axis(mask, rng.integers(0, CHOICES, (*shape, 1)), True, -1)
    return mask


def team_rows(seed: int = 7) -> dict[str, Array]:
    """Columns of JointTransitions: absent agents, agents that terminated, joined, or were truncated alone."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Array] = {
        "state": rng.standard_normal((ROWS, STATE)).astype(np.float32),
        "next_state": rng.standard_normal((ROWS, STATE)).astype(np.float32),
        "reward": rng.standard_normal(ROWS).astype(np.float32),
        "discount": np.full(ROWS, 0.9, np.float32),
        "weight": rng.uniform(0.2, 1.0, ROWS).astype(np.float32),
        "row_id": np.arange(ROWS),
        "version": np.zeros(ROWS, np.int64),
    }
    for policy, seats in SEATS.items():
        shape = (ROWS, seats)
        present = rng.random(shape) < 0.75
        terminated = present & (rng.random(shape) < 0.3)
        following = ~terminated & (rng.random(shape) < 0.8)
        own: dict[str, Array] = {
            "present": present,
            "terminated": terminated,
            "next_present": following,
            "obs": rng.standard_normal((*shape, OBS[policy])).astype(np.float32),
            "next_obs": rng.standard_normal((*shape, OBS[policy])).astype(np.float32),
            "reward": (3.0 * rng.standard_normal(shape)).astype(np.float32),
        }
        if policy == "scout":
            own |= {"action_mask": masks(rng, shape), "next_mask": masks(rng, shape)}
            own["action"] = own["action_mask"].argmax(-1)
        else:
            own["action"] = rng.uniform(LOW, HIGH, (*shape, 2)).astype(np.float32)
        for name, column in own.items():
            here = following if name.startswith("next_") else present
            column[~here] = 0
            columns[f"{policy}:{name}"] = column
    return columns


def transitions(columns: Mapping[str, Array]) -> mf.JointTransitions:
    return mf.JointTransitions(dict(columns))


def minibatch_of(columns: Mapping[str, Array], noise: Array | None = None) -> dict[str, torch.Tensor]:
    made = {name: torch.from_numpy(c) for name, c in transitions(columns).columns_for_losses().items()}
    return made if noise is None else {**made, "noise": torch.from_numpy(noise)}


def terms_and_gradients(
    learner: mf.TorchLearner, minibatch: Mapping[str, torch.Tensor]
) -> tuple[dict[str, float], Array]:
    """The terms of all loss groups, none of which has learned, and the gradients of each by its own parameters."""
    learner.parameters.flat.gradient.zero_()
    terms = terms_of_step(learner, lambda group: minibatch)
    return terms, learner.parameters.flat.gradient.numpy().copy()


# -- plain loops ----------------------------------------------------------------------------------------------------


def outputs(module: Any, policy: str, obs: Array) -> Array:
    """An actor's output for one observation, before a tanh or a softmax."""
    return forward(module, f"actors.{policy}.torso", f"actors.{policy}.head", obs[None])[0]


def values(module: Any, policy: str, critic: int, row: list[float]) -> Array:
    """A critic's output for one row."""
    names = (f"critics.{policy}.torsos.{critic}", f"critics.{policy}.heads.{critic}")
    return forward(module, *names, np.array([row]))[0]


def softmax(logits: Array, legal: Array) -> Array:
    weights = np.where(legal, np.exp(logits - logits[legal].max()), 0.0)
    return weights / weights.sum()


def one_hot(action: int) -> list[float]:
    return [float(action == other) for other in range(CHOICES)]


def taken(columns: Mapping[str, Array], policy: str, row: int, seat: int) -> list[float]:
    """A stored action as critics see it; zeros where the agent is absent."""
    action = columns[f"{policy}:action"][row, seat]
    numbers = one_hot(action) if policy == "scout" else list((action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2))
    return numbers if columns[f"{policy}:present"][row, seat] else [0.0] * len(numbers)


def critic_row(
    columns: Mapping[str, Array],
    row: int,
    policy: str,
    seat: int,
    actions: Mapping[tuple[str, int], list[float]],
    sees: str = "observations",
    prefix: str = "",
) -> list[float]:
    """The critic's input for one agent."""
    found: list[float] = []
    if sees == "state":
        found += list(columns[f"{prefix}state"][row])
    else:
        for other, seats in SEATS.items():
            for s in range(seats):
                found += list(columns[f"{other}:{prefix}obs"][row, s])
    for other, seats in SEATS.items():
        for s in range(seats):
            found += actions.get((other, s), [])
    for other, seats in SEATS.items():
        found += [float(columns[f"{other}:{prefix}present"][row, s]) for s in range(seats)]
    return found + ([float(s == seat) for s in range(SEATS[policy])] if SEATS[policy] > 1 else [])


def trained_seats(columns: Mapping[str, Array], policy: str, row: int) -> list[int]:
    """The present agents whose return is known, or has a value that follows."""
    p = policy
    return [
        s
        for s in range(SEATS[p])
        if columns[f"{p}:present"][row, s]
        and (columns[f"{p}:terminated"][row, s] or columns[f"{p}:next_present"][row, s])
    ]


def mean(numbers: list[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0


def gumbel(z: float) -> float:
    return -math.log(-math.log(0.5 * math.erfc(-float(z) / math.sqrt(2.0))))
