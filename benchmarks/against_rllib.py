"""Compare PPO with RLlib's on the same work, in turns.

RLlib needs a virtual environment of its own; name its Python in MARLFLOW_RLLIB_PYTHON:
`python -m venv V && V/bin/pip install torch "ray[rllib]==2.60.0"`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from marlflow.algorithms.ppo import PPO
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy, Rollouts, Stop
from marlflow.driver.train import train
from marlflow.env.cartpole_team import parallel_env
from marlflow.observe.sinks import read_metrics
from marlflow.sampling.mapping import Rule

SCRIPT = Path(__file__).parent / "peers" / "rllib_ppo.py"
TARGET = 5.0
ENV_STEPS = 4_000


def marlflow_env_steps_per_s(iterations: int = 12) -> float:
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


def rllib_env_steps_per_s(python: str) -> float:
    """Measure RLlib on the same work."""
    done = subprocess.run([python, str(SCRIPT)], check=True, capture_output=True, text=True)
    return float(done.stdout.split("env_steps_per_s")[1].split()[0])


def report(repeats: int = 3) -> None:
    """Measure and print; print a note if there is no RLlib."""
    python = os.environ.get("MARLFLOW_RLLIB_PYTHON")
    if python is None:
        print("beside RLlib: not measured, MARLFLOW_RLLIB_PYTHON names no Python that has it", flush=True)
        return
    ours, theirs = [], []
    for _ in range(repeats):
        theirs.append(rllib_env_steps_per_s(python))
        ours.append(marlflow_env_steps_per_s())
    mine, other = statistics.median(ours), statistics.median(theirs)
    print(
        f"PPO for all agents, batches of {ENV_STEPS:,} env steps: {mine:,.0f} env steps/s, RLlib {other:,.0f}: "
        f"{mine / other:.1f} times (target {TARGET:.0f})",
        flush=True,
    )


if __name__ == "__main__":
    report()
