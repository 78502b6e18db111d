"""Does tuning help, and what does it cost? Optuna against an experiment's own settings, and ASHA against the grid.

python -m benchmarks.tuning --part optuna asha joblib --folder runs/tuning

`optuna`: 20 trials of 2,048 env steps, seed 0; then the best settings and the experiment's own with five other seeds.
`asha`: the example of docs/sweeps.md, `marlflow tune` with 32 trials: its env steps as a share of the env steps of the
same trials without a scheduler, and the best trial of both.
`joblib`: five seeds at a time and one after the other write the same metrics, except times, and the same checkpoints.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.killed_drivers import PROGRAM

SHORT = (
    "experiment=cartpole_team_ppo",
    "runtime=inline",
    "rollouts.fragment_env_steps=256",
    "stop.env_steps=2048",
    "checkpoint.every_env_steps=null",
    "log.console=none",
    "log.tensorboard=false",
)
FINAL = (
    "evaluation.episodes=0",
    "evaluation.final_episodes=20",
    "evaluation.mode=sampled",
    "objective=policies.team.eval_return_mean",
)
SPACE = (
    "policies.team.algorithm.learning_rate=tag(log,interval(1e-4,1e-2))",
    "policies.team.algorithm.batch_agent_steps=500,1000,2000,4000",
    "policies.team.algorithm.epochs=4,8,16",
)
OTHER_SEEDS = "seed=101,102,103,104,105"
EXAMPLE = (
    "experiment=cartpole_team_ppo",
    "objective=policies.team.return_mean",
    "log.every_env_steps=2000",
    "policies.team.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))",
    "policies.team.algorithm.epochs=4,8,16",
    # Not of the example, and without influence on it.
    "evaluation.episodes=0",
    "checkpoint.every_env_steps=null",
    "log.tensorboard=false",
    "parallel=2",
)


def marlflow(*words: str) -> float:
    """Run a command and return its seconds; raises CalledProcessError if it fails."""
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", PROGRAM, *words], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def rows(folder: Path) -> list[dict[str, str]]:
    """Return the rows of a sweep.csv."""
    with (folder / "sweep.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def reports(run: Path) -> list[dict[str, Any]]:
    """Return the reports of a run."""
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def optuna(folder: Path, trials: int) -> None:
    """Tune with Optuna, and compare the best settings with the experiment's own on other seeds."""
    found = folder / "optuna"
    sweeper = ("hydra/sweeper=optuna", f"hydra.sweeper.n_trials={trials}", f"hydra.sweep.dir={found}")
    seconds = marlflow("train", "-m", *SHORT, *FINAL, *SPACE, *sweeper)
    result = yaml.safe_load((found / "optimization_results.yaml").read_text(encoding="utf-8"))
    finals = [reports(found / row["folder"])[-1]["policies"]["team"]["eval_return_mean"] for row in rows(found)]
    print(f"optuna: {len(finals)} trials in {seconds:.0f} s; best {result['best_params']}: {result['best_value']:.1f}")
    print(f"  best of all metrics.jsonl: {max(finals):.1f}; the same: {max(finals) == result['best_value']}")
    best = [f"{key}={value}" for key, value in result["best_params"].items()]
    for name, settings in (("default", []), ("tuned", best)):
        where = folder / name
        marlflow("train", "-m", *SHORT, *FINAL, *settings, OTHER_SEEDS, f"hydra.sweep.dir={where}")
        returns = [float(row["objective"]) for row in rows(where)]
        print(f"  {name:<8} on seeds 101 to 105: {statistics.mean(returns):6.1f} ({_listed(returns)})")


def asha(folder: Path, samples: int) -> None:
    """Compare the env steps and the best trial of ASHA with the same trials without early stopping."""
    done = {}
    for scheduler in ("none", "asha"):
        where = folder / scheduler
        words = (*EXAMPLE, f"samples={samples}", f"scheduler={scheduler}", f"hydra.sweep.dir={where}")
        seconds = marlflow("tune", *words)
        done[scheduler] = rows(where)
        steps = [int(row["env_steps"]) for row in done[scheduler]]
        best = max(done[scheduler], key=lambda row: float(row["objective"] or "-inf"))
        settings = {key: value for key, value in best.items() if key.startswith("policies.")}
        print(f"scheduler={scheduler}: {len(steps)} trials, {sum(steps):,} env steps, {seconds:.0f} s")
        print(f"  to their end: {steps.count(max(steps))}; best {settings}: {float(best['objective']):.1f}")
    ran, whole = (sum(int(row["env_steps"]) for row in done[name]) for name in ("asha", "none"))
    print(f"  asha took {ran / whole:.2f} of the env steps")


def joblib(folder: Path) -> None:
    """Compare five seeds of parallel jobs with the same seeds one after the other."""
    launchers = {"serial": (), "joblib": ("hydra/launcher=joblib", "hydra.launcher.n_jobs=4")}
    for name, launcher in launchers.items():
        where = f"hydra.sweep.dir={folder / name}"
        seconds = marlflow("train", "-m", *SHORT, *FINAL, "seed=range(5)", *launcher, where)
        print(f"{name}: five seeds in {seconds:.0f} s")
    for seed in range(5):
        serial, parallel = (folder / name / str(seed) for name in launchers)
        same = [_untimed(reports(serial)) == _untimed(reports(parallel)), _hashes(serial) == _hashes(parallel)]
        print(f"  seed {seed}: same metrics {same[0]}, same checkpoints {same[1]}")


def _untimed(value: Any) -> Any:
    """Leave out what depends on the clock."""
    if isinstance(value, dict):
        return {key: _untimed(each) for key, each in value.items() if not key.endswith(("_s", "_per_s", "share"))}
    return [_untimed(each) for each in value] if isinstance(value, list) else value


def _hashes(run: Path) -> dict[str, str]:
    """Return the SHA-256 of every tensor file of a run's checkpoints, but the driver's, which has the run's name."""
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in (run / "checkpoints").glob("*/*.safetensors")
        if path.name != "driver.safetensors"
    }


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.0f}" for value in values)


def main() -> None:
    """Run the parts that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", nargs="+", default=["optuna", "asha", "joblib"], choices=["optuna", "asha", "joblib"])
    parser.add_argument("--folder", type=Path, default=Path("runs/tuning"), help="a new folder for all runs")
    parser.add_argument("--trials", type=int, default=20, help="of Optuna")
    parser.add_argument("--samples", type=int, default=32, help="trials of ASHA")
    asked = parser.parse_args()
    if "optuna" in asked.part:
        optuna(asked.folder, asked.trials)
    if "asha" in asked.part:
        asha(asked.folder, asked.samples)
    if "joblib" in asked.part:
        joblib(asked.folder)


if __name__ == "__main__":
    main()
