"""Compare PPO with RLlib's on the same work, in turns.

    python -m benchmarks.against_rllib [--repeats 3] [--iterations 40] [--their-iterations 4]

marlflow runs with its defaults: updates are by autograd at first, and by XLA from 1,000 optimizer steps on, after a few
iterations. Compiling is part of the time. The first iteration is a warm-up for both.

RLlib needs a virtual environment of its own; name its Python in MARLFLOW_RLLIB_PYTHON:
`python -m venv V && V/bin/pip install torch "ray[rllib]==2.60.0"`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from marlflow.algorithms.ppo import PPO
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy, Rollouts, Stop
from marlflow.driver.train import train
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.observe.sinks import read_metrics
from marlflow.sampling.mapping import Rule

SCRIPT = Path(__file__).parent / "peers" / "rllib_ppo.py"
TARGET = 5.0
ENV_STEPS = 4_000


def marlflow_env_steps_per_s(iterations: int) -> float:
    """Measure marlflow: two policies, batches of 4,000 env steps, 4 epochs of minibatches of 128, MLP 64x64."""
    # An untrained team has 2.6 of its 4 agents alive, later up to 4: every round of 4,000 env steps fills a batch.
    ppo = PPO(batch_agent_steps=ENV_STEPS, epochs=4, minibatch_agent_steps=128)
    experiment = Experiment(
        env=Env(parallel_env, num_envs=32),
        policies={"p0": Policy(ppo), "p1": Policy(ppo)},
        mapping=[Rule("cart_[02]", "p0"), Rule("cart_[13]", "p1")],
        rollouts=Rollouts(num_workers=2, fragment_env_steps=ENV_STEPS // 2),
        evaluation=Evaluation(episodes=0),
        log=Log(console="none", tensorboard=False, every_env_steps=ENV_STEPS),
        stop=Stop(env_steps=ENV_STEPS * iterations),
    )
    with tempfile.TemporaryDirectory() as folder:
        train(experiment, folder)
        records = list(read_metrics(Path(folder) / "metrics.jsonl"))
    first, last = records[1], records[-1]  # the first round is a warm-up, as it is for RLlib
    return (last["env_steps"] - first["env_steps"]) / (last["time_s"] - first["time_s"])


def rllib_env_steps_per_s(python: str, iterations: int) -> float:
    """Measure RLlib on the same work."""
    # Otherwise RLlib's learner uses a thread per core in addition to two runners, and env steps per second are halved.
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [python, str(SCRIPT), str(iterations)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=one_thread)
    return float(done.stdout.split("env_steps_per_s")[1].split()[0])


def report(repeats: int = 3, iterations: int = 40, their_iterations: int = 4) -> None:
    """Measure and print; print a note if there is no RLlib."""
    python = os.environ.get("MARLFLOW_RLLIB_PYTHON")
    if python is None:
        print("beside RLlib: not measured, MARLFLOW_RLLIB_PYTHON names no Python that has it", flush=True)
        return
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(rllib_env_steps_per_s(python, their_iterations))
        ours.append(marlflow_env_steps_per_s(iterations))
        print(f"{ours[-1]:,.0f} env steps/s, RLlib {theirs[-1]:,.0f}", flush=True)
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"PPO for all agents, batches of {ENV_STEPS:,} env steps: {mine:,.0f} env steps/s, RLlib {other:,.0f}: "
        f"{mine / other:.1f} times (target {TARGET:.0f})",
        flush=True,
    )


def main(arguments: Sequence[str] = ()) -> None:
    """Read the options, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=40, help="of marlflow, 4,000 env steps each")
    parser.add_argument("--their-iterations", type=int, default=4, help="of RLlib, after one as a warm-up")
    options = parser.parse_args(arguments)
    report(options.repeats, options.iterations, options.their_iterations)


if __name__ == "__main__":
    main(sys.argv[1:])
