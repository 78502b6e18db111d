"""Parts for tests of algorithms: spaces, small networks, plans to look at, and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.runtime.stage_chain import InlinePlace

NUM_ACTIONS = 3
SMALL = mf.MLP(hidden_sizes=(4,))
DISCRETE = Spaces(gym.Box(-1.0, 1.0, (2,), np.float32), gym.Discrete(NUM_ACTIONS))
MASKED = Spaces(DISCRETE.observation, DISCRETE.action, masked=True)
CONTINUOUS = Spaces(DISCRETE.observation, gym.Box(-1.0, 1.0, (2,), np.float32))


def experience() -> mf.Fragment:
    """A source that no plan of these tests runs."""
    raise AssertionError("building, printing and checking a plan runs nothing")


def make_learner(
    algorithm: mf.Algorithm, spaces: Spaces = DISCRETE, seed: int = 0, model: mf.TorsoConfig = SMALL
) -> mf.TorchLearner:
    return algorithm.learner("hunter", {"hunter": mf.Member(spaces, model)}, seed, ON_CPU)


def spread_out(learner: mf.TorchLearner) -> None:
    """Heads begin near zero; with larger parameters each action differs."""
    noise = np.random.default_rng(3).standard_normal(len(learner.parameters.flat.vector)).astype(np.float32)
    learner.parameters.flat.vector.add_(torch.from_numpy(noise), alpha=0.5)


def minibatch(masked: bool, rows: int = 11, seed: int = 5) -> dict[str, Array]:
    """Random rows for an on-policy loss with Discrete actions."""
    rng = np.random.default_rng(seed)
    action = rng.integers(0, NUM_ACTIONS, rows)
    mask = rng.random((rows, NUM_ACTIONS)) < 0.6
    mask[np.arange(rows), action] = True
    columns: dict[str, Array] = {
        "obs": rng.standard_normal((rows, 2)).astype(np.float32),
        "action": action,
        "behavior_logp": np.log(rng.uniform(0.15, 0.6, rows)).astype(np.float32),
        "advantage": rng.standard_normal(rows).astype(np.float32),
        "value": rng.standard_normal(rows).astype(np.float32),
        "value_target": rng.standard_normal(rows).astype(np.float32),
    }
    return {**columns, "action_mask": mask} if masked else columns


def make_plan(
    algorithm: mf.Algorithm, own_replay: bool = False, spaces: Spaces = DISCRETE, model: mf.TorsoConfig = SMALL
) -> mf.Plan:
    """The algorithm's plan, checked."""
    learner = make_learner(algorithm, spaces, model=model)
    place = learner.place = InlinePlace("learner hunter")
    replays: list[mf.Replay] = []
    if algorithm.replay_shards:
        replay = algorithm.replay("hunter", {}, seed=0)
        replay.place = InlinePlace("replay hunter") if own_replay else place
        replays.append(replay)
    plan = algorithm.plan(mf.source(experience), learner, replays)
    plan.check()
    return plan


def loss_and_gradient(learner: mf.TorchLearner, columns: Mapping[str, Array]) -> tuple[dict[str, float], Array, Any]:
    """The terms, the gradient by all parameters, and the priorities, of one minibatch as `Learn` would take it."""
    learner.parameters.flat.gradient.zero_()
    minibatch = {name: torch.from_numpy(column) for name, column in columns.items()}
    total, terms, priorities, _ = learner.parameters.groups[0].loss(
        learner.module, learner.parameters.target_module, minibatch
    )
    total.backward()
    return (
        {name: float(term) for name, term in terms.items()},
        learner.parameters.flat.gradient.numpy().copy(),
        priorities,
    )


def terms_of_step(
    learner: mf.TorchLearner, minibatch_of: Callable[[str], Mapping[str, torch.Tensor]]
) -> dict[str, float]:
    """The terms of all loss groups before learning; their gradients are in the parameters' gradients.

    `minibatch_of` gives that of a group by its name; the columns that a group adds reach the groups after it.
    """
    parameters, terms, columns = learner.parameters, dict[str, float](), dict[str, torch.Tensor]()
    for group in parameters.groups:
        group.gradient.zero_()
        minibatch = {**minibatch_of(group.name), **columns}
        given = group.add_gradient(parameters.module, parameters.target_module, minibatch)
        columns |= given.columns
        terms |= {name: float(term) for name, term in given.terms.items()}
    return terms


def gradient_by_differences(learner: mf.TorchLearner, loss: Callable[[], float], step: float = 1e-3) -> Array:
    """The gradient of a plain function of the learner's parameters, by central differences."""
    vector, found = learner.parameters.flat.vector, []
    for index in range(len(vector)):
        kept = float(vector[index])
        ahead: list[float] = []
        behind: list[float] = []
        for side, shift in ((ahead, step), (behind, -step)):
            vector[index] = kept + shift
            side += [float(vector[index]), loss()]
        vector[index] = kept
        found.append((ahead[1] - behind[1]) / (ahead[0] - behind[0]))
    return np.array(found)


def forward(module: Any, torso: str, head: str, obs: Array) -> Array:
    """The output of one tanh layer and a linear head for `obs`, by plain loops in float64."""
    named = {name: tensor.detach().numpy().astype(np.float64) for name, tensor in module.state_dict().items()}
    weights, bias = named[f"{torso}.layers.0.weight"], named[f"{torso}.layers.0.bias"]
    out_weights, out_bias = named[f"{head}.weight"], named[f"{head}.bias"]
    outputs = np.zeros((len(obs), len(out_bias)))
    for row, seen in enumerate(obs.astype(np.float64)):
        features = [
            np.tanh(sum(w * x for w, x in zip(ws, seen, strict=True)) + b) for ws, b in zip(weights, bias, strict=True)
        ]
        for action, (ws, b) in enumerate(zip(out_weights, out_bias, strict=True)):
            outputs[row, action] = sum(w * f for w, f in zip(ws, features, strict=True)) + b
    return outputs
