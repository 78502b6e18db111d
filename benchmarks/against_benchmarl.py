"""Compare MAPPO or QMIX with BenchMARL's on simple_spread: env steps/s, and returns after equal env steps.

    python -m benchmarks.against_benchmarl mappo qmix --python V/bin/python [--env-steps 200000] [--seeds 20,21,22]

Both have two cores, the same networks, batches, epochs and updates per env step, and environments of the same version
of mpe2. They run in turns, one seed after the other, so that ratios are of one time. BenchMARL needs a virtual
environment of its own, without its requirements for videos:

    python -m venv V && V/bin/pip install torch==2.13.0 torchrl==0.11.1 mpe2==1.1.1 hydra-core tqdm setuptools
    V/bin/pip install --no-deps --no-build-isolation benchmarl==1.5.2

What stays different: marlflow normalizes advantages and values (Pop-Art), and clips the gradients of actor and critic
together; BenchMARL normalizes neither, and clips them apart. QMIX's loss is half the squared error here and the squared
error there; its exploration is annealed over agent steps here and over env steps there, equally far.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.seeds import add_seeds
from marlflow.observe.sinks import METRICS, read_metrics

SCRIPT = Path(__file__).parent / "peers" / "benchmarl_spread.py"
TARGET = 4.0
CORES = 2
ALGORITHMS = ("mappo", "qmix")
WARM_UP_ENV_STEPS = 2_000
LAST_SHARE = 0.1
"""Of the env steps: returns are of the episodes that ended in the last of them, as played."""
_NUM_AGENTS = 3

_SETTINGS: Mapping[str, Mapping[str, object]] = {
    "mappo": {
        "batch_agent_steps": 3_000,
        "epochs": 10,
        "minibatch_agent_steps": 750,
        "learning_rate": 1e-3,
        "discount": 0.95,
        "critic_sees": "[state]",
    },
    "qmix": {
        "batch_agent_steps": 384,
        "train_every_agent_steps": 30,
        "learning_starts_agent_steps": 0,
        "store_agent_steps": 3_000,
        "discount": 0.95,
        "n_step": 1,
        "double": "false",
        "target_every_updates": 1,
        "tau": 0.005,
        "publish_every_updates": 100,
    },
}


class Outcome(dict[str, float]):
    """`env_steps_per_s` and `return_mean` of a run."""


def _outcome(points: Sequence[tuple[int, float, float, float]], env_steps: int) -> Outcome:
    """Return the outcome of a run, from its reports: env steps, seconds, sum of returns and episodes so far."""
    first = next(point for point in points if point[0] >= WARM_UP_ENV_STEPS)
    last = points[-1]
    late = [point for point in points if point[0] <= (1.0 - LAST_SHARE) * env_steps][-1]
    speed = (last[0] - first[0]) / (last[1] - first[1])
    return Outcome(env_steps_per_s=speed, return_mean=(last[2] - late[2]) / (last[3] - late[3]))


def marlflow_outcome(algorithm: str, env_steps: int, seed: int) -> Outcome:
    """Train with marlflow: two workers in rounds of 1,000 env steps, 20 environments."""
    words = [f"policies.agent.algorithm.{name}={value}" for name, value in _SETTINGS[algorithm].items()]
    if algorithm == "qmix":
        schedule = f"start: 1.0, end: 0.05, agent_steps: {env_steps * _NUM_AGENTS // 2}"
        words.append(f"policies.agent.algorithm.epsilon={{_target_: marlflow.Linear, {schedule}}}")
    with tempfile.TemporaryDirectory() as folder:
        command = [
            str(Path(sys.executable).with_name("marlflow")),
            "train",
            "env=simple_spread",
            "env.num_envs=20",
            f"policy@policies.agent={algorithm}",
            *words,
            "rollouts.num_workers=2",
            "rollouts.fragment_env_steps=500",
            "evaluation.episodes=0",
            "checkpoint.every_env_steps=null",
            "log.console=none",
            "log.tensorboard=false",
            "log.every_env_steps=1000",
            f"stop.env_steps={env_steps}",
            f"seed={seed}",
            f"hydra.run.dir={folder}/run",
        ]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        reports = list(read_metrics(Path(folder) / "run" / METRICS))
    points, total, before = [], 0.0, 0
    for report in reports:
        policy = report["policies"]["agent"]
        # The mean is over at most 100 episodes, more than end in one round.
        total += (policy["return_mean"] or 0.0) * (policy["episodes"] - before)
        before = policy["episodes"]
        points.append((report["env_steps"], report["time_s"], total, before))
    return _outcome(points, env_steps)


def lines_of(command: Sequence[str], threads: int) -> list[dict[str, Any]]:
    """Run a process with that many threads for PyTorch; return the lines of JSON that it prints."""
    # XLA takes a thread for each core otherwise, whatever its flag says.
    xla = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"} if threads == 1 else {}
    env = {**os.environ, "OMP_NUM_THREADS": str(threads), **xla}
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def benchmarl_outcome(python: str, algorithm: str, env_steps: int, seed: int, threads: int) -> Outcome:
    """Train with BenchMARL, in one process."""
    command = [python, str(SCRIPT), algorithm, str(env_steps), str(seed)]
    lines = lines_of(command, threads)
    points, returns, episodes = [], 0.0, 0
    for line in lines:
        returns, episodes = returns + line["returns"], episodes + line["episodes"]
        points.append((line["env_steps"], line["time_s"], returns, episodes))
    return _outcome(points, env_steps)


def report(algorithm: str, python: str, env_steps: int, seeds: Sequence[int], threads: int = 1) -> None:
    """Train each seed with both, in turns, and print."""
    ours, theirs = [], []
    for seed in seeds:
        ours.append(marlflow_outcome(algorithm, env_steps, seed))
        theirs.append(benchmarl_outcome(python, algorithm, env_steps, seed, threads))
        shown = (
            f"{one['env_steps_per_s']:,.0f} env steps/s, return {one['return_mean']:.2f}"
            for one in (ours[-1], theirs[-1])
        )
        print(f"{algorithm} seed {seed}, {env_steps:,} env steps: {'; BenchMARL '.join(shown)}", flush=True)
    ratios = [one["env_steps_per_s"] / other["env_steps_per_s"] for one, other in zip(ours, theirs, strict=True)]
    own, other = ([one["return_mean"] for one in outcomes] for outcomes in (ours, theirs))
    spread = statistics.stdev(own) if len(own) > 1 else 0.0
    print(
        f"{algorithm}: {statistics.median(ratios):.1f} times BenchMARL's env steps/s (target {TARGET:.0f}); return "
        f"{statistics.mean(own):.2f} +- {spread:.2f}, BenchMARL {statistics.mean(other):.2f} (target: no worse than by "
        f"that spread)",
        flush=True,
    )


def main(arguments: Sequence[str] = ()) -> None:
    """Compare the named algorithms; print a note if there is no BenchMARL."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("algorithm", nargs="*", default=ALGORITHMS, help=f"of {', '.join(ALGORITHMS)}; none: all")
    parser.add_argument("--python", default=os.environ.get("MARLFLOW_BENCHMARL_PYTHON"), help="one that has BenchMARL")
    parser.add_argument("--env-steps", type=int, default=200_000)
    add_seeds(parser, 3)
    parser.add_argument("--threads", type=int, default=1, help="of BenchMARL's torch; 2 were slower on two cores")
    options = parser.parse_args(arguments)
    if unknown := set(options.algorithm) - set(ALGORITHMS):
        parser.error(f"there is no algorithm {min(unknown)!r} to compare; there are {', '.join(ALGORITHMS)}")
    if options.python is None:
        print("beside BenchMARL: not measured, MARLFLOW_BENCHMARL_PYTHON names no Python that has it", flush=True)
        return
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    for algorithm in options.algorithm:
        report(algorithm, options.python, options.env_steps, options.seeds, options.threads)


if __name__ == "__main__":
    main(sys.argv[1:])
