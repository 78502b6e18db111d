"""Measure optimizer steps per second of PPO and DQN by network, device, and precision, on a GPU if there is one.

The networks are an MLP 64x64 over 4 numbers and the CNN of Mnih et al. (2015) over 84 x 84 x 4 pixels. A call of
`update` is measured whole: rows from the host's memory to the device, the steps, and the report back. On a CPU,
float32 updates are compiled by XLA after the first 1,000 steps; everything else is by autograd. `--rows` sets the rows
of a step.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch, Transitions
from marlflow.learner.compute import Compute
from marlflow.learner.learner import TorchLearner
from marlflow.policy.torso import CNN, MLP, TorsoConfig

ACTIONS = 6
PPO_MINIBATCHES = 8


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


def ppo_batch(network: Network, rows: int, rng: np.random.Generator) -> EstimatedBatch:
    """Make random rows of 8 minibatches with estimated advantages."""
    rows *= PPO_MINIBATCHES
    names = ("advantage", "value_target", "value")
    columns: dict[str, Array] = {name: rng.standard_normal(rows).astype(np.float32) for name in names}
    columns |= {"obs": network.rows(rows, rng), "action": rng.integers(0, ACTIONS, rows), "reward": np.ones(rows)}
    columns |= {"behavior_logp": np.full(rows, -1.79, np.float32), "version": np.zeros(rows, np.int64)}
    return EstimatedBatch(columns, {"carried": np.zeros(1, bool)})


def transitions(network: Network, rows: int, rng: np.random.Generator) -> Transitions:
    """Make random transitions as a replay returns them."""
    obs, next_obs = network.rows(rows, rng), network.rows(rows, rng)
    ones = np.ones(rows, np.float32)
    return Transitions(obs, rng.integers(0, ACTIONS, rows), ones, 0.99 * ones, next_obs, ones, np.arange(rows))


def steps_per_s(learner: TorchLearner, batch: EstimatedBatch | Transitions, rows: int, seconds: float) -> float:
    """Measure optimizer steps per second of `update`, over at least `seconds`."""
    learner.update(batch, 1, rows)
    steps, began = learner.updates, time.perf_counter()
    while True:
        learner.update(batch, 1, rows)
        if (spent := time.perf_counter() - began) >= seconds:
            return (learner.updates - steps) / spent


def computes() -> list[Compute]:
    """Return the available devices, each with its precisions."""
    devices = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
    return [Compute(device, precision) for device in devices for precision in ("float32", "bfloat16")]


def report(rows: int | None, seconds: float = 2.0) -> None:
    """Measure and print, with `rows` a step, or with 128 of PPO and 64 of DQN."""
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none on this machine: CPU only"
    print(f"GPU: {gpu}; CPU threads: {torch.get_num_threads()}", flush=True)
    for network in NETWORKS:
        seen = Spaces(network.observation, spaces.Discrete(ACTIONS))
        rng = np.random.default_rng(0)
        ppo, dqn = (PPO(), rows or 128), (DQN(), rows or 64)
        for (algorithm, size), batch in (
            (ppo, ppo_batch(network, ppo[1], rng)),
            (dqn, transitions(network, dqn[1], rng)),
        ):
            found = []
            for compute in computes():
                learner = algorithm.learner(algorithm.name, {algorithm.name: Member(seen, network.model)}, 0, compute)
                speed = steps_per_s(learner, batch, size, seconds)
                found.append(f"{compute.device} {compute.precision} {speed:9,.1f}")
            print(f"{algorithm.name} {network.name}, {size} rows a step: steps/s {'  '.join(found)}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="rows of a step; default: 128 for PPO, 64 for DQN")
    report(parser.parse_args().rows)
