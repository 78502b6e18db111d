"""Test MAML on held-out tasks: a team's return before and after one inner step, by a paired test.

One core: `python -m benchmarks.meta`. For each seed, a run of `experiment=cartpole_family_maml`, then 64 held-out
tasks; in each, the team's first whole episode with the learned parameters, and after one inner step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.serialization import from_bytes
from marlflow.batches.batch import Batch
from marlflow.batches.items import Weights
from marlflow.checks.validation import from_config, ready
from marlflow.config.compose import composing
from marlflow.config.experiment import Experiment
from marlflow.config.overrides import prepare
from marlflow.runs.checkpoint_format import learner_file
from marlflow.runs.saved_runs import newest
from marlflow.runtime.spec import RunSpec
from marlflow.sampling import RolloutWorker, SamplerConfig
from marlflow.sampling.protocol import Request

EXPERIMENT, POLICY = "experiment=cartpole_family_maml", "team"
SEEDS = range(3)
HELD_OUT_TASKS = 64
HELD_OUT_SEED = 1_000_003
EPISODE_ENV_STEPS = 100


class Shown(NamedTuple):
    """Mean returns per agent in each held-out task, [tasks] each."""

    before: Array
    after: Array

    def words(self) -> str:
        """Return the results in one line."""
        return (
            f"{self.before.mean():.1f} before, {self.after.mean():.1f} after one inner step (p = {self.p():.0e}); "
            f"better in {(self.after > self.before).sum()} tasks, worse in {(self.after < self.before).sum()}"
        )

    def p(self) -> float:
        """Return the probability of such a mean gain if in each task the order of the two were random.

        One-sided, by 100,000 random exchanges, of which this is one (Fisher, 1935): at least 1e-5.
        """
        gain = self.after - self.before
        signs = np.random.default_rng(0).choice([-1.0, 1.0], (99_999, len(gain)))
        return float(1 + (signs @ gain >= gain.sum()).sum()) / 100_000


def adapted_returns(spec: RunSpec, weights: Weights, tasks: int = HELD_OUT_TASKS) -> Shown:
    """Return the returns before and after the inner steps of MAML's policy, on tasks of a held-out seed."""
    policy = spec.policies[POLICY]
    worker_stages = spec.learners[POLICY].relocated_stages.on_worker()
    assert worker_stages is not None
    mapping, spaces = cast("dict[str, str]", spec.mapping), {POLICY: policy.spaces}
    config = SamplerConfig(spec.make_env, range(tasks), mapping, HELD_OUT_SEED, spaces=spaces)
    worker = RolloutWorker(config, {POLICY: policy.actor}, worker_stages={POLICY: worker_stages})
    _, batches = worker.collect(2 * EPISODE_ENV_STEPS, Request(weights={POLICY: weights}))
    worker.close()
    return Shown(_first_returns(batches[POLICY], 0), _first_returns(batches[POLICY], 1))


def _first_returns(batch: Batch, adapted: int) -> Array:
    """Return each task's mean return per agent in the first episode of a phase, which ends before the phase does."""
    phase = batch.only(batch.segments["adapted"] == adapted)
    num_envs = phase["env"]
    first = np.full(num_envs.max() + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, num_envs, phase["episode"])
    rows = phase["episode"] == first[num_envs]
    agents = [len(np.unique(phase["agent"][rows & (num_envs == env_index)])) for env_index in range(len(first))]
    returns: Array = np.bincount(num_envs[rows], phase["reward"][rows]) / agents
    return returns


def learned(run_dir: Path) -> Weights:
    """Return the last published weights of a run."""
    state = from_bytes(newest(run_dir).read(learner_file(POLICY)))
    return Weights(state["version"], state["published"])


def experiment_of(*overrides: str) -> Experiment:
    """Return the experiment that the command line would run."""
    with composing():
        prepared = prepare([EXPERIMENT, *overrides])
    return from_config(prepared.config, prepared.problems)


def report() -> None:
    """Train, test, and print."""
    for seed in SEEDS:
        overrides = [f"seed={seed}", "runtime=inline"]
        with tempfile.TemporaryDirectory() as folder:
            command = [str(Path(sys.executable).with_name("marlflow")), "train", EXPERIMENT, *overrides]
            began_s = time.perf_counter()
            subprocess.run([*command, "log.console=none", f"hydra.run.dir={folder}"], check=True)
            took_s = time.perf_counter() - began_s
            shown = adapted_returns(ready(experiment_of(*overrides)).spec, learned(Path(folder)))
        print(f"seed {seed}: trained for {took_s:.0f} s; {HELD_OUT_TASKS} held-out tasks: {shown.words()}", flush=True)


if __name__ == "__main__":
    report()
