"""Score the greedy play of a benchmark's runs, and draw them for docs/results.md.

    marlflow benchmark suite=lbf algorithms=ppo tasks=10x10-3p-3f seeds=5 first_seed=40
    python -m benchmarks.results runs/benchmark/lbf 10x10-3p-3f ppo [--episodes 400]

Prints for each seed the score of scores.csv, which is of play as learned, and that of greedy play, in the units of
papers: the sum over agents. Then their means with 95 % intervals over seeds. Draws learning curves and a film of the
first seed into docs/results.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import marlflow as mf
from benchmarks.gallery.pictures import FILM, STILL, film, write_curve
from marlflow.config.other_environment import env_of_words
from marlflow.league.comparison import mean_estimate
from marlflow.observe.sinks import METRICS, read_metrics

PAGES: Final = Path("docs/results")


def greedy_score(run: Path, scored: dict[str, Any], episodes: int) -> float:
    """Return the mean return of greedy play in the scored environment, as the sum over agents."""
    evaluated = mf.evaluate(run, episodes=episodes, mode="greedy", env=env_of_words(scored["env"]))
    return sum(one.team.mean.value for one in evaluated.returns if one.policy in scored["policies"])


def report(folder: Path, task: str, algorithm: str, episodes: int) -> None:
    """Score, print and draw."""
    with (folder / "scores.csv").open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if (row["task"], row["algorithm"]) == (task, algorithm)]
    rows.sort(key=lambda row: int(row["seed"]))  # the file has them in the order in which runs ended
    if not rows:
        sys.exit(f"{folder}/scores.csv has no run of {algorithm} on {task}")
    scores: dict[str, list[float]] = {"as learned": [], "greedy": []}
    reports = []
    for row in rows:
        run, scored = folder / task / algorithm / row["seed"], json.loads(row["scored"])
        scores["as learned"].append(float(row["score"]))
        scores["greedy"].append(greedy_score(run, scored, episodes))
        reports.append(read_metrics(run / METRICS))
        told = ", ".join(f"{mode} {found[-1]:.3f}" for mode, found in scores.items())
        last = reports[-1][-1]
        print(f"seed {row['seed']}: {told}; {last['env_steps']:,} env steps, {last['time_s']:.0f} s", flush=True)
    for mode, found in scores.items():
        mean = mean_estimate(found)
        interval = "" if mean.low is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
        print(f"{algorithm} on {task}, {len(rows)} seeds, {mode}: {mean.value:.3f}{interval}", flush=True)
    PAGES.mkdir(exist_ok=True)
    name = f"{folder.name.partition('_')[0]}_{task}_{algorithm}".replace("-", "_")
    (policy,) = json.loads(rows[0]["scored"])["policies"]
    curves = [_curve(one, policy) for one in reports]
    write_curve(PAGES / f"{name}.svg", name, [{"key": "team_return", "title": "", "runs": curves}], {})
    film(folder / task / algorithm / rows[0]["seed"], int(rows[0]["seed"]), PAGES, "sampled")
    (PAGES / FILM).rename(PAGES / f"{name}.webp")
    (PAGES / STILL).unlink()


def _curve(reports: Sequence[dict[str, Any]], policy: str) -> dict[str, list[float]]:
    """Return the team's training returns, with its exploration, by env steps."""
    values = {one["env_steps"]: one["policies"][policy]["team_return_mean"] for one in reports}
    told = {step: round(value, 4) for step, value in values.items() if value is not None}
    return {"env_steps": list(told), "values": list(told.values())}


def main(words: Sequence[str]) -> None:
    """Report on the task and the algorithm that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("task")
    parser.add_argument("algorithm")
    parser.add_argument("--episodes", type=int, default=400)
    options = parser.parse_args(words)
    report(options.folder, options.task, options.algorithm, options.episodes)


if __name__ == "__main__":
    main(sys.argv[1:])
