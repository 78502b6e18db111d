"""Compare PPO with IPPO in one compiled call on MPE_simple_spread_v3: env steps per second, learning included, returns.

    python -m benchmarks.against_jaxmarl [--checkout PATH] [--env-steps 400000] [--seeds 20,21,22] [--num-envs 16]

Here: JaxMARL's environment in marlflow (`env=jaxmarl`), marlflow's own batched `simple_spread`, and PPO + DQN together
on it (agent_2 learns by DQN), which JaxMARL has not. There: IPPO by hand in JAX (`peers/jax_ippo.py`), one compiled
call for a rollout and its update, or JaxMARL's own `ippo_ff_mpe.py`, from a checkout of its repository, one compiled
call for the whole run. Each is one process on one thread; they take turns. Same networks (64 x 64, tanh),
environments, rollout length (128), epochs (4), and minibatches (4); the learning rate is not annealed. Rates are per
second of the process's CPU time, so that other programs do not count; wall time is in brackets. They begin after the
first report, which comes after the first update there, and before it here: compiling it counts here. Needs the extras
`jaxmarl` and `mpe`, and for JaxMARL's IPPO distrax and hydra, too.

marlflow's updates are compiled from the first on (`compile=true`), as theirs are; by default they are from 1,000
optimizer steps on.

What stays different: the other side takes the end of an episode's time for a real end, marlflow bootstraps there.
JaxMARL's episodes have 26 env steps, episodes of marlflow's own simple_spread 25.
"""

from __future__ import annotations

import argparse
import importlib.util
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
from benchmarks.against_benchmarl_vmas import rates
from benchmarks.seeds import add_seeds
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.config.experiment import (
    CheckpointConfig,
    Env,
    Evaluation,
    Experiment,
    Log,
    Policy,
    Rollouts,
    RuntimeConfig,
    Stop,
)
from marlflow.driver.train import train
from marlflow.observe.callback import Callback
from marlflow.policy.torso import MLP
from marlflow.sampling.mapping import Rule

PEERS = Path(__file__).parent / "peers"
TARGET = 1.0
PEER = "IPPO in one call"
AGENTS = 3
ENVS: Mapping[str, Env] = {
    "ppo on env=jaxmarl": Env("marlflow.env.functional.jaxmarl.batched_env", {"name": "MPE_simple_spread_v3"}),
    "ppo + dqn on env=jaxmarl": Env("marlflow.env.functional.jaxmarl.batched_env", {"name": "MPE_simple_spread_v3"}),
    "ppo on simple_spread": Env("mpe2.simple_spread_v3.parallel_env", {"N": AGENTS}),
    "ppo + dqn on simple_spread": Env("mpe2.simple_spread_v3.parallel_env", {"N": AGENTS}),
}
SETTINGS: dict[str, Any] = {
    "rollout_env_steps": 128,
    "epochs": 4,
    "minibatches": 4,
    "learning_rate": 2.5e-4,
    "discount": 0.99,
    "gae_lambda": 0.95,
}


@dataclass
class PrintTimes(Callback):
    """Prints a line of JSON at each report."""

    def __post_init__(self) -> None:
        # CPU time is the process's, imports included, as JaxMARL's.
        self.wall = time.perf_counter()

    def reported(self, record: Mapping[str, Any]) -> None:
        """Print."""
        returns = [agent["return_mean"] for agent in record["agents"].values()]
        line = {
            "env_steps": record["env_steps"],
            "cpu_s": time.process_time(),
            "wall_s": time.perf_counter() - self.wall,
            "return_mean": None if None in returns else statistics.mean(returns),
            "dqn_updates": record["learners"].get("dqn", {}).get("updates"),
        }
        print(json.dumps(line), flush=True)


