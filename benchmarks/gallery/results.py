"""Evaluates the runs of a gallery experiment, and gathers everything that its page says as plain data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import marlflow as mf
from benchmarks.gallery.cases import EPISODES, GAMES, RECORDED, GalleryCase
from benchmarks.gallery.runs import made_with, run_folder, trained_env_steps
from benchmarks.meta import HELD_OUT_TASKS, adapted_returns, learned
from marlflow.checks.validation import from_config, ready
from marlflow.config.compose import composing
from marlflow.config.overrides import prepare
from marlflow.driver.evaluate import EvaluationResult
from marlflow.env.opening import open_adapter
from marlflow.html_report.measures import Measure, measures_of, series
from marlflow.html_report.runs import ReportedRun, number, read_run, section
from marlflow.league.comparison import Estimate, Results, mean_estimate
from marlflow.trained.games import Decision, Episode, play_episode

EVALUATION_SEED = 0
"""Seed of all evaluations; their episodes differ from the episodes of training."""
_DIGITS = 5


def results(case: GalleryCase, seeds: Sequence[int]) -> dict[str, Any]:
    """Return the results of complete runs as JSON data; raises FileNotFoundError if one is missing."""
    folders = {seed: run_folder(case, seed) for seed in seeds}
    made = {seed: made_with(folder) for seed, folder in folders.items()}
    runs = {seed: read_run(folder) for seed, folder in folders.items()}
    evaluated = {seed: _evaluated(case, folder) for seed, folder in folders.items()}
    first = made[seeds[0]]
    return {
        "experiment": case.experiment,
        "overrides": list(case.overrides),
        "env": _environment(read_run(case.expert_run(seeds[0])) if case.expert else runs[seeds[0]]),
        "policies": _algorithms(case, seeds[0]),
        "seeds": list(seeds),
        "commits": sorted({one["commit"] for one in made.values()}),
        "versions": first["versions"],
        "hardware": first["hardware"],
        "evaluation": _evaluation(case, seeds[0]),
        "runs": [_run(runs[seed], made[seed]) for seed in seeds],
        "curves": _curves(list(runs.values())),
        "distinct": {str(seed): one.distinct for seed, one in evaluated.items()},
        "together": {str(seed): _together(one) for seed, one in evaluated.items() if one.returns},
        "against_random": _against_random(case, folders, evaluated),
        "random": _random(folders[seeds[0]], evaluated[seeds[0]]),
        "adapted": _adapted(case, folders),
        "expert": _expert(case, seeds),
    }


def _evaluated(case: GalleryCase, folder: Path) -> EvaluationResult:
    """Return the evaluation of all policies together, or in a league against random opponents."""
    if case.members:
        return mf.evaluate(folder, members=case.members, against=["random"], episodes=GAMES)
    return mf.evaluate(folder, episodes=EPISODES)


def _environment(run: ReportedRun) -> dict[str, Any]:
    """Return the environment's import path and arguments."""
    env = section(run.config, "env")
    pool = ("_target_", "num_envs", "step_timeout_s", "wrappers")
    return {"target": env.get("_target_"), **{name: value for name, value in env.items() if name not in pool}}


@cache
def experiment_of(case: GalleryCase, seed: int) -> mf.Experiment:
    """Return the experiment that the command line trains."""
    with composing():
        prepared = prepare(case.words(seed))
    return from_config(prepared.config, prepared.problems)


def _algorithms(case: GalleryCase, seed: int) -> dict[str, str]:
    """Return the name of each policy's algorithm."""
    experiment = experiment_of(case, seed)
    joint = {policy: one.algorithm.name for one in experiment.learners.values() for policy in one.policies}
    return {
        name: policy.algorithm.name if policy.algorithm is not None else joint[name]
        for name, policy in experiment.policies.items()
    }


def _evaluation(case: GalleryCase, seed: int) -> dict[str, Any]:
    evaluation = experiment_of(case, seed).evaluation
    return {
        "during": evaluation.episodes,
        "mode": evaluation.mode,
        "opponents": list(evaluation.opponents or ()),
        "final": EPISODES,
        "seed": EVALUATION_SEED,
    }


def _run(run: ReportedRun, made: Mapping[str, Any]) -> dict[str, Any]:
    stages = section(run.last, "learners")
    return {
        "seed": run.seed,
        "env_steps": run.env_steps,
        "agent_steps": int(number(run.last, "agent_steps") or 0),
        "updates": {name: int(number(stages, name, "updates") or 0) for name in stages},
        "time_s": round(run.time_s, 1),
        "cpu_s": round(made["cpu_s"], 1),
    }


def _curves(runs: Sequence[ReportedRun]) -> list[dict[str, Any]]:
    """Return the curves of all measures, a value of each run by env steps; and that of NashConv, if it was computed."""
    found = [_curve(measure, runs) for measure in measures_of(runs)]
    by_run = [_nash_conv(run) for run in runs]
    if all(by_run):
        lines = [{"env_steps": list(one), "values": list(map(rounded, one.values()))} for one in by_run]
        found.append(
            {"key": "nash_conv", "title": "NashConv", "unit": "sum of what each player could gain", "runs": lines}
        )
    return found


