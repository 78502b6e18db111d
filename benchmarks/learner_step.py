"""Measure optimizer steps of many algorithms on their own experience, by autograd and compiled by XLA.

    OMP_NUM_THREADS=1 python -m benchmarks.learner_step [--only sac qmix] [--seconds 5]

Each case is a shipped experiment, in one process. Figures are milliseconds of CPU time per optimizer step, of the
learner's calls alone, and after its programs have been compiled; both ways take turns, and medians count. `own PPO` is
a subclass of PPO's loss with a term of its own.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.ppo_loss import PPOLoss
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Update
from marlflow.checks.validation import from_config
from marlflow.config.compose import composing
from marlflow.config.experiment import Evaluation, Experiment, Log, RuntimeConfig, Stop
from marlflow.config.overrides import prepare
from marlflow.driver.train import train
from marlflow.learner.learner import TorchLearner
from marlflow.learner.loss import LossTerms


class OwnLoss(PPOLoss):
    """PPO's, with a penalty on large outputs of the actor."""

    def of_actor(self, actor: Any, outputs: Tensor, rows: Mapping[str, Tensor], mean: Any) -> LossTerms:
        terms = super().of_actor(actor, outputs, rows, mean)
        assert terms.total is not None
        return terms._replace(total=terms.total + 1e-3 * outputs.square().mean())


@dataclass(frozen=True)
class OwnPPO(mf.PPO):
    """PPO with that loss."""

    def losses(self, spaces: Spaces) -> Any:
        shipped: Any = super().losses(spaces)
        return OwnLoss(shipped.coefficients)


CASES: Mapping[str, Sequence[str]] = {
    "ppo": ["experiment=cartpole_team_ppo"],
    "own PPO": ["experiment=cartpole_team_ppo"],
    "ppo, cnn": ["experiment=connect_four_self_play"],
    "recurrent_ppo": ["experiment=cartpole_team_memory_recurrent_ppo"],
    "mappo": ["experiment=simple_spread_mappo"],
    "dqn": ["experiment=cartpole_team_dqn", "policies.team.algorithm.prioritized=false"],
    "dqn, prioritized": ["experiment=cartpole_team_dqn"],
    "c51": ["experiment=cartpole_team_c51"],
    "r2d2": ["experiment=cartpole_team_memory_r2d2"],
    "sac": ["experiment=pendulum_team_sac"],
    "td3": ["experiment=pendulum_team_td3"],
    "qmix": ["experiment=simple_spread_qmix"],
    "qmix, gru": ["experiment=simple_spread_qmix", "model@policies.agent.model=gru"],
    "maddpg": ["experiment=simple_speaker_listener_maddpg"],
}


def experiment_of(name: str, compile: bool) -> Experiment:
    """Return the case's experiment, in one process."""
    with composing():
        job = prepare(CASES[name])
        made = from_config(job.config, job.problems)

    def compiled(algorithm: Any) -> Any:
        if name == "own PPO":
            algorithm = OwnPPO(**{field.name: getattr(algorithm, field.name) for field in fields(algorithm)})
        return replace(algorithm, compile=compile) if hasattr(algorithm, "compile") else algorithm

    policies = {
        policy: replace(one, algorithm=compiled(one.algorithm)) if one.algorithm is not None else one
        for policy, one in made.policies.items()
    }
    learners = {own: replace(one, algorithm=compiled(one.algorithm)) for own, one in made.learners.items()}
    return replace(
        made,
        policies=policies,
        learners=learners,
        runtime=RuntimeConfig("inline"),
        evaluation=Evaluation(episodes=0),
        log=Log(console="none", jsonl=False, tensorboard=False),
    )


class Spent:
    """CPU seconds and optimizer steps of a learner's calls in which nothing was compiled."""

    def __init__(self) -> None:
        self.seconds, self.steps, self._depth = 0.0, 0, 0

    def noted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return the call with its time taken, unless it is part of another."""

        def run(*given: Any, **named: Any) -> Any:
            self._depth += 1
            began = time.process_time()
            try:
                result = call(*given, **named)
            finally:
                self._depth -= 1
            reports: Sequence[Update] = [result] if isinstance(result, Update) else result
            if not self._depth and not any(report.compiles for report in reports):
                self.seconds += time.process_time() - began
                self.steps += sum(report.updates for report in reports)
            return result

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Note all calls of learners."""
        with ExitStack() as patches:
            for name in ("update", "update_each"):
                patches.enter_context(patch.object(TorchLearner, name, self.noted(getattr(TorchLearner, name))))
            yield

    @property
    def per_step_ms(self) -> float:
        """Milliseconds per optimizer step."""
        return self.seconds / self.steps * 1e3 if self.steps else float("nan")


def measured(name: str, compile: bool, seconds: float) -> Spent:
    """Run the case for `seconds` seconds."""
    spent, experiment = Spent(), experiment_of(name, compile)
    with tempfile.TemporaryDirectory() as folder, spent.watching():
        train(replace(experiment, stop=Stop(env_steps=10**9, time_s=seconds)), Path(folder) / "run")
    return spent


def main(arguments: Sequence[str] = ()) -> None:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="CASE")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each run")
    parser.add_argument("--turns", type=int, default=3, help="of both ways; medians count")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f}; ms of CPU time per optimizer step", flush=True)
    for name in options.only:
        run = partial(measured, name, seconds=options.seconds)
        turns = [(run(False), run(True)) for _ in range(options.turns)]
        eager, compiled = (statistics.median(one.per_step_ms for one in column) for column in zip(*turns, strict=True))
        print(f"{name:17s} autograd {eager:8.3f}, XLA {compiled:8.3f}: {eager / compiled:5.2f} times", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
