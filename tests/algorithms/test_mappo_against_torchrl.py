"""MAPPO's estimates, loss and gradients equal torchrl's MultiAgentGAE and MAPPOLoss, recorded by
benchmarks/peers/torchrl_mappo.py with torchrl 0.14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU

RECORDED = dict(np.load(Path(__file__).with_name("torchrl_mappo.npz")))
DISCOUNT, GAE_LAMBDA = 0.97, 0.9
ENVS, STEPS, AGENTS, OBS = RECORDED["input/obs"].shape
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}


def given(name: str) -> Array:
    return RECORDED[f"input/{name}"]


def learner(value_clip_range: float | None = None) -> mf.TorchLearner:
    """With torchrl's weights."""
    algorithm = mf.MAPPO(
        clip_range=0.2,
        value_clip_range=value_clip_range,
        value_coefficient=0.5,
        entropy_coefficient=0.02,
        parts={"values": None},
    )
    state = gym.Box(-np.inf, np.inf, given("state").shape[3:], np.float32)
    actions = gym.Discrete(given("mask").shape[-1])
    spaces = Spaces(gym.Box(-np.inf, np.inf, (OBS,)), actions, True, state, AGENTS)
    made = algorithm.learner("team", {"team": mf.Member(spaces, mf.MLP((6,)))}, 0, ON_CPU)
    with torch.no_grad():
        for parameter, (_, array) in zip(parameters(made), torchrls("weight/actor/", "weight/critic/"), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return made


def parameters(learner: mf.TorchLearner) -> list[torch.nn.Parameter]:
    """First the actor's parameters, then the critic's: weight and bias of each layer, as torchrl's by name."""
    module: Any = learner.module
    return [p for part in (module.actor, module.critic_torso, module.critic_head) for p in part.parameters()]


def torchrls(*prefixes: str) -> list[tuple[str, Array]]:
    """Recorded arrays, by layer, weights before biases."""
    found = []
    for prefix in prefixes:
        names = sorted(name for name in RECORDED if name.startswith(prefix))
        found += sorted(names, key=lambda name: (name.rpartition(".")[0], name.endswith("bias")))
    return [(name, RECORDED[name]) for name in found]


def batch() -> tuple[mf.Batch, Array]:
    """The recorded episodes as segments, and each row's position [rows, 3] in the recorded arrays."""
    positions: list[tuple[int, int, int]] = []
    segments: dict[str, list[Any]] = {
        name: [] for name in ("length", "terminated", "truncated", "agent", "bootstrap_obs", "bootstrap_state")
    }
    for env in range(ENVS):
        for agent in range(AGENTS):
            first = 0
            for t in range(STEPS):
                at = (env, t, agent)
                positions.append(at)
                ends = [bool(given(name)[at]) for name in ("terminated", "truncated")]
                if any(ends) or t == STEPS - 1:
                    bootstraps = given("next_obs")[at], given("next_state")[at]
                    for name, value in zip(segments, (t + 1 - first, *ends, agent, *bootstraps), strict=True):
                        segments[name].append(value)
                    first = t + 1
    where = np.array(positions)
    names = {"obs": "obs", "state": "state", "action": "action", "mask": "action_mask", "reward": "reward"}
    columns = {ours: given(theirs)[tuple(where.T)] for theirs, ours in names.items()}
    columns["behavior_logp"] = given("behavior_logp")[tuple(where.T)]
    columns["version"] = np.zeros(len(where), np.int64)
    return mf.Batch(columns, {name: np.array(column) for name, column in segments.items()}), where


def test_values_advantages_and_targets() -> None:
    rows, where = batch()
    estimated = mf.Advantages(DISCOUNT, GAE_LAMBDA)(rows, learner())  # type: ignore[arg-type]
    for ours, theirs in {"value": "state_value", "advantage": "advantage", "value_target": "value_target"}.items():
        expected = RECORDED[f"estimate/{theirs}"][tuple(where.T)]
        np.testing.assert_allclose(estimated.columns[ours], expected, **TOLERANCE)


@pytest.mark.parametrize(("case", "value_clip_range"), [("plain", None), ("clipped", 0.1)])
def test_terms_and_every_gradient(case: str, value_clip_range: float | None) -> None:
    made = learner(value_clip_range)
    rows, where = batch()
    estimated = mf.Advantages(DISCOUNT, GAE_LAMBDA)(rows, made)  # type: ignore[arg-type]
    # Rows of an older critic, so that clipping has an effect.
    value = estimated.columns["value"] + given("old_value_noise")[tuple(where.T)]
    older = mf.EstimatedBatch({**estimated.columns, "value": value}, estimated.segments)
    minibatch = {name: torch.from_numpy(column) for name, column in older.columns_for_losses().items()}
    loss = made.parameters.groups[0].loss
    assert isinstance(loss, mf.PPOLoss)
    made.parameters.flat.gradient.zero_()
    total, terms, *_ = loss(made.module, None, minibatch)
    total.backward()
    expected = {name: float(RECORDED[f"{case}/term/loss_{name}"]) for name in ("objective", "critic", "entropy")}
    found = {
        "objective": float(terms["policy"]),
        "critic": 0.5 * float(terms["value"]),
        "entropy": -0.02 * float(terms["entropy"]),
    }
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-5)
    gradients = torchrls(f"{case}/grad/actor", f"{case}/grad/critic")
    assert len(gradients) == 8
    for parameter, (name, gradient) in zip(parameters(made), gradients, strict=True):
        assert parameter.grad is not None
        assert np.abs(gradient).max() > 1e-4, name
        np.testing.assert_allclose(parameter.grad.numpy(), gradient, err_msg=name, **TOLERANCE)
