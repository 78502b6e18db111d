"""Measure optimizer steps per second of PPO and DQN by network, device, and precision, on a GPU if there is one.

The networks are an MLP 64x64 over 4 numbers and the CNN of Mnih et al. (2015) over 84 x 84 x 4 pixels. A call of
`update` is measured whole: rows from the host's memory to the device, the steps, and the report back. On a CPU,
float32 updates are compiled by XLA after the first 1,000 steps; everything else is by autograd.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.base.batch import Array, EstimatedBatch, Transitions
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import Compute
from marlflow.learner.learner import TorchLearner
from marlflow.policy.torso import CNN, MLP, TorsoConfig

ACTIONS = 6
PPO_MINIBATCHES, PPO_ROWS, DQN_ROWS = 8, 128, 64


@dataclass(frozen=True, slots=True)
class Network:
    """A network, and its observation shape."""

    name: str
    model: TorsoConfig
    observation: spaces.Box

    def rows(self, rows: int, rng: np.random.Generator) -> Array:
        """Make random observations, [rows, ...]."""
        if self.observation.dtype == np.uint8:
            return rng.integers(0, 256, (rows, *self.observation.shape), dtype=np.uint8)
        return rng.standard_normal((rows, *self.observation.shape)).astype(np.float32)


NETWORKS = (
    Network("MLP", MLP(), spaces.Box(-1.0, 1.0, (4,))),
    Network("CNN", CNN(), spaces.Box(0, 255, (84, 84, 4), np.uint8)),
)


def ppo_batch(network: Network, rng: np.random.Generator) -> EstimatedBatch:
    """Make random rows with estimated advantages."""
    rows = PPO_MINIBATCHES * PPO_ROWS
    names = ("advantage", "value_target", "value")
    columns: dict[str, Array] = {name: rng.standard_normal(rows).astype(np.float32) for name in names}
    columns |= {"obs": network.rows(rows, rng), "action": rng.integers(0, ACTIONS, rows), "reward": np.ones(rows)}
    columns |= {"behavior_logp": np.full(rows, -1.79, np.float32), "version": np.zeros(rows, np.int64)}
    return EstimatedBatch(columns, {"carried": np.zeros(1, bool)})


def transitions(network: Network, rng: np.random.Generator) -> Transitions:
    """Make random transitions as a replay returns them."""
    obs, next_obs = network.rows(DQN_ROWS, rng), network.rows(DQN_ROWS, rng)
    ones = np.ones(DQN_ROWS, np.float32)
    return Transitions(obs, rng.integers(0, ACTIONS, DQN_ROWS), ones, 0.99 * ones, next_obs, ones, np.arange(DQN_ROWS))


def steps_per_s(learner: TorchLearner, batch: EstimatedBatch | Transitions, seconds: float) -> float:
    """Measure optimizer steps per second of `update`, over at least `seconds`."""
    learner.update(batch, 1, PPO_ROWS)
    steps, began = learner.updates, time.perf_counter()
    while True:
        learner.update(batch, 1, PPO_ROWS)
        if (spent := time.perf_counter() - began) >= seconds:
            return (learner.updates - steps) / spent


def computes() -> list[Compute]:
    """Return the available devices, each with its precisions."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return [Compute(device, precision) for device in devices for precision in ("float32", "bfloat16")]


def report(seconds: float = 2.0) -> None:
    """Measure and print."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none on this machine: CPU only"
    print(f"GPU: {gpu}; CPU threads: {torch.get_num_threads()}", flush=True)
    for network in NETWORKS:
        seen = Spaces(network.observation, spaces.Discrete(ACTIONS))
        rng = np.random.default_rng(0)
        for algorithm, batch in ((PPO(), ppo_batch(network, rng)), (DQN(), transitions(network, rng))):
            found = []
            for compute in computes():
                learner = algorithm.learner(algorithm.name, {algorithm.name: Member(seen, network.model)}, 0, compute)
                found.append(f"{compute.device} {compute.precision} {steps_per_s(learner, batch, seconds):9,.1f}")
            rows = PPO_ROWS if isinstance(algorithm, PPO) else DQN_ROWS
            print(f"{algorithm.name} {network.name}, {rows} rows a step: steps/s {'  '.join(found)}", flush=True)


if __name__ == "__main__":
    report()
