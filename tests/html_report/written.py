"""Runs that were never trained: their folders, with the files that a report reads."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

CARTPOLE = "marlflow.env.games.cartpole_team.parallel_env"
PLAN = """\
flowchart LR
  subgraph p0["rollouts, in rounds"]
    s0(["Collect"])
    s1{{"ByPolicy"}}
  end
  subgraph p1["prey: ppo"]
    s2[("queue(4)")]
    s3["Learn(epochs=4)<br/>at learner prey"]
  end
  s0 --> s1
  s1 -->|"prey"| s2
  s2 --> s3
"""


def config(seed: int | None = 0, env: Mapping[str, Any] | None = None, **values: Any) -> dict[str, Any]:
    return {
        "env": {"_target_": CARTPOLE, "num_agents": 2, "num_envs": 16, **(env or {})},
        "policies": {"prey": {"algorithm": {"_target_": "marlflow.algorithms.ppo.PPO", "learning_rate": 3e-4}}},
        "stop": {"env_steps": 3000},
        "log": {"console": "auto"},
        "seed": seed,
        "name": "tag",
        **values,
    }


def policy(evaluated: float | None = None, at: int | None = None, trained: float | None = None) -> dict[str, Any]:
    return {"return_mean": trained, "eval_return_mean": evaluated, "eval_env_steps": at}


def report(env_steps: int, policies: Mapping[str, dict[str, Any]], **values: Any) -> dict[str, Any]:
    """A report of a run that makes 100 env steps in a second."""
    return {
        "time_s": env_steps / 100,
        "env_steps": env_steps,
        "episodes": env_steps // 10,
        "team_return_mean": None,
        "eval_team_return_mean": None,
        "policies": dict(policies),
        "learners": {name: {"updates": env_steps // 4} for name in policies},
        "stages": {
            "rollouts/Collect": {"busy_s": env_steps / 400, "starved_s": 0.0, "blocked_s": env_steps / 200},
            "prey/queue": {"busy_s": 0.0, "starved_s": 0.0, "blocked_s": 0.0},
        },
        "faults": {"env_errors": 0},
        **values,
    }


def evaluated(values: Sequence[float | None], every: int = 1000) -> list[dict[str, Any]]:
    """Reports of a run that is evaluated before each."""
    return [
        report(every * number, {"prey": policy(value, None if value is None else every * number, trained=-1.0)})
        for number, value in enumerate(values, 1)
    ]


def write_run(
    folder: Path, reports: Sequence[Mapping[str, Any]], described: Mapping[str, Any] | None = None, plan: str = PLAN
) -> Path:
    folder.mkdir(parents=True)
    lines = "".join(json.dumps(line) + "\n" for line in reports)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    if described is not None:
        (folder / "experiment.json").write_text(json.dumps(described), encoding="utf-8")
    (folder / "plan.mmd").write_text(plan, encoding="utf-8")
    return folder


def write_seeds(folder: Path, curves: Sequence[Sequence[float | None]], **described: Any) -> Path:
    """A sweep over seeds: one run for each curve of evaluations."""
    for seed, values in enumerate(curves):
        write_run(folder / str(seed), evaluated(values), config(seed, **described))
    return folder


def estimate(value: float, low: float | None = None, high: float | None = None) -> dict[str, float | None]:
    return {"value": value, "low": low, "high": high}


def write_evaluation(run: Path, number: int, **values: Any) -> Path:
    """A file of `marlflow evaluate`: a policy in its team, and games of `prey` against random on two sides."""
    side = {
        "games": 2,
        "has_winners": True,
        "win": estimate(0.5, 0.1, 0.9),
        "draw": estimate(0.25, 0.0, 0.5),
        "loss": estimate(0.25, 0.05, 0.6),
        "return": estimate(1.5),
        "iqm": 1.25,
        "length": 7.0,
        "team_return": estimate(4.5),
        "team_iqm": 4.25,
    }
    data = {
        "format": "marlflow evaluation 1",
        "checkpoint": "1000",
        "seed": 5,
        "mode": None,
        "modes": {"prey": "sampled", "random": "sampled"},
        "policies": [{"policy": "prey", "episodes": 10, "return": estimate(2.0, 1.5, 2.5), "iqm": 2.0, "length": 9.0}],
        "results": [
            {"member": "prey", "opponent": "random", **side, "games": 4, "as": {"player_0": side, "player_1": side}}
        ],
        "ended_s": 1_800_000_000.0,
        **values,
    }
    path = run / "evaluations" / f"{number}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(data), encoding="utf-8")
    return path
