"""Score the final policies of experiments on the field's tasks over seeds, as docs/results.md has them.

    python -m benchmarks.results lbf_10x10_3p_3f_ppo [--seeds 40,41,42,43,44] [--episodes 400]

Runs are in runs/results/<experiment>/<seed>; those that are complete are not trained again. Prints a line for each seed
and their mean with its 95 % interval over seeds, in the units of papers: the sum over agents. Draws the learning curves
and a film of the first seed into docs/results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import marlflow as mf
from benchmarks.gallery.pictures import FILM, STILL, film, write_curve
from benchmarks.seeds import add_seeds
from marlflow.league.comparison import mean_estimate
from marlflow.observe.sinks import METRICS, read_metrics

RUNS, PAGES = Path("runs/results"), Path("docs/results")


class Task(NamedTuple):
    """An experiment, the policy that is scored, its budget, and the environment's settings where it is scored."""

    policy: str
    env_steps: int
    env: dict[str, Any]


TASKS: Final = {"lbf_10x10_3p_3f_ppo": Task("agent", 10_000_000, {"batched": False})}


def trained(experiment: str, seed: int) -> Path:
    """Train in one thread, unless it is done; return the run's folder. Raises CalledProcessError if training fails."""
    folder = RUNS / experiment / str(seed)
    metrics = folder / METRICS
    if metrics.exists() and read_metrics(metrics)[-1]["env_steps"] >= TASKS[experiment].env_steps:
        return folder
    words = [f"experiment={experiment}", f"seed={seed}", "runtime=inline", "log.console=none"]
    command = [sys.executable, "-m", "marlflow", "train", *words, f"hydra.run.dir={folder}"]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return folder


def score(run: Path, task: Task, mode: Any, episodes: int) -> float:
    """Return the mean return of the final policies, as the sum over agents."""
    evaluated = mf.evaluate(run, episodes=episodes, mode=mode, env=task.env)
    (returns,) = [one for one in evaluated.returns if one.policy == task.policy]
    return returns.team.mean.value


def report(experiment: str, seeds: Sequence[int], episodes: int) -> None:
    """Train, score, print and draw."""
    task, runs = TASKS[experiment], {seed: trained(experiment, seed) for seed in seeds}
    reports = {seed: read_metrics(run / METRICS) for seed, run in runs.items()}
    scores: dict[str, list[float]] = {"as_learned": [], "greedy": []}
    for seed, run in runs.items():
        for mode, found in scores.items():
            found.append(score(run, task, mode, episodes))
        last = reports[seed][-1]
        told = ", ".join(f"{mode} {found[-1]:.3f}" for mode, found in scores.items())
        print(f"{experiment} seed {seed}: {told}; {last['env_steps']:,} env steps, {last['time_s']:.0f} s", flush=True)
    for mode, found in scores.items():
        mean = mean_estimate(found)
        interval = "" if mean.low is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
        print(f"{experiment}, {len(seeds)} seeds, {mode}: {mean.value:.3f}{interval}", flush=True)
    PAGES.mkdir(exist_ok=True)
    curve = [_curve(reports[seed], task.policy) for seed in seeds]
    write_curve(PAGES / f"{experiment}.svg", experiment, [{"key": "team_return", "title": "", "runs": curve}], {})
    film(runs[seeds[0]], seeds[0], PAGES, "sampled")
    (PAGES / FILM).rename(PAGES / f"{experiment}.webp")
    (PAGES / STILL).unlink()


def _curve(reports: Sequence[dict[str, Any]], policy: str) -> dict[str, list[float]]:
    """Return the team's training returns, which are sampled, by env steps."""
    values = {one["env_steps"]: one["policies"][policy]["team_return_mean"] for one in reports}
    told = {step: round(value, 4) for step, value in values.items() if value is not None}
    return {"env_steps": list(told), "values": list(told.values())}


def main(words: Sequence[str]) -> None:
    """Report on the experiments that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", nargs="+", choices=list(TASKS))
    parser.add_argument("--episodes", type=int, default=400)
    add_seeds(parser, 5)
    options = parser.parse_args(words)
    for experiment in options.experiment:
        report(experiment, options.seeds, options.episodes)


if __name__ == "__main__":
    main(sys.argv[1:])
