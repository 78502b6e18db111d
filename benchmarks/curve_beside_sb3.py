"""Draw what one policy for all agents of simple_spread learns, beside Stable-Baselines3's PPO, by CPU time.

PettingZoo's own tutorials train a shared policy so: SuperSuit turns the agents into a vector environment, and
Stable-Baselines3 learns from it. Both have the same networks, batches, epochs and numbers; each run is a process of one
thread, and seconds are those that it had of a CPU after its imports, compiling included.

What differs: marlflow steps its own batch of environments, whose numbers are mpe2's, and Stable-Baselines3 mpe2 itself;
there an episode's time limit ends it for the value, since SuperSuit does not tell truncation from termination;
advantages are normalized by minibatch there, and by batch here; and SuperSuit takes no seed, so that its runs differ
each time.

    pip install stable-baselines3
    python -m benchmarks.curve_beside_sb3 [--env-steps 100000] [--seeds 85,86,87]

Draws docs/images/learning_beside_sb3.svg, and prints each run's last return.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import process_time
from typing import Any, Final

from benchmarks.seeds import add_seeds

FIGURE: Final = Path("docs/images/learning_beside_sb3.svg")
_AGENTS, _ENVS, _STEPS = 3, 20, 50
_MINIBATCH, _EPOCHS, _RATE, _DISCOUNT, _LAMBDA, _CLIP, _ENTROPY = 750, 10, 1e-3, 0.95, 0.95, 0.2, 0.01
Points = list[tuple[float, float]]
"""Seconds of CPU time, and the mean return per agent of the last hundred episodes."""


def marlflow_points(env_steps: int, seed: int, folder: str) -> Points:
    """Train with marlflow, in one process."""
    from dataclasses import replace

    import marlflow as mf
    from marlflow.checks.validation import from_config, ready
    from marlflow.config.compose import composing
    from marlflow.config.overrides import prepare

    points: Points = []

    class Clock(mf.Callback):
        def reported(self, record: mf.Report) -> None:
            if (value := record["policies"]["agent"]["return_mean"]) is not None:
                points.append((process_time() - began, value))

    algorithm = {
        "batch_agent_steps": _AGENTS * _ENVS * _STEPS, "epochs": _EPOCHS, "minibatch_agent_steps": _MINIBATCH,
        "learning_rate": _RATE, "discount": _DISCOUNT, "gae_lambda": _LAMBDA, "clip_range": _CLIP,
        "entropy_coefficient": _ENTROPY,
    }  # fmt: skip
    with composing():
        job = prepare([
            "env=simple_spread", f"env.num_envs={_ENVS}", "policy@policies.agent=ppo", f"seed={seed}", "runtime=inline",
            *(f"policies.agent.algorithm.{name}={value}" for name, value in algorithm.items()),
            "rollouts.num_workers=1", f"rollouts.fragment_env_steps={_ENVS * _STEPS}", "evaluation.episodes=0",
            "checkpoint.every_env_steps=null", "log.console=none", f"log.every_env_steps={5 * _ENVS * _STEPS}",
            f"stop.env_steps={env_steps}",
        ])  # fmt: skip
    experiment = ready(from_config(job.config, job.problems)).experiment
    began = process_time()
    mf.train(replace(experiment, callbacks={"clock": Clock()}), Path(folder) / "run")
    return points


def sb3_points(env_steps: int, seed: int, folder: str) -> Points:
    """Train with Stable-Baselines3, in one process."""
    import numpy as np
    import supersuit
    import torch
    from mpe2 import simple_spread_v3
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.utils import set_random_seed
    from stable_baselines3.common.vec_env import VecMonitor

    del folder
    torch.set_num_threads(1)
    # SuperSuit's vector environment has no method for SB3's `seed`.
    set_random_seed(seed)
    points: Points = []

    class Clock(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            if self.model.ep_info_buffer:
                returns = [episode["r"] for episode in self.model.ep_info_buffer]
                points.append((process_time() - began, float(np.mean(returns))))

    began = process_time()
    env = supersuit.pettingzoo_env_to_vec_env_v1(simple_spread_v3.parallel_env(N=_AGENTS, max_cycles=25))
    env = VecMonitor(supersuit.concat_vec_envs_v1(env, _ENVS, num_cpus=0, base_class="stable_baselines3"))
    model = PPO(
        "MlpPolicy", env, n_steps=_STEPS, batch_size=_MINIBATCH, n_epochs=_EPOCHS, learning_rate=_RATE,
        gamma=_DISCOUNT, gae_lambda=_LAMBDA, clip_range=_CLIP, ent_coef=_ENTROPY, device="cpu",
        stats_window_size=100 * _AGENTS,
    )  # fmt: skip
    model.learn(env_steps * _AGENTS, callback=Clock())
    return points


_SIDES: Final = {"marlflow": marlflow_points, "Stable-Baselines3 and SuperSuit": sb3_points}


def drawn(points: dict[str, list[Points]]) -> None:
    """Draw a line for each run."""
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "marlflow"
    figure, axes = plt.subplots(figsize=(6.2, 3.4), layout="constrained")
    for color, (side, runs) in zip(("#0072b2", "#d55e00"), points.items(), strict=True):
        for number, run in enumerate(runs):
            seconds, values = zip(*run, strict=True)
            axes.plot(seconds, values, color=color, lw=1.4, label=side if number == 0 else None)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("seconds of CPU time, learning included")
    axes.set_ylabel("return per agent")
    axes.grid(alpha=0.3)
    axes.legend(loc="upper left", frameon=False)
    figure.savefig(FIGURE, metadata={"Date": None})


def main(words: Sequence[str]) -> None:
    """Run all in turns, each in a process of its own; draw them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env-steps", type=int, default=100_000)
    parser.add_argument("--one", choices=_SIDES, help=argparse.SUPPRESS)
    add_seeds(parser, 3)
    options = parser.parse_args(words)
    if options.one:
        with tempfile.TemporaryDirectory() as folder:
            print(json.dumps(_SIDES[options.one](options.env_steps, options.seeds[0], folder)))
        return
    points: dict[str, list[Points]] = {side: [] for side in _SIDES}
    for seed in options.seeds:
        for side in _SIDES:
            command = [sys.executable, "-m", "benchmarks.curve_beside_sb3", f"--env-steps={options.env_steps}"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            ran: Any = subprocess.run(
                [*command, f"--seeds={seed}", f"--one={side}"],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            points[side].append([(seconds, value) for seconds, value in json.loads(ran.stdout.splitlines()[-1])])
            seconds, value = points[side][-1][-1]
            print(f"seed {seed}: {side} {value:.2f} after {seconds:.0f} s of CPU time", flush=True)
    drawn(points)


if __name__ == "__main__":
    main(sys.argv[1:])
