"""Every algorithm on its own experiment, three seeds each: whether all of them reach what they must, and when.

A seed has reached its bar when `eval_return_mean` (greedy episodes, 20 at a time) is there at any evaluation within the
experiment's own budget. Runs are inline, in one thread, so that a figure is the same wherever it is taken; two go on at
a time. Of policies without memory, where it is needed, the best evaluation has to stay under their bar.

python -m benchmarks.suite [experiment ...]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from marlflow.observe.sinks import read_metrics

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Case:
    """An experiment, changed by `overrides`; `bar` is what each seed must reach, or stay under (`at_most`)."""

    experiment: str
    bar: float | None = None
    at_most: float | None = None
    overrides: Sequence[str] = ()
    title: str = ""
    policy: str = field(default="team")

    @property
    def name(self) -> str:
        """As it is printed."""
        return self.title or self.experiment


CASES = (
    Case("cartpole_team_ppo", 190.0),
    Case("cartpole_team_a2c", 190.0),
    Case("cartpole_team_a3c", 150.0),
    Case("cartpole_team_impala", 190.0),
    Case("cartpole_team_appo", 190.0),
    Case("cartpole_team_ddppo", 190.0),
    Case("cartpole_team_dqn", 190.0),
    Case("cartpole_team_c51", 190.0),
    Case("cartpole_team_apex", 190.0),
    Case("cartpole_team_sac", 150.0),
    Case("cartpole_team_memory_recurrent_ppo", 150.0),
    Case("cartpole_team_memory_r2d2", 150.0),
    Case(
        "cartpole_team_memory_recurrent_ppo",
        at_most=80.0,
        overrides=("policy@policies.team=ppo",),
        title="the same with ppo, without memory",
    ),
    Case(
        "cartpole_team_memory_r2d2",
        at_most=80.0,
        overrides=("policy@policies.team=dqn",),
        title="the same with dqn, without memory",
    ),
    Case("pendulum_team_sac", -250.0),
    Case("pendulum_team_td3", -250.0),
    Case("pendulum_team_ddpg"),
)


@dataclass(frozen=True)
class Outcome:
    """What one seed came to: its best evaluation, when it first reached the bar (env steps, seconds), and its end."""

    best: float
    reached: tuple[int, float] | None
    staleness: float
    env_steps: int
    time_s: float


def run(case: Case, seed: int) -> Outcome:
    """Trains once."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("marlflow")),
            "train",
            f"experiment={case.experiment}",
            f"seed={seed}",
            "runtime=inline",
            "log.console=none",
            "log.tensorboard=false",
            "checkpoint.every_env_steps=null",
            "stop.time_s=null",
            f"hydra.run.dir={folder}",
            *case.overrides,
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        records = list(read_metrics(Path(folder) / "metrics.jsonl"))
    found = [(one, one["policies"][case.policy]["eval_return_mean"]) for one in records]
    evaluated = [(one, value) for one, value in found if value is not None]
    reached = next(
        ((one["env_steps"], one["time_s"]) for one, value in evaluated if case.bar is not None and value >= case.bar),
        None,
    )
    last, staleness = records[-1], [one["policies"][case.policy]["staleness_mean"] or 0.0 for one in records]
    best = max(value for _, value in evaluated)
    return Outcome(best, reached, sum(staleness) / len(staleness), last["env_steps"], last["time_s"])


def line(case: Case, outcomes: Sequence[Outcome]) -> str:
    """What is printed of a case."""
    shown = ", ".join(
        f"{one.best:.0f}" + (f" (bar at {one.reached[0]:,} env steps, {one.reached[1]:.0f} s)" if one.reached else "")
        for one in outcomes
    )
    passed = [
        (case.bar is None or one.best >= case.bar) and (case.at_most is None or one.best < case.at_most)
        for one in outcomes
    ]
    wanted = f"at least {case.bar:g}" if case.bar is not None else "no bar"
    wanted = f"under {case.at_most:g}" if case.at_most is not None else wanted
    verdict = "all" if all(passed) else f"ONLY {sum(passed)} of {len(passed)}"
    staleness = sum(one.staleness for one in outcomes) / len(outcomes)
    return f"{case.name}: {wanted}: {verdict}: best evaluations {shown}; staleness {staleness:.1f}"


def report(names: Sequence[str] = ()) -> None:
    """Prints a line for each case, as it is done."""
    cases = [case for case in CASES if not names or case.experiment in names]
    with ThreadPoolExecutor(2) as pool:
        asked = [(case, [pool.submit(run, case, seed) for seed in SEEDS]) for case in cases]
        for case, runs in asked:
            try:
                print(line(case, [one.result() for one in runs]), flush=True)
            except subprocess.CalledProcessError as error:
                print(f"{case.name}: FAILED: {error.stderr.strip().splitlines()[-1:]}", flush=True)


if __name__ == "__main__":
    report(sys.argv[1:])
