"""Losses and every gradient of MADDPG, MATD3 and MASAC equal torchrl's DDPGLoss, TD3Loss, SACLoss and
DiscreteSACLoss with critics of all agents' actions, recorded by benchmarks/peers/torchrl_joint_critics.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
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
from tests.algorithms.parts import terms_of_step

RECORDED = dict(np.load(Path(__file__).with_name("torchrl_joint_critics.npz")))
ROWS, AGENTS, OBS = RECORDED["input/obs"].shape
DISCOUNT, TEMPERATURE = 0.9, 0.2
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SMOOTHING = {"target_noise": 0.3, "target_noise_clip": 0.4}
SOFT: dict[str, Any] = {"discount": DISCOUNT, "initial_temperature": TEMPERATURE}
CASES = {
    "ddpg": mf.MADDPG(discount=DISCOUNT),
    "td3": mf.MATD3(discount=DISCOUNT, **SMOOTHING),
    "sac": mf.MASAC(**SOFT),
    "discrete_sac": mf.MASAC(**SOFT, target_entropy=0.7),
}


def given(name: str) -> Array:
    return RECORDED[f"input/{name}"]


def is_discrete(case: str) -> bool:
    return case == "discrete_sac"


def pairs(module: Any, part: str) -> Iterator[tuple[str, int | None, torch.nn.Parameter]]:
    """torchrl's name, the critic (None: of the actor), and our parameter."""
    if part == "actor":
        actor = module.actors["team"]
        layers = {"torso": actor.torso.layers[0], "head": actor.head}
        yield from (
            (f"{name}.{kind}", None, getattr(layer, kind))
            for name, layer in layers.items()
            for kind in ("weight", "bias")
        )
        return
    critics = module.critics["team"]
    for number, (torso, head) in enumerate(zip(critics.torsos, critics.heads, strict=True)):
        layers = {"torso": torso.layers[0], "head": head}
        yield from (
            (f"{name}.{kind}", number, getattr(layer, kind))
            for name, layer in layers.items()
            for kind in ("weight", "bias")
        )


def theirs(case: str, kind: str, part: str, name: str, number: int | None, shape: torch.Size) -> Array:
    (key,) = [key for key in RECORDED if key.startswith(f"{case}/{kind}/{part}/") and key.endswith(name)]
    found = RECORDED[key]
    array: Array = found[number] if number is not None and found.ndim > len(shape) else found
    assert array.shape == tuple(shape)
    return array


def learner_of(case: str) -> mf.TorchLearner:
    """With torchrl's weights."""
    action = gym.Discrete(5) if is_discrete(case) else gym.Box(-1.0, 1.0, (2,))
    spaces = Spaces(gym.Box(-np.inf, np.inf, (OBS,)), action, seats=(0, 1, 2))
    made = CASES[case].learner("team", {"team": mf.Member(spaces, mf.MLP((6,)))}, 0, ON_CPU)
    copied = {made.module: "", made.parameters.target_module: "target_"}
    with torch.no_grad():
        for module, prefix in copied.items():
            for part in ("actor", "critics"):
                if prefix and part == "actor" and "sac" in case:
                    continue
                for name, number, parameter in pairs(module, part):
                    array = theirs(case, "weight", f"{prefix}{part}", name, number, parameter.shape)
                    parameter.copy_(torch.from_numpy(array))
    return made


def minibatch(case: str) -> dict[str, torch.Tensor]:
    action = given("discrete_action" if is_discrete(case) else "box_action")
    following = given("following")[..., 0].astype(bool)
    columns = {
        "team:obs": given("obs"),
        "team:next_obs": given("next_obs"),
        "team:action": action,
        "team:reward": given("reward")[..., 0],
        "team:terminated": given("terminated")[..., 0],
        "team:present": np.ones((ROWS, AGENTS), bool),
        "team:next_present": following,
        "weight": np.ones(ROWS, np.float32),
    }
    noise = given("discrete_noise" if is_discrete(case) else "noise")
    if case == "td3":
        noise = noise[..., :2]
    columns["noise"] = noise.reshape(ROWS, -1)
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("case", CASES)
def test_losses_and_every_gradient(case: str) -> None:
    learner, rows = learner_of(case), minibatch(case)
    learner.parameters.flat.gradient.zero_()
    terms = terms_of_step(learner, lambda group: rows)
    # torchrl's squared errors have no factor of a half.
    factors = {"critics": 0.5, "actor": 1.0}
    for name, factor in factors.items():
        assert terms[name] == pytest.approx(factor * float(RECORDED[f"{case}/term/{name}"]), rel=1e-5, abs=1e-5)
        for layer, number, parameter in pairs(learner.module, name):
            expected = factor * theirs(case, "grad", name, layer, number, parameter.shape)
            assert parameter.grad is not None
            assert np.abs(expected).max() > 1e-4, layer
            np.testing.assert_allclose(parameter.grad.numpy(), expected, err_msg=f"{name} {layer}", **TOLERANCE)
    if "sac" in case:
        assert terms["entropy"] == pytest.approx(float(RECORDED[f"{case}/term/entropy"]), rel=1e-5, abs=1e-5)
        assert terms["temperature"] == pytest.approx(math.exp(math.log(TEMPERATURE)))
        gradient = float(learner.module.tempered("team").log_temperature.grad)
        assert gradient == pytest.approx(float(RECORDED[f"{case}/grad/log_temperature"]), rel=1e-5, abs=1e-5)
