"""Parts for tests of algorithms with several losses: rows, terms of all parts, critics by plain loops, a bandit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from tests.algorithms.parts import DISCRETE, NUM_ACTIONS, forward, terms_of_step

ROWS = 9
LOW, HIGH = np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32)
BOX = Spaces(DISCRETE.observation, gym.Box(LOW, HIGH))


def transitions(spaces: Spaces) -> mf.Transitions:
    rng = np.random.default_rng(7)
    discount = rng.choice([0.0, 0.81, 0.9], ROWS).astype(np.float32)
    masks = []
    for _ in range(2):
        mask = rng.random((ROWS, NUM_ACTIONS)) < 0.5
        mask[np.arange(ROWS), rng.integers(0, NUM_ACTIONS, ROWS)] = True
        masks.append(mask)
    masks[1][discount == 0.0] = False  # nothing follows, so nothing is legal there
    box = isinstance(spaces.action, gym.Box)
    return mf.Transitions(
        obs=rng.standard_normal((ROWS, 2)).astype(np.float32),
        action=rng.uniform(LOW, HIGH, (ROWS, 2)).astype(np.float32) if box else masks[0].argmax(1),
        reward=(3.0 * rng.standard_normal(ROWS)).astype(np.float32),
        discount=discount,
        next_obs=rng.standard_normal((ROWS, 2)).astype(np.float32),
        weight=rng.uniform(0.2, 1.0, ROWS).astype(np.float32),
        row_id=np.arange(ROWS),
        action_mask=masks[0] if spaces.masked else None,
        next_mask=masks[1] if spaces.masked else None,
    )


def apart(learner: mf.TorchLearner) -> mf.TorchLearner:
    """Parameters that differ from the target's, so that it shows which network is asked."""
    noise = np.random.default_rng(3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.3)
    return learner


def found(learner: mf.TorchLearner, drawn: mf.Transitions, noise: Array) -> dict[str, float]:
    """The terms of all loss groups, none of which has learned."""
    names = ("obs", "action", "reward", "discount", "next_obs", "weight", "action_mask", "next_mask")
    columns = {name: column for name in names if (column := getattr(drawn, name)) is not None}
    minibatch = {name: torch.from_numpy(column) for name, column in {**columns, "noise": noise}.items()}
    return terms_of_step(learner, lambda group: minibatch)


def naive_q(module: Any, obs: Array, action: Array | None, critics: int = 2) -> Array:
    """Values of all critics, [K, N, A], or [K, N, 1] of an action in [-1, 1]."""
    seen = obs if action is None else np.concatenate([obs, action], 1)
    torso = "critics.torsos.{}" if action is None else "critics.joins.{}.torso"
    return np.stack([forward(module, torso.format(k), f"critics.heads.{k}", seen) for k in range(critics)])


def within(action: Array) -> Array:
    """Actions in the coordinates in which the Box is [-1, 1]."""
    found: Array = (action - (LOW + HIGH) / 2) / ((HIGH - LOW) / 2)
    return found


def bandit(config: Any, spaces: Spaces, draw: Callable[[Any], tuple[Array, Array]], updates: int) -> mf.TorchLearner:
    """A learner of a task with one decision, whose reward `draw` gives with random actions."""
    learner: mf.TorchLearner = config.learner("hunter", {"hunter": mf.Member(spaces, mf.MLP((16,)))}, 0, ON_CPU)
    rng, rows = np.random.default_rng(0), 64
    obs = np.full((rows, 2), 0.3, np.float32)
    for _ in range(updates):
        action, reward = draw(rng)
        zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        learner.update(mf.Transitions(obs, action, reward, zeros, obs, ones, np.arange(rows)))
    return learner
