"""Measure one optimizer step: microseconds per step of PPO (128 rows) and DQN (64 rows) on one thread.

MAPPO's steps are PPO's with a central critic whose input is as wide as the observation, without and with value
normalization. Run as `OMP_NUM_THREADS=1 python benchmarks/learner_step.py`. Steps are by autograd, and compiled by XLA.
The step by autograd is also taken apart: the loss with its gradient, and the optimizer (clearing, norm, Adam); the rest
is minibatches and reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from marlflow.algorithms.dqn import DQNLoss
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.batch import Batch, EstimatedBatch, Transitions
from marlflow.base.critic_input import CriticSees
from marlflow.base.spaces import Spaces
from marlflow.learner.learner import TorchLearner
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.q import QNetwork
from marlflow.policy.torso import MLP

SPACES = Spaces(spaces.Box(-1.0, 1.0, (4,)), spaces.Discrete(2), state=spaces.Box(-1.0, 1.0, (4,)), num_agents=4)
STEPS = 64


def best_us(run: Callable[[], object], per_call: int, repeats: int = 9) -> float:
    """Return the best of `repeats` timings, in microseconds per step."""
    # Twice, because XLA may compile once for a few minibatches and once for more.
    run()
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times) / per_call * 1e6


def ppo_batch(rows: int, rng: np.random.Generator) -> Batch:
    """Make random rows with estimated advantages."""
    floats = ("behavior_logp", "advantage", "value_target", "value")
    columns = {name: rng.standard_normal(rows).astype(np.float32) for name in floats}
    columns["behavior_logp"] = np.full(rows, -0.69, np.float32)
    columns["obs"], columns["central"] = rng.standard_normal((2, rows, 4)).astype(np.float32)
    columns |= {"action": rng.integers(0, 2, rows), "version": np.zeros(rows, np.int64), "reward": np.ones(rows)}
    return Batch(columns, {"carried": np.zeros(1, bool)})


def transitions(rows: int, rng: np.random.Generator) -> Transitions:
    """Make random transitions as a replay returns them."""
    obs, next_obs = rng.standard_normal((2, rows, 4)).astype(np.float32)
    ones = np.ones(rows, np.float32)
    return Transitions(obs, rng.integers(0, 2, rows), ones, 0.99 * ones, next_obs, ones, np.arange(rows))


def shares(learner: TorchLearner, minibatch: dict[str, torch.Tensor]) -> str:
    """Measure microseconds of the loss with its gradient by autograd, and of the optimizer."""
    parameters = learner.parameters
    (group,) = parameters.groups

    def gradient() -> None:
        group.add_gradient(parameters.module, parameters.target_module, minibatch)

    def optimize() -> None:
        parameters.flat.gradient.zero_()
        group.optimizer.step()

    found = [best_us(lambda f=f: [f() for _ in range(STEPS)], STEPS) for f in (gradient, optimize)]
    return "gradient {:6.1f}  optimizer {:6.1f}".format(*found)


def ppo_learner(critic: MLP | None, normalized: bool, sees: Sequence[CriticSees], compile: bool) -> TorchLearner:
    """Make PPO's learner."""
    module = ActorCritic(SPACES, MLP(), critic, 0, normalized, sees)
    settings: dict[str, Any] = {"learning_rate": 3e-4, "max_grad_norm": 0.5, "compile": compile}
    return TorchLearner("ppo", module, PPOLoss(Coefficients()), trains_on=EstimatedBatch, **settings)


def dqn_learner(compile: bool) -> TorchLearner:
    """Make DQN's learner."""
    network = QNetwork(SPACES, MLP(), dueling=False, seed=0)
    settings: dict[str, Any] = {"learning_rate": 3e-4, "target": True, "compile": compile}
    return TorchLearner("dqn", network, DQNLoss(), trains_on=Transitions, **settings)


def main() -> None:
    """Print one line for each algorithm and network."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    with_central = ppo_batch(128 * STEPS, rng)
    for label, critic, sees, normalized in (
        ("ppo", MLP(), ["obs"], False),
        ("ppo, shared torso", None, ["obs"], False),
        ("ppo, Pop-Art", MLP(), ["obs"], True),
        ("mappo, no Pop-Art", MLP(), ["state"], False),
        ("mappo", MLP(), ["state"], True),
    ):
        columns = {name: c for name, c in with_central.columns.items() if name != "central" or sees == ["state"]}
        batch = Batch(columns, with_central.segments)
        minibatch = {name: torch.from_numpy(column[:128]) for name, column in columns.items()}
        learners = [ppo_learner(critic, normalized, sees, compile) for compile in (False, True)]
        eager, compiled = (best_us(lambda one=one, batch=batch: one.update(batch, 1, 128), STEPS) for one in learners)
        print(f"{label:18s} 128 rows {eager:6.1f} us a step, by XLA {compiled:6.1f}:  {shares(learners[0], minibatch)}")
    draw = transitions(64, rng)
    learners = [dqn_learner(compile) for compile in (False, True)]
    eager, compiled = (best_us(lambda one=one: [one.update(draw) for _ in range(STEPS)], STEPS) for one in learners)
    names = ("obs", "action", "reward", "discount", "next_obs", "weight")
    inputs = {name: torch.from_numpy(getattr(draw, name)) for name in names}
    print(f"dqn, double         64 rows {eager:6.1f} us a step, by XLA {compiled:6.1f}:  {shares(learners[0], inputs)}")


if __name__ == "__main__":
    main()
