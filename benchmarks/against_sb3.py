"""Compare a learner with Stable-Baselines3's: the same networks, batches, and numbers of updates, on one core.

All get rows that exist already, in turns, on one thread; the fastest of several turns counts. All do whole updates:
shuffling or drawing rows, losses, optimizer, soft targets, and reports. marlflow updates by XLA (`compile=true`), as
its default `compile=auto` does from 1,000 optimizer steps on, and by autograd (`compile=false`), as it does until then.

python -m benchmarks.against_sb3 [--turns 12]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger

import marlflow as mf
from marlflow.algorithms.algorithm import Member
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.flow.protocols import stage_call
from marlflow.learner.compute import ON_CPU
from marlflow.runtime.stage_chain import run_chain
from marlflow.stages import Draw, Learn, NStep, SyncTarget

OBSERVATION = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(4)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
ROWS = 2_048
"""Of PPO's batch, and of what replays hold."""


class Setting(NamedTuple):
    """Functions that make the same number of updates, and what they compute."""

    title: str
    updates: int
    by_xla: Callable[[], object]
    by_autograd: Callable[[], object]
    theirs: Callable[[], object]


class Spaced(gymnasium.Env[Any, Any]):
    """An environment that has only spaces, for the constructors of Stable-Baselines3."""

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = OBSERVATION, action_space


def silent(made: Any) -> Any:
    """Make a model of Stable-Baselines3 without a logger."""
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def learner_of(algorithm: Any, space: gymnasium.Space[Any], model: mf.MLP, compile: bool) -> Any:
    """Return the learner of a policy that acts in `space`."""
    return replace(algorithm, compile=compile).learner("p", {"p": Member(Spaces(OBSERVATION, space), model)}, 0, ON_CPU)


