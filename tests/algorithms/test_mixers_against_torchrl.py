"""The losses of VDN and QMIX and all their gradients equal torchrl's QMixerLoss with its VDNMixer and QMixer, recorded
by benchmarks/peers/torchrl_qmix.py with torchrl 0.14.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from torch import Tensor

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from tests.algorithms.teams import gradient_of

RECORDED = dict(np.load(Path(__file__).with_name("torchrl_qmix.npz")))
DISCOUNT = 0.97
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
SETTINGS: dict[str, Any] = {"double": False, "n_step": 1, "discount": DISCOUNT}
ALGORITHMS = {
    "vdn": mf.VDN(**SETTINGS),
    "qmix": mf.QMIX(embed_size=8, hypernet_layers=1, squash_state=False, **SETTINGS),
}
ACTOR = {f"module.0.module.{layer}.{kind}": (layer, kind) for layer in (0, 2) for kind in ("weight", "bias")}
MIXER = {"hyper_w_1": "w1", "hyper_w_final": "w2", "hyper_b_1": "b1", "V.0": "v.0", "V.2": "v.2"}


def given(name: str) -> Array:
    return RECORDED[f"input/{name}"]


ROWS, AGENTS, OBS = given("obs").shape
STATE = given("state").shape[1]


def named(module: Any, case: str) -> dict[str, tuple[str, Tensor]]:
    """Our parameters, and their gradients, by torchrl's names: the part of a weight that it has."""
    layers = [module.actors["team"].torso.layers[0], module.actors["team"].head]
    found = {}
    for number, layer in zip((0, 2), layers, strict=True):
        for kind in ("weight", "bias"):
            found[f"local_value_network/module.0.module.{number}.{kind}"] = getattr(layer, kind)
    if case == "qmix":
        ours = dict(module.mixer.named_parameters())
        for theirs, name in MIXER.items():
            for kind in ("weight", "bias"):
                found[f"mixer_network/module.{theirs}.{kind}"] = ours[f"{name}.{kind}"]
    return found


def same_part(tensor: Tensor, like: Array) -> Tensor:
    """Our mixer sees presence bits after the state, which torchrl's does not see."""
    return tensor if tensor.shape == like.shape else tensor[:, :STATE]


def learner(case: str) -> mf.TorchLearner:
    """With torchrl's weights and target weights, and weights of 0 for presence bits."""
    state = gym.Box(-np.inf, np.inf, (STATE,), np.float32)
    seats = tuple(range(AGENTS))
    spaces = Spaces(gym.Box(-9.0, 9.0, (OBS,)), gym.Discrete(given("mask").shape[-1]), True, state, AGENTS, seats)
    made = ALGORITHMS[case].learner("team", {"team": mf.Member(spaces, mf.MLP((6,)))}, 0, ON_CPU)
    with torch.no_grad():
        for kind, module in {"weight": made.module, "target": made.parameters.target_module}.items():
            for name, parameter in named(module, case).items():
                array = RECORDED[f"{case}/{kind}/{name}"]
                parameter.zero_()
                same_part(parameter, array).copy_(torch.from_numpy(array))
    return made


def minibatch() -> dict[str, Tensor]:
    everyone = np.ones((ROWS, AGENTS), bool)
    columns = {
        "reward": given("reward"),
        # A truncated row bootstraps.
        "discount": np.where(given("terminated"), 0.0, DISCOUNT).astype(np.float32),
        "weight": np.ones(ROWS, np.float32),
        "state": given("state"),
        "next_state": given("next_state"),
        "team:present": everyone,
        "team:next_present": everyone & ~given("terminated")[:, None],
        "team:obs": given("obs"),
        "team:next_obs": given("next_obs"),
        "team:action": given("action"),
        "team:action_mask": given("mask"),
        "team:next_mask": given("next_mask"),
        "team:reward": np.repeat(given("reward")[:, None], AGENTS, 1),
    }
    return {name: torch.from_numpy(column) for name, column in columns.items()}


@pytest.mark.parametrize("case", ["vdn", "qmix"])
def test_loss_errors_and_every_gradient(case: str) -> None:
    made = learner(case)
    terms, _ = gradient_of(made, minibatch())
    assert given("terminated").any()
    assert given("truncated").any()
    assert not given("next_mask").all()
    # torchrl's squared error has no factor of a half.
    assert 2.0 * float(terms.terms["td"]) == pytest.approx(float(RECORDED[f"{case}/loss"]), rel=1e-5)
    assert terms.priorities is not None
    np.testing.assert_allclose(terms.priorities.numpy() ** 2, RECORDED[f"{case}/squared_error"], **TOLERANCE)
    parameters = named(made.module, case)
    assert len(parameters) == sum(name.startswith(f"{case}/grad/") for name in RECORDED)
    for name, parameter in parameters.items():
        gradient = RECORDED[f"{case}/grad/{name}"]
        assert np.abs(gradient).max() > 1e-4, name
        assert parameter.grad is not None
        found = 2.0 * same_part(parameter.grad, gradient)
        np.testing.assert_allclose(found.numpy(), gradient, err_msg=name, **TOLERANCE)
