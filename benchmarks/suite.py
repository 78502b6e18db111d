"""Train every algorithm on its own experiment with five seeds: whether each learns, and whether it stays learned.

The settings were chosen on seeds 0 to 4; the seeds here are fresh ones (benchmarks/seeds.py). Runs are inline, in one
thread, so that a result does not depend on the machine; two run at a time. A seed passes if

- an evaluation during training (20 greedy episodes) reaches the bar after the first update,
- the final policy, evaluated over 100 greedy episodes, is within 5 % of the bar, and
- no evaluation after the bar was reached, the final one included, is more than 15 % below the bar.

Policies without the memory that their environment needs have to stay below a bar instead.

python -m benchmarks.suite [--seeds 20,21,22,23,24] [experiment ...]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.seeds import add_seeds, fresh_seeds
from marlflow.observe.sinks import read_metrics

FINAL_EPISODES = 100
FINAL_TOLERANCE, FALL_TOLERANCE = 0.05, 0.15


@dataclass(frozen=True)
class Case:
    """An experiment, changed by `overrides`: each policy must reach `bar`, or stay below it (`stays_below`)."""

    experiment: str
    bar: float
    stays_below: bool = False
    overrides: Sequence[str] = ()
    title: str = ""


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
    Case("cartpole_team_ppo_dqn", 190.0),
    Case("cartpole_team_memory_recurrent_ppo", 150.0),
    Case("cartpole_team_memory_r2d2", 150.0),
    Case(
        "cartpole_team_memory_recurrent_ppo",
        80.0,
        stays_below=True,
        overrides=("policy@policies.team=ppo",),
        title="the same with ppo, without memory",
    ),
    Case(
        "cartpole_team_memory_r2d2",
        80.0,
        stays_below=True,
        overrides=("policy@policies.team=dqn",),
        title="the same with dqn, without memory",
    ),
    Case("pendulum_team_sac", -250.0),
    Case("pendulum_team_td3", -250.0),
    Case("pendulum_team_ddpg", -250.0),
)


@dataclass(frozen=True)
class Evaluation:
    """The mean return of greedy episodes after `env_steps` of training; `trained` is False of the initial weights.

    A greedy policy of random weights may reach a bar by luck: one of A2C reached 199, and 65 after its first updates.
    """

    env_steps: int
    return_mean: float
    trained: bool


@dataclass(frozen=True)
class Outcome:
    """All evaluations of one policy in one run, in order; the last is of the final policy."""

    evaluations: Sequence[Evaluation]
    staleness: float

    @property
    def best(self) -> float:
        """The highest evaluation."""
        return max(one.return_mean for one in self.evaluations)

    @property
    def final(self) -> float:
        """The evaluation of the final policy."""
        return self.evaluations[-1].return_mean

    @property
    def worst_after_best(self) -> float:
        """The lowest evaluation from the best one on."""
        returns = [one.return_mean for one in self.evaluations]
        return min(returns[returns.index(self.best) :])

    def since(self, bar: float) -> Sequence[Evaluation]:
        """Return the evaluations from the first one at the bar on, without the untrained policy's."""
        reaching = [at for at, one in enumerate(self.evaluations) if one.trained and one.return_mean >= bar]
        return self.evaluations[reaching[0] :] if reaching else ()

    def problem(self, case: Case) -> str | None:
        """Return why the seed does not pass, or None."""
        if case.stays_below:
            return None if self.best < case.bar else "not below"
        if not (since := self.since(case.bar)):
            return "never there"
        if self.final < case.bar - FINAL_TOLERANCE * abs(case.bar):
            return "final too low"
        fell = min(one.return_mean for one in since) < case.bar - FALL_TOLERANCE * abs(case.bar)
        return "fell" if fell else None


def run(case: Case, seed: int) -> dict[str, Outcome]:
    """Train once; return the outcome of each policy."""
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
            f"evaluation.final_episodes={FINAL_EPISODES}",
            "evaluation.mode=greedy",
            f"hydra.run.dir={folder}",
            *case.overrides,
        ]
        subprocess.run(command, check=True, capture_output=True, text=True)
        records = list(read_metrics(Path(folder) / "metrics.jsonl"))
    return {policy: _outcome(records, policy) for policy in records[-1]["policies"]}


def _outcome(records: Sequence[dict[str, Any]], policy: str) -> Outcome:
    """Read a policy's outcome from `metrics.jsonl`."""
    shown = [{**record["learners"].get(policy, {}), **record["policies"][policy]} for record in records]
    evaluations = [
        Evaluation(one["eval_env_steps"], one["eval_return_mean"], one["eval_version"] > 0)
        for one in shown
        if one["eval_return_mean"] is not None
    ]
    staleness = [one["staleness_mean"] or 0.0 for one in shown]
    return Outcome(evaluations, sum(staleness) / len(staleness))


def report(names: Sequence[str] = (), seeds: Sequence[int] = ()) -> bool:
    """Print a line for each policy of each finished case; return whether all seeds of all cases passed."""
    seeds = seeds or fresh_seeds(5)
    cases = [case for case in CASES if not names or case.experiment in names]
    passed = True
    print("per seed: best / final / worst from the best on (env steps at which the bar was reached)", flush=True)
    with ThreadPoolExecutor(2) as pool:
        submitted = [(case, [pool.submit(run, case, seed) for seed in seeds]) for case in cases]
        for case, runs in submitted:
            try:
                outcomes = [one.result() for one in runs]
            except subprocess.CalledProcessError as error:
                print(f"{case.title or case.experiment}: FAILED: {error.stderr.strip().splitlines()[-1:]}", flush=True)
                passed = False
                continue
            for policy in outcomes[0]:
                of_policy = [outcome[policy] for outcome in outcomes]
                print(line(case, policy, of_policy), flush=True)
                passed = passed and not any(outcome.problem(case) for outcome in of_policy)
    return passed


def line(case: Case, policy: str, outcomes: Sequence[Outcome]) -> str:
    """Return the line of one policy's outcomes over all seeds."""
    wanted = f"below {case.bar:g}" if case.stays_below else f"bar {case.bar:g}"
    passes = sum(outcome.problem(case) is None for outcome in outcomes)
    staleness = sum(outcome.staleness for outcome in outcomes) / len(outcomes)
    shown = "; ".join(_shown(case, outcome) for outcome in outcomes)
    title = f"{case.title or case.experiment}, {policy}"
    return f"{title}: {wanted}: {passes} of {len(outcomes)}: {shown}; staleness {staleness:.1f}"


def _shown(case: Case, outcome: Outcome) -> str:
    since = () if case.stays_below else outcome.since(case.bar)
    reached = f" ({since[0].env_steps:,})" if since else ""
    problem = outcome.problem(case)
    figures = f"{outcome.best:.0f} / {outcome.final:.0f} / {outcome.worst_after_best:.0f}{reached}"
    return f"{figures} {problem.upper()}" if problem else figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", help="names of experiments; none: all")
    add_seeds(parser, 5)
    arguments = parser.parse_args()
    sys.exit(not report(arguments.experiments, arguments.seeds))
