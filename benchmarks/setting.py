"""The setting of the main benchmarks: four cart-poles, two agents with PPO, two with DQN, MLP 64x64."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.checks.validation import ready
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Env, Evaluation, Experiment, Log, Policy, Rollouts, RuntimeConfig
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.runtime.protocol import RunComponents
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.mapping import Rule

# With random policies an env step has 2.6 of 4 agents alive, half of them with DQN: 100 env steps are 130 agent steps.
DQN_AGENT_STEPS_PER_UPDATE = 130
MAPPING = (Rule("cart_[01]", "ppo"), Rule("cart_[23]", "dqn"))


def experiment(env_steps_per_round: int, num_envs: int, num_workers: int = 2, seed: int = 0) -> Experiment:
    """Return the experiment: PPO, 10 epochs of minibatches of 128; DQN, one update of 64 rows per 100 env steps.

    The learning rates are 0: every computation is made, and the policies do not change, so that all rounds are the same
    work. (Trained carts balance longer: fewer resets, and more rows per env step.) DQN stores two rounds at a time if
    rounds are small (`store_agent_steps`); its number of updates stays the same.
    """
    ppo = PPO(batch_agent_steps=128, minibatch_agent_steps=128, epochs=10, learning_rate=0.0)
    dqn = DQN(
        batch_agent_steps=64,
        train_every_agent_steps=DQN_AGENT_STEPS_PER_UPDATE,
        learning_starts_agent_steps=0,
        store_agent_steps=512,
        learning_rate=0.0,
        epsilon=1.0,
    )
    return Experiment(
        env=Env(parallel_env, num_envs=num_envs),
        policies={"ppo": Policy(ppo), "dqn": Policy(dqn)},
        mapping=MAPPING,
        rollouts=Rollouts(num_workers=num_workers, fragment_env_steps=env_steps_per_round // num_workers),
        runtime=RuntimeConfig("ray"),
        evaluation=Evaluation(episodes=0),
        log=Log(console="none", jsonl=False, tensorboard=False),
        seed=seed,
    )


@contextmanager
def set_up(setting: Experiment) -> Iterator[tuple[CheckedExperiment, RunComponents]]:
    """Start the experiment's components on Ray."""
    made, runtime = ready(setting), RayRuntime()
    try:
        yield made, runtime.start(made.spec)
    finally:
        runtime.close()


class PerSecond(NamedTuple):
    """A speed in env steps and in agent steps per second."""

    env_steps: float
    agent_steps: float


def bare_per_s(seconds: float = 2.0) -> PerSecond:
    """Step the same environment alone on one core, with alternating actions."""
    env = parallel_env()
    env.reset(seed=0)
    env_steps, agent_steps, began = 0, 0, time.perf_counter()
    while True:
        for _ in range(256):
            agents = env.agents
            agent_steps += len(agents)
            env.step(dict.fromkeys(agents, env_steps & 1))
            env_steps += 1
            if not env.agents:
                env.reset()
        if (spent := time.perf_counter() - began) >= seconds:
            return PerSecond(env_steps / spent, agent_steps / spent)