def _curve(measure: Measure, runs: Sequence[ReportedRun]) -> dict[str, Any]:
    lines = [series(run, measure) for run in runs]
    return {
        "key": measure.key,
        "title": measure.title,
        "unit": measure.unit,
        "runs": [
            {"env_steps": [int(step) for step in one.env_steps], "values": [rounded(value) for value in one.values]}
            for one in lines
        ],
    }


def _nash_conv(run: ReportedRun) -> dict[int, float]:
    points = {
        number(report, "league", "nash_conv_env_steps"): number(report, "league", "nash_conv") for report in run.reports
    }
    return {int(step): value for step, value in points.items() if step is not None and value is not None}


def rounded(value: float) -> float:
    """Return a value with five significant digits, so that files stay small.

    >>> rounded(194.28571), rounded(-0.0123456789)
    (194.29, -0.012346)
    """
    if value == 0 or not math.isfinite(value):
        return float(value)
    return round(float(value), _DIGITS - 1 - math.floor(math.log10(abs(value))))


def _estimate(one: Estimate | None) -> list[float] | None:
    if one is None:
        return None
    return [rounded(value) for value in (one.value, one.low, one.high) if value is not None]


def _together(evaluated: EvaluationResult) -> dict[str, Any]:
    """Return the returns of policies that play together, each `[mean, low, high]`."""
    return {
        one.policy: {
            "agents": list(one.agents),
            "episodes": one.episodes,
            "return": _estimate(one.mean),
            "length": rounded(one.length),
            "win": _estimate(one.win),
        }
        for one in evaluated.returns
    }


def _against_random(
    case: GalleryCase, folders: Mapping[int, Path], evaluated: Mapping[int, EvaluationResult]
) -> dict[str, Any]:
    """Return, by seed and member, games against random opponents: of leagues always, otherwise if the case says so."""
    found = {}
    for seed, folder in folders.items():
        one = evaluated[seed]
        if not one.comparisons:
            if not case.has_opponents:
                return {}
            one = mf.evaluate(folder, against=["random"], episodes=GAMES)
        found[str(seed)] = {
            compared.member: {
                "games": compared.results.games,
                "return": _estimate(compared.results.score),
                **_outcomes(compared.results),
            }
            for compared in one.comparisons
            if compared.results is not None
        }
    return found


def _adapted(case: GalleryCase, folders: Mapping[int, Path]) -> dict[str, Any]:
    """Return, by seed, the mean returns in held-out tasks before and after MAML's inner step; of others nothing."""
    if "maml" not in _algorithms(case, min(folders)).values():
        return {}
    found = {}
    for seed, folder in folders.items():
        shown = adapted_returns(ready(experiment_of(case, seed)).spec, learned(folder))
        found[str(seed)] = {
            "tasks": HELD_OUT_TASKS,
            "before": rounded(shown.before.mean()),
            "after": rounded(shown.after.mean()),
            "p": shown.p(),
        }
    return found


def _expert(case: GalleryCase, seeds: Sequence[int]) -> dict[str, Any]:
    """Return, by seed, what an expert's run had reached while it was recorded; empty for what learns from play."""
    if case.expert is None:
        return {}
    found = {}
    for seed in seeds:
        run = read_run(case.expert_run(seed))
        began = trained_env_steps(case, seed)
        returns = {
            policy: [
                value
                for report in run.reports
                if report["env_steps"] > began
                and (value := number(report, "policies", policy, "return_mean")) is not None
            ]
            for policy in section(run.last, "policies")
        }
        found[str(seed)] = {
            "env_steps": run.env_steps - began,
            "stop_env_steps": began + RECORDED,
            "return": {policy: rounded(sum(values) / len(values)) for policy, values in returns.items()},
        }
    return found


def _outcomes(games: Results) -> dict[str, Any]:
    """Return the shares of games won, drawn and lost, where one side's gain is the other's loss."""
    if not games.is_constant_sum:
        return {}
    return {name: _estimate(getattr(games, name)) for name in ("win", "draw", "loss")}


def _random(folder: Path, evaluated: EvaluationResult) -> dict[str, Any]:
    """Return the returns that each policy's agents have if all agents act at random; of leagues nothing."""
    if not evaluated.returns:
        return {}
    team = mf.load(folder)
    adapter = open_adapter(team.played_env())
    try:
        for seed, agent in enumerate(adapter.agents):
            adapter.action_space(agent).seed(seed)
        episodes = [
            play_episode(adapter, Episode(at, EPISODES, team.reset(EVALUATION_SEED, at)), {}, _at_random, [])
            for at in range(EPISODES)
        ]
    finally:
        adapter.close()
    return {
        one.policy: _estimate(
            mean_estimate([mean for episode in episodes if (mean := _mean(episode, one.agents)) is not None])
        )
        for one in evaluated.returns
    }


def _at_random(decision: Decision) -> Any:
    mask = None if decision.mask is None else np.asarray(decision.mask, np.int8)
    return decision.space.sample(mask)


def _mean(episode: Episode, agents: Sequence[str]) -> float | None:
    returns = [episode.returns[agent] for agent in agents if agent in episode.returns]
    return sum(returns) / len(returns) if returns else None