def experiment_of(case: str, env_steps: int, seed: int, settings: Mapping[str, Any]) -> Experiment:
    """Return what marlflow trains in `case`, a name of ENVS."""
    batch = settings["num_envs"] * settings["rollout_env_steps"]
    learners = AGENTS - 1 if "dqn" in case else AGENTS
    ppo = PPO(
        batch_agent_steps=batch * learners,
        minibatch_agent_steps=batch * learners // settings["minibatches"],
        value_clip_range=0.2,
        compile=True,
        **{name: settings[name] for name in ("epochs", "learning_rate", "discount", "gae_lambda")},
    )
    model = MLP([64, 64])
    policies, mapping = {"ppo": Policy(ppo, model=model)}, [Rule("agent_*", "ppo")]
    if "dqn" in case:
        policies["dqn"] = Policy(DQN(compile=True), model=model)
        mapping.insert(0, Rule("agent_2", "dqn"))
    made = ENVS[case]
    return Experiment(
        env=Env(made.factory, made.arguments, num_envs=settings["num_envs"], batched=True),
        policies=policies,
        mapping=mapping,
        rollouts=Rollouts(num_workers=1, fragment_env_steps=batch),
        runtime=RuntimeConfig("inline"),
        evaluation=Evaluation(episodes=0),
        checkpoint=CheckpointConfig(every_env_steps=None),
        callbacks={"times": PrintTimes()},
        log=Log(console="none", tensorboard=False, every_env_steps=batch),
        stop=Stop(env_steps=env_steps),
        seed=seed,
    )


def run_here(case: str, env_steps: int, seed: int, settings: Mapping[str, Any]) -> None:
    """Train in this process; print a line of JSON per iteration."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        train(experiment_of(case, env_steps, seed, settings), folder)


def report(checkout: str | None, env_steps: int, seeds: Sequence[int], num_envs: int) -> None:
    """Train each seed with all, in turns, and print."""
    settings = json.dumps({**SETTINGS, "num_envs": num_envs})
    peer = [str(PEERS / "jax_ippo.py")] if checkout is None else [str(PEERS / "jaxmarl_ippo.py"), checkout]
    lines: dict[str, list[list[dict[str, Any]]]] = {case: [] for case in [PEER, *ENVS]}
    for seed in seeds:
        of_run = [str(env_steps), str(seed), settings]
        for case, runs in lines.items():
            here = ["-m", "benchmarks.against_jaxmarl", "--one", case]
            runs.append(lines_of([sys.executable, *(peer if case == PEER else here), *of_run], 1))
            cpu, wall = rates(runs[-1])
            ends = runs[-1][-1]["return_mean"]
            print(
                f"seed {seed}, {case}: {cpu:,.0f} env steps per s of CPU time ({wall:,.0f} wall), return {ends:.2f}",
                flush=True,
            )
    theirs = [rates(run)[0] for run in lines[PEER]]
    for case, runs in lines.items():
        found = [rates(run) for run in runs]
        ratio = statistics.median(own / other for (own, _), other in zip(found, theirs, strict=True))
        cpu, wall = (statistics.median(column) for column in zip(*found, strict=True))
        ends = statistics.mean(run[-1]["return_mean"] for run in runs)
        print(
            f"{case}, {num_envs} environments: {cpu:,.0f} env steps per s of CPU time ({wall:,.0f} wall), "
            f"{ratio:.2f} times {PEER}; return after {env_steps:,} env steps {ends:.2f}",
            flush=True,
        )
        if case == "ppo on env=jaxmarl":
            print(f"target {TARGET:g}: {'reached' if ratio >= TARGET else 'MISSED'}", flush=True)
    print(f"seeds {list(seeds)}, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Compare; print a note if JaxMARL is not installed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkout", default=os.environ.get("MARLFLOW_JAXMARL_CHECKOUT"), help="JaxMARL's repository")
    parser.add_argument("--env-steps", type=int, default=400_000)
    parser.add_argument("--num-envs", type=int, default=16)
    add_seeds(parser, 3)
    options = parser.parse_args(arguments)
    if importlib.util.find_spec("jaxmarl") is None:
        print("beside IPPO in one call: not measured, the extra jaxmarl is not installed", flush=True)
        return
    report(options.checkout, options.env_steps, options.seeds, options.num_envs)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        name, steps, number, given_settings = sys.argv[2:]
        run_here(name, int(steps), int(number), json.loads(given_settings))
    else:
        main(sys.argv[1:])
