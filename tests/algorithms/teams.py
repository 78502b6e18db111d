"""Parts for tests of mixers: a team of two policies with other spaces, and random JointTransitions of it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces as gym
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.mixing_loss import MixingLoss
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU

STATE = gym.Box(-np.inf, np.inf, (5,), np.float32)
SCOUT = Spaces(gym.Box(-1.0, 1.0, (3,), np.float32), gym.Discrete(4), True, STATE, 4, (0, 2))
CARRIER = Spaces(gym.Box(-1.0, 1.0, (2, 2), np.float32), gym.Discrete(2), False, STATE, 4, (3,))
TEAM = {"scout": mf.Member(SCOUT, mf.MLP((6,))), "carrier": mf.Member(CARRIER, mf.MLP((5,), "relu"))}
SEATS = 3


def team_rows(rows: int = 32, seed: int = 0, members: Mapping[str, mf.Member] = TEAM) -> dict[str, Array]:
    """Random columns of JointTransitions, with absent seats, illegal actions, and terminations of seats and team."""
    random = np.random.default_rng(seed)
    columns: dict[str, Array] = {
        "reward": random.standard_normal(rows),
        "discount": np.where(random.random(rows) < 0.2, 0.0, 0.9),
        "weight": random.random(rows).astype(np.float32) + 0.5,
        "version": np.zeros(rows, np.int64),
        "row_id": np.arange(rows),
        **{name: random.standard_normal((rows, *STATE.shape)).astype(np.float32) for name in ("state", "next_state")},
    }
    for policy, member in members.items():
        spaces = member.spaces
        shape = (rows, len(spaces.seats))
        present = random.random(shape) < 0.8
        own: dict[str, Array] = {
            "present": present,
            # A seat may be taken later, too.
            "next_present": (random.random(shape) < 0.7) & (columns["discount"] > 0)[:, None],
            "action": random.integers(0, spaces.num_actions, shape),
            "reward": random.standard_normal(shape),
        }
        for name in ("obs", "next_obs"):
            own[name] = random.standard_normal((*shape, *spaces.obs_shape)).astype(spaces.obs_dtype)
        if spaces.masked:
            for name in ("action_mask", "next_mask"):
                own[name] = random.random((*shape, spaces.num_actions)) < 0.5
                # At least one action is legal.
                np.put_along_axis(own[name], own["action"][..., None], True, -1)
        own["terminated"] = present & ~own["next_present"]
        for name, column in own.items():
            # Where a seat is absent, all is zero.
            where = own["next_present" if name.startswith("next_") else "present"]
            column[~where] = 0
            columns[f"{policy}:{name}"] = column
    return columns


def tensors(columns: Mapping[str, Array]) -> dict[str, Tensor]:
    return {
        name: torch.from_numpy(column) for name, column in mf.JointTransitions(columns).columns_for_losses().items()
    }


def team_learner(algorithm: mf.VDN, members: Mapping[str, mf.Member] = TEAM, seed: int = 0) -> mf.TorchLearner:
    """A learner of large parameters, which differ from its target's."""
    learner = algorithm.learner("team", members, seed, ON_CPU)
    noise = np.random.default_rng(seed + 3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.3)
    return learner


def loss_of(learner: mf.TorchLearner) -> MixingLoss:
    loss = learner.parameters.groups[0].loss
    assert isinstance(loss, MixingLoss)
    return loss


def gradient_of(learner: mf.TorchLearner, minibatch: Mapping[str, Tensor]) -> tuple[mf.LossTerms, Array]:
    """The result of a loss, and the gradient by all parameters."""
    parameters = learner.parameters
    parameters.flat.gradient.zero_()
    terms = parameters.groups[0].loss(learner.module, parameters.target_module, minibatch)
    terms.total.backward()
    return terms, parameters.flat.gradient.numpy().copy()