def rows(action_space: gymnasium.Space[Any]) -> EstimatedBatch:
    """Make random rows with estimated advantages."""
    random = np.random.default_rng(0)
    floats = ("advantage", "value", "value_target")
    discrete = action_space is DISCRETE
    columns = {
        **{name: random.standard_normal(ROWS).astype(np.float32) for name in floats},
        "obs": random.uniform(-1.0, 1.0, (ROWS, 8)).astype(np.float32),
        "action": random.integers(0, 4, ROWS) if discrete else random.uniform(-0.9, 0.9, (ROWS, 2)).astype(np.float32),
        "behavior_logp": np.full(ROWS, -1.39, np.float32),
        "reward": random.standard_normal(ROWS),
        "version": np.zeros(ROWS, np.int64),
    }
    length = np.full(ROWS // 64, 64)
    never = np.zeros(len(length), bool)
    segments = {
        "length": length,
        "terminated": never,
        "truncated": never,
        "carried": never,
        "bootstrap_obs": columns["obs"][: len(length)],
    }
    return EstimatedBatch(columns, segments)


def ppo() -> Setting:
    """Compare 10 epochs over 2,048 rows in minibatches of 64."""
    batch, updates = rows(DISCRETE), 10 * ROWS // 64
    by_xla, by_autograd = (
        stage_call(Learn(epochs=10, minibatch=64), learner_of(mf.PPO(), DISCRETE, mf.MLP(), compile))
        for compile in (True, False)
    )
    net = {"net_arch": {"pi": [64, 64], "vf": [64, 64]}}
    theirs = silent(
        stable_baselines3.PPO(
            "MlpPolicy", Spaced(DISCRETE), n_steps=ROWS, batch_size=64, policy_kwargs=net, device="cpu"
        )
    )
    buffer, column = theirs.rollout_buffer, batch.columns
    buffer.reset()
    for row in range(ROWS):
        one = {name: column[name][row : row + 1] for name in ("obs", "action", "reward")}
        value = torch.from_numpy(column["value"][row : row + 1])
        logp = torch.from_numpy(column["behavior_logp"][row : row + 1])
        buffer.add(one["obs"], one["action"], one["reward"], np.zeros(1), value, logp)
    buffer.compute_returns_and_advantage(torch.zeros(1), np.zeros(1))
    title = "PPO, 64 x 64, minibatches of 64"
    return Setting(title, updates, lambda: by_xla(batch), lambda: by_autograd(batch), theirs.train)


def replayed(theirs: Any, action_space: gymnasium.Space[Any]) -> Batch:
    """Put random rows into the model's replay buffer, and return the same rows for marlflow."""
    batch = rows(action_space)
    column = batch.columns
    for row in range(ROWS):
        following = column["obs"][(row + 1) % ROWS]
        theirs.replay_buffer.add(
            column["obs"][row], following, column["action"][row], column["reward"][row], np.zeros(1), [{}]
        )
    return batch


def from_replay(title: str, algorithm: Any, theirs: Any, space: Any, model: mf.MLP, size: int, updates: int) -> Setting:
    """Compare a number of updates with batches of `size` rows."""
    batch = replayed(theirs, space)
    every, tau = (200, 1.0) if algorithm.name == "dqn" else (1, 0.005)

    def ours(compile: bool) -> Callable[[], object]:
        learner, replay = learner_of(algorithm, space, model, compile), algorithm.replay("p", {}, 0)
        replay.insert(NStep(1, algorithm.discount)(batch))
        # The stages of an algorithm's plan between two publications.
        draw, learn = stage_call(Draw(size), replay, is_source=True), stage_call(Learn(), learner)
        stages = [draw, learn, stage_call(SyncTarget(every=every, tau=tau), learner)]
        return lambda: run_chain(stages, [None] * updates)

    theirs_train = partial(theirs.train, gradient_steps=updates, batch_size=size)
    return Setting(title, updates, ours(compile=True), ours(compile=False), theirs_train)


def dqn() -> Setting:
    """Compare DQN with batches of 64."""
    net = {"net_arch": [64, 64]}
    theirs = silent(
        stable_baselines3.DQN("MlpPolicy", Spaced(DISCRETE), buffer_size=ROWS, policy_kwargs=net, device="cpu")
    )
    config = mf.DQN(n_step=1, double=False)
    return from_replay(
        "DQN, 64 x 64, batches of 64", config, theirs, DISCRETE, mf.MLP((64, 64), "relu"), size=64, updates=200
    )


def sac() -> Setting:
    """Compare SAC with batches of 256, as in the paper."""
    theirs = silent(stable_baselines3.SAC("MlpPolicy", Spaced(BOX), buffer_size=ROWS, device="cpu"))
    return from_replay(
        "SAC, 256 x 256, batches of 256", mf.SAC(), theirs, BOX, mf.MLP((256, 256), "relu"), size=256, updates=40
    )


def seconds(call: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    began = perf_counter()
    call()
    return perf_counter() - began


def report(turns: int = 12) -> None:
    """Print one line for each algorithm."""
    torch.set_num_threads(1)
    for make in (ppo, dqn, sac):
        setting = make()
        calls = (setting.by_xla, setting.by_autograd, setting.theirs)
        # Twice, because XLA may compile once for a few minibatches and once for more.
        for call in calls * 2:
            call()
        measured = [[seconds(call) for call in calls] for _ in range(turns)]
        xla, autograd, other = (min(column) / setting.updates * 1e6 for column in zip(*measured, strict=True))
        print(
            f"{setting.title}: by XLA {xla:7.0f} us an update, by autograd {autograd:7.0f}, Stable-Baselines3 "
            f"{other:7.0f}: {other / xla:.2f} times by XLA, {other / autograd:.2f} by autograd",
            flush=True,
        )


def main(arguments: Sequence[str] = ()) -> None:
    """Read the options, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12)
    report(parser.parse_args(arguments).turns)


if __name__ == "__main__":
    main(sys.argv[1:])
