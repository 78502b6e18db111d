"""Compare PPO and MAPPO with BenchMARL's on VMAS: env steps per second of CPU time, learning included, and returns.

    python -m benchmarks.against_benchmarl_vmas --python V/bin/python [ippo mappo] [--scenario balance] [--cores 2]

Both have the same networks, 600 environments of VMAS 1.5.2, batches of 60,000 env steps, ten epochs of minibatches of
a tenth, and take turns. With `--cores 1` (the default) both run in one process on one thread, and rates are per second
of the process's CPU time, so that other programs do not count; wall time is in brackets. With `--cores 2` rates are per
second of wall time: BenchMARL has two threads, marlflow two workers and two processes of one learner, in lockstep, so
that both are on-policy. The first iteration is a warm-up. marlflow's Python needs the extra `vmas`; BenchMARL needs an
environment of its own:

    python -m venv V && V/bin/pip install torch==2.13.0 torchrl==0.11.1 vmas==1.5.2 hydra-core tqdm setuptools
    V/bin/pip install --no-deps --no-build-isolation benchmarl==1.5.2

What stays different: marlflow's Gaussian is clipped to the actions' range; BenchMARL's is squashed by tanh, and its
standard deviation depends on the observation. marlflow normalizes advantages, and clips the gradients of actor and
critic together; BenchMARL clips them apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"

import torch

from benchmarks.against_benchmarl import lines_of
from benchmarks.seeds import add_seeds
from marlflow.algorithms.mappo import MAPPO
from marlflow.algorithms.ppo import PPO
from marlflow.config.experiment import (
    CheckpointConfig,
    Env,
    Evaluation,
    Experiment,
    Log,
    Policy,
    Rollouts,
    RunPlacement,
    RuntimeConfig,
    Stop,
)
from marlflow.driver.train import train
from marlflow.observe.callback import Callback
from marlflow.policy.torso import MLP
from marlflow.runtime.spec import LearnerPlacement

SCRIPT = Path(__file__).parent / "peers" / "benchmarl_vmas.py"
TARGET = 3.0
ALGORITHMS = ("ippo", "mappo")
COMPILE: Mapping[str, Any] = {"auto": "auto", "true": True, "false": False}
# Parameters of BenchMARL's tasks.
PARAMETERS: Mapping[str, Mapping[str, Any]] = {
    "balance": {"n_agents": 4, "random_package_pos_on_line": True, "package_mass": 5},
    "navigation": {"n_agents": 3, "lidar_range": 0.35, "agent_radius": 0.1},
}
SETTINGS: dict[str, Any] = {
    "num_envs": 600,
    "epochs": 10,
    "learning_rate": 5e-4,
    "discount": 0.95,
    "gae_lambda": 0.95,
    "hidden": [64, 64],
}


@dataclass
class PrintTimes(Callback):
    """Prints a line of JSON at each report."""

    def __post_init__(self) -> None:
        self.cpu, self.wall = time.process_time(), time.perf_counter()

    def reported(self, record: Mapping[str, Any]) -> None:
        """Print."""
        line = {
            "env_steps": record["env_steps"],
            "cpu_s": time.process_time() - self.cpu,
            "sampled_s": None,
            "wall_s": time.perf_counter() - self.wall,
            "return_mean": record["policies"]["agent"]["return_mean"],
        }
        print(json.dumps(line), flush=True)


def train_with_marlflow(algorithm: str, scenario: str, env_steps: int, seed: int, settings: Mapping[str, Any]) -> None:
    """Train in this process, or with one worker and one learner process per core; print JSON per iteration."""
    torch.set_num_threads(1)
    agents = PARAMETERS[scenario]["n_agents"]
    shared: dict[str, Any] = {
        "batch_agent_steps": settings["batch_env_steps"] * agents,
        "minibatch_agent_steps": settings["minibatch_env_steps"] * agents,
        **{name: settings[name] for name in ("epochs", "learning_rate", "discount", "gae_lambda", "compile")},
    }
    made = PPO(**shared) if algorithm == "ippo" else MAPPO(**shared, critic_sees=["state"], parts={"values": None})
    arguments = {"scenario": scenario, "parameters": PARAMETERS[scenario], "max_env_steps": 100}
    cores = settings["cores"]
    env_of_worker = Env("marlflow.env.batched.vmas.VmasEnv", arguments, num_envs=settings["num_envs"], batched=True)
    experiment = Experiment(
        env=env_of_worker,
        policies={"agent": Policy(made, model=MLP(settings["hidden"]))},
        rollouts=Rollouts(num_workers=cores, fragment_env_steps=settings["batch_env_steps"] // cores),
        runtime=RuntimeConfig("inline" if cores == 1 else "ray"),
        placement=RunPlacement(learners=LearnerPlacement(num_learners=cores)),
        evaluation=Evaluation(episodes=0),
        checkpoint=CheckpointConfig(every_env_steps=None),
        callbacks={"times": PrintTimes()},
        log=Log(console="none", tensorboard=False, every_env_steps=settings["batch_env_steps"]),
        stop=Stop(env_steps=env_steps),
        seed=seed,
    )
    with tempfile.TemporaryDirectory() as folder:
        train(experiment, folder)


def rates(lines: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return env steps per second of CPU time and of wall time, from the end of the first iteration on.

    marlflow reports after each collect, and once more at the end, which is left out: so the numbers of
    updates and collects in between are equal.
    """
    first, last = lines[0], next(line for line in lines if line["env_steps"] == lines[-1]["env_steps"])
    steps = last["env_steps"] - first["env_steps"]
    return steps / (last["cpu_s"] - first["cpu_s"]), steps / (last["wall_s"] - first["wall_s"])


