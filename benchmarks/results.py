"""Score the greedy play of a benchmark's runs, and draw them, or runs of one of ALONE, for docs/results.md.

    marlflow benchmark suite=lbf algorithms=ppo tasks=10x10-3p-3f seeds=5 first_seed=40
    python -m benchmarks.results runs/benchmark/lbf 10x10-3p-3f ppo [--episodes 400]

Prints for each seed the score of scores.csv, which is of play as learned, and that of greedy play, in the units of
papers: the sum over agents. Then their means with 95 % intervals over seeds. Draws learning curves and a film of the
first seed into docs/results.

    marlflow train experiment=smax_3m_qmix_ppo runtime=inline
    python -m benchmarks.results smax_3m_qmix_ppo RUN [RUN ...]

Draws the curves of the experiment's groups of agents, and a film of the first run.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import marlflow as mf
from benchmarks.gallery.pictures import FILM, STILL, film, write_curve
from marlflow.config.other_environment import env_of_words
from marlflow.league.comparison import mean_estimate
from marlflow.observe.sinks import METRICS, read_metrics

PAGES: Final = Path("docs/results")
ALONE: Final = {
    "pursuit_ppo": ("return, sum over eight pursuers", {"": "policies.pursuer.team_return_mean"}),
    "pistonball_ppo": ("return, sum over twenty pistons", {"": "policies.piston.team_return_mean"}),
    "multiwalker_ppo": ("return, sum over three walkers", {"": "policies.walker.team_return_mean"}),
    "lbf_10x10_3p_3f_ppo_dqn": (
        "return of the group (all food is 50)",
        {
            "two agents, PPO": "policies.ppo_pair.team_return_mean",
            "one agent, DQN": "policies.dqn_one.team_return_mean",
        },
    ),
    "smax_3m_qmix_ppo": (
        "share of battles won",
        {"QMIX, with exploration": "policies.ally.infos.won_episode", "PPO": "policies.enemy.infos.won_episode"},
    ),
    "smax_3m_pfsp": (
        "share of games won",
        {
            "against random play": "policies.main.eval_infos.won_episode",
            "against its snapshots": "league.players.main.win_rate_mean",
            "against the hardest one": "league.players.main.win_rate_min",
        },
    ),
}
"""Experiments of no suite, each with one figure: its unit, and the places in reports of its values, by title."""


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
    runs = [folder / task / algorithm / row["seed"] for row in rows]
    for run, row in zip(runs, rows, strict=True):
        scored = json.loads(row["scored"])
        scores["as learned"].append(float(row["score"]))
        scores["greedy"].append(greedy_score(run, scored, episodes))
        told = ", ".join(f"{mode} {found[-1]:.3f}" for mode, found in scores.items())
        last = read_metrics(run / METRICS)[-1]
        print(f"seed {row['seed']}: {told}; {last['env_steps']:,} env steps, {last['time_s']:.0f} s", flush=True)
    for mode, found in scores.items():
        mean = mean_estimate(found)
        interval = "" if mean.low is None else f" [{mean.low:.3f}, {mean.high:.3f}]"
        print(f"{algorithm} on {task}, {len(rows)} seeds, {mode}: {mean.value:.3f}{interval}", flush=True)
    name = f"{folder.name.partition('_')[0]}_{task}_{algorithm}".replace("-", "_")
    (policy,) = json.loads(rows[0]["scored"])["policies"]
    # The team's training returns, with its exploration.
    draw(name, runs, "", {"": f"policies.{policy}.team_return_mean"})


def draw(name: str, runs: Sequence[Path], unit: str, places: Mapping[str, str]) -> None:
    """Draw curves of what is at each of `places` in the reports of runs, by title, and a film of the first run."""
    PAGES.mkdir(exist_ok=True)
    reports = [read_metrics(run / METRICS) for run in runs]
    curves = [
        {"key": place, "title": title, "runs": [_curve(one, place) for one in reports]}
        for title, place in places.items()
    ]
    write_curve(PAGES / f"{name}.svg", name, curves, {}, unit)
    film(runs[0], 0, PAGES, "as_learned")
    (PAGES / FILM).rename(PAGES / f"{name}.webp")
    (PAGES / STILL).unlink()


def _curve(reports: Sequence[dict[str, Any]], place: str) -> dict[str, list[float]]:
    """Return the values at a place in reports by env steps; an evaluation's are at those at which it was made."""
    values: dict[float, float] = {}
    for one in reports:
        found: Any = one
        step = one["env_steps"]
        for key in place.split("."):
            step = found["eval_env_steps"] if key.startswith("eval_") else step
            found = (found or {}).get(key)
        if found is not None:
            values[step] = round(found, 4)
    return {"env_steps": list(values), "values": list(values.values())}


def main(words: Sequence[str]) -> None:
    """Report on what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("of", help=f"a benchmark's folder, or {', '.join(ALONE)}")
    parser.add_argument("which", nargs="+", help="the benchmark's task and algorithm, or runs of the experiment")
    parser.add_argument("--episodes", type=int, default=400)
    options = parser.parse_args(words)
    if options.of in ALONE:
        draw(options.of, [Path(run) for run in options.which], *ALONE[options.of])
    else:
        report(Path(options.of), *options.which, options.episodes)


if __name__ == "__main__":
    main(sys.argv[1:])
