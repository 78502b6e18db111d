"""How much of an environment's bare speed one rollout worker keeps, in one process on one core.

    OMP_NUM_THREADS=1 python benchmarks/rollout_worker.py [--copies 32] [--ticks 128] [--repeats 5] [--profile]

Bare: one copy of cartpole_team, stepped with alternating actions and reset when over. Worker: two policies of two
agents each, a tanh MLP of 64 x 64 for each, all rows recorded. Both are measured in turn, and the best of each counts.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from time import perf_counter

import torch
from gymnasium.spaces import Discrete

from marlflow.env.cartpole_team import parallel_env
from marlflow.policy.actor import Actor
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.scripted import RandomActor
from marlflow.policy.torso import MLP
from marlflow.rollout import RolloutWorker, Rule

RULES = [Rule("cart_[01]", "left"), Rule("cart_[23]", "right")]


def bare(env_steps: int) -> tuple[float, float]:
    """Env steps and agent steps per second of the environment alone."""
    env = parallel_env()
    env.reset(seed=0)
    agent_steps = 0
    began = perf_counter()
    for t in range(env_steps):
        agent_steps += len(env.agents)
        env.step(dict.fromkeys(env.agents, t % 2))
        if not env.agents:
            env.reset()
    seconds = perf_counter() - began
    return env_steps / seconds, agent_steps / seconds


def actors(kind: str) -> dict[str, Actor]:
    """One actor for each policy."""
    if kind == "random":
        return {policy: RandomActor(Discrete(2)) for policy in ("left", "right")}
    generator = torch.Generator().manual_seed(0)
    return {
        policy: CategoricalActor(*MLP(hidden_sizes=(64, 64)).build((4,), generator), 2, generator)
        for policy in ("left", "right")
    }


def collected(worker: RolloutWorker, ticks: int) -> tuple[float, float, dict[str, float]]:
    """Env steps and agent steps per second of the worker, and how its time was spent."""
    began = perf_counter()
    receipt, _ = worker.collect(ticks)
    seconds = perf_counter() - began
    agent_steps = sum(policy.rows for policy in receipt.policies.values())
    parts = {"env": receipt.env_s, "policy": receipt.policy_s, "bookkeeping": receipt.bookkeeping_s}
    return receipt.env_steps / seconds, agent_steps / seconds, {k: 1e6 * v / agent_steps for k, v in parts.items()}


def main(arguments: list[str] | None = None) -> None:
    """Prints the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--copies", type=int, default=32)
    parser.add_argument("--ticks", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--actor", choices=("mlp", "random"), default="mlp")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args([] if arguments is None else arguments)
    torch.set_num_threads(1)
    worker = RolloutWorker(parallel_env, range(options.copies), RULES, actors(options.actor), seed=0)
    worker.collect(16)
    alone, kept = [], []
    for _ in range(options.repeats):
        alone.append(bare(4000))
        kept.append(collected(worker, options.ticks))
    (bare_env, bare_agent), best = max(alone), max(kept, key=lambda measured: measured[1])
    print(f"bare    {bare_env:9.0f} env steps/s {bare_agent:9.0f} agent steps/s {1e6 / bare_agent:6.2f} us/agent step")
    print(f"worker  {best[0]:9.0f} env steps/s {best[1]:9.0f} agent steps/s {1e6 / best[1]:6.2f} us/agent step")
    print("of which, us/agent step: " + ", ".join(f"{name} {value:.2f}" for name, value in best[2].items()))
    print(f"ratio   {best[0] / bare_env:.3f} in env steps, {best[1] / bare_agent:.3f} in agent steps")
    if options.profile:
        profile = cProfile.Profile()
        profile.runcall(worker.collect, options.ticks)
        pstats.Stats(profile).sort_stats("tottime").print_stats(25)


if __name__ == "__main__":
    main(sys.argv[1:])
