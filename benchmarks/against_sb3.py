"""Compare a learner with Stable-Baselines3's: the same networks, batches, and numbers of updates, on one core.

Both get rows that exist already, in turns, on one thread; the fastest of several turns counts. Both do whole updates:
shuffling or drawing rows, losses, optimizer, soft targets, and reports.

python -m benchmarks.against_sb3
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import gymnasium
import numpy as np
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger

import marlflow as mf
from marlflow.algorithms.algorithm import Member
from marlflow.base.batch import Batch, EstimatedBatch
from marlflow.base.spaces import Spaces
from marlflow.flow.protocols import stage_call
from marlflow.learner.compute import ON_CPU
from marlflow.stages import Learn, NStep, SyncTarget

TURNS = 12
OBSERVATION = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(4)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
ROWS = 2_048
"""Of PPO's batch, and of what replays hold."""


class Spaced(gymnasium.Env[Any, Any]):
    """An environment that has only spaces, for the constructors of Stable-Baselines3."""

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = OBSERVATION, action_space


def silent(made: Any) -> Any:
    """Make a model of Stable-Baselines3 without a logger."""
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


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


def ppo() -> tuple[Callable[[], None], Callable[[], None], int, str]:
    """Compare 10 epochs over 2,048 rows in minibatches of 64."""
    batch, updates = rows(DISCRETE), 10 * ROWS // 64
    learner = mf.PPO().learner("p", {"p": Member(Spaces(OBSERVATION, DISCRETE), mf.MLP())}, 0, ON_CPU)
    learn = stage_call(Learn(epochs=10, minibatch=64), learner)
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
    return lambda: void(learn(batch)), theirs.train, updates, "PPO, 64 x 64, minibatches of 64"


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


def from_replay(algorithm: Any, theirs: Any, space: Any, model: Any, size: int, updates: int) -> Any:
    """Return both as functions that make a number of updates with batches of `size` rows."""
    batch = replayed(theirs, space)
    learner = algorithm.learner("p", {"p": Member(Spaces(OBSERVATION, space), model)}, 0, ON_CPU)
    replay = algorithm.replay("p", {}, 0)
    replay.insert(NStep(1, algorithm.discount)(batch))
    every, tau = (200, 1.0) if algorithm.name == "dqn" else (1, 0.005)
    learn, sync = stage_call(Learn(), learner), stage_call(SyncTarget(every=every, tau=tau), learner)

    def ours() -> None:
        for _ in range(updates):
            sync(learn(replay.draw(size)))

    return ours, lambda: theirs.train(gradient_steps=updates, batch_size=size)


def dqn() -> tuple[Callable[[], None], Callable[[], None], int, str]:
    """Compare DQN with batches of 64."""
    net = {"net_arch": [64, 64]}
    theirs = silent(
        stable_baselines3.DQN("MlpPolicy", Spaced(DISCRETE), buffer_size=ROWS, policy_kwargs=net, device="cpu")
    )
    config = mf.DQN(n_step=1, double=False)
    pair = from_replay(config, theirs, DISCRETE, mf.MLP((64, 64), "relu"), 64, 200)
    return *pair, 200, "DQN, 64 x 64, batches of 64"


def sac() -> tuple[Callable[[], None], Callable[[], None], int, str]:
    """Compare SAC with batches of 256, as in the paper."""
    theirs = silent(stable_baselines3.SAC("MlpPolicy", Spaced(BOX), buffer_size=ROWS, device="cpu"))
    pair = from_replay(mf.SAC(), theirs, BOX, mf.MLP((256, 256), "relu"), 256, 40)
    return *pair, 40, "SAC, 256 x 256, batches of 256"


def void(_: object) -> None:
    """Do nothing."""


def seconds(call: Callable[[], None]) -> float:
    """Return how long a call takes, in seconds."""
    began = perf_counter()
    call()
    return perf_counter() - began


def report() -> None:
    """Print one line for each algorithm."""
    torch.set_num_threads(1)
    for setting in (ppo, dqn, sac):
        ours, theirs, updates, what = setting()
        ours()
        theirs()
        turns = [(seconds(ours), seconds(theirs)) for _ in range(TURNS)]
        own, other = (min(turn[side] for turn in turns) / updates * 1e6 for side in (0, 1))
        print(
            f"{what}: {own:7.0f} us an update, Stable-Baselines3 {other:7.0f} us: {other / own:.2f} times", flush=True
        )


if __name__ == "__main__":
    report()