def last_return(lines: Sequence[Mapping[str, Any]]) -> float:
    """Return the last mean return that was reported; NaN if no episode ended."""
    return next((line["return_mean"] for line in reversed(lines) if line["return_mean"] is not None), float("nan"))


def report(
    python: str, algorithm: str, scenario: str, env_steps: int, seeds: Sequence[int], settings: Mapping[str, Any]
) -> None:
    """Train each seed with both, in turns, and print."""
    by_wall = settings["cores"] > 1
    given, ratios = json.dumps(settings), []
    ours, theirs = [], []
    for seed in seeds:
        of_run = [algorithm, scenario, str(env_steps), str(seed), given]
        ours.append(lines_of([sys.executable, "-m", "benchmarks.against_benchmarl_vmas", "--one", *of_run], 1))
        theirs.append(lines_of([python, str(SCRIPT), *of_run], settings["cores"]))
        (own, own_wall), (other, other_wall) = rates(ours[-1]), rates(theirs[-1])
        if by_wall:
            rate, other_rate = f"{own_wall:,.0f} env steps per s of wall time", f"{other_wall:,.0f}"
        else:
            rate = f"{own:,.0f} env steps per s of CPU time ({own_wall:,.0f} wall)"
            other_rate = f"{other:,.0f} ({other_wall:,.0f})"
        ratios.append(own_wall / other_wall if by_wall else own / other)
        print(
            f"{algorithm} {scenario} seed {seed}: {rate}, return {last_return(ours[-1]):.2f}; BenchMARL "
            f"{other_rate}, return {last_return(theirs[-1]):.2f}; {ratios[-1]:.1f} times",
            flush=True,
        )
    returns = [statistics.mean(last_return(lines) for lines in runs) for runs in (ours, theirs)]
    ratio = statistics.median(ratios)
    print(
        f"{algorithm} {scenario}: {ratio:.1f} times BenchMARL (bar {TARGET:g}: "
        f"{'reached' if ratio >= TARGET else 'MISSED'}); return after {env_steps:,} env steps {returns[0]:.2f}, "
        f"BenchMARL {returns[1]:.2f}; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        flush=True,
    )


def main(arguments: Sequence[str] = ()) -> None:
    """Compare the named algorithms; print a note if there is no BenchMARL."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="*", default=ALGORITHMS, help=f"of {', '.join(ALGORITHMS)}; none: all")
    parser.add_argument("--python", default=os.environ.get("MARLFLOW_BENCHMARL_PYTHON"), help="one that has BenchMARL")
    parser.add_argument("--scenario", nargs="+", choices=list(PARAMETERS), default=list(PARAMETERS))
    parser.add_argument("--env-steps", type=int, default=300_000)
    parser.add_argument("--batch-env-steps", type=int, default=60_000)
    parser.add_argument("--cores", type=int, choices=(1, 2), default=1)
    parser.add_argument(
        "--compile", choices=COMPILE, default="auto", help="marlflow's updates, by XLA; auto: not the first"
    )
    add_seeds(parser, 3)
    options = parser.parse_args(arguments)
    if options.python is None:
        print("beside BenchMARL: not measured, MARLFLOW_BENCHMARL_PYTHON names no Python that has it", flush=True)
        return
    sizes = {"batch_env_steps": options.batch_env_steps, "minibatch_env_steps": options.batch_env_steps // 10}
    settings = {**SETTINGS, **sizes, "cores": options.cores, "compile": COMPILE[options.compile]}
    for scenario in options.scenario:
        for algorithm in options.algorithm:
            report(options.python, algorithm, scenario, options.env_steps, options.seeds, settings)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        name, task, steps, number, given_settings = sys.argv[2:]
        train_with_marlflow(name, task, int(steps), int(number), json.loads(given_settings))
    else:
        main(sys.argv[1:])
