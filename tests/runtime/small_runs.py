"""Small experiments for tests of whole runs: a team of cart-poles, two carts with PPO and two with DQN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.env.games import cartpole_team
from marlflow.runtime.spec import RunSpec

SMALL = mf.MLP((16,))
SMALL_PPO = mf.PPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64)
SMALL_DQN = mf.DQN(
    batch_agent_steps=16,
    train_every_agent_steps=10,
    learning_starts_agent_steps=100,
    target_every_updates=20,
    publish_every_updates=3,
    epsilon=mf.Linear(1.0, 0.05, 2_000),
)
SMALL_R2D2 = mf.Policy(
    mf.R2D2(
        sequence_agent_steps=4,
        burn_in_agent_steps=3,
        batch_agent_steps=32,
        train_every_agent_steps=20,
        learning_starts_agent_steps=100,
        replay_agent_steps=700,
        n_step=2,
        target_every_updates=20,
        publish_every_updates=3,
    ),
    mf.GRU(8, (8,)),
)
HALVES = (mf.Rule("cart_0", "hunters"), mf.Rule("cart_1", "hunters"), mf.Rule("*", "prey"))


def policies(**algorithms: mf.Algorithm) -> dict[str, mf.Policy]:
    """Policies with small networks."""
    return {name: mf.Policy(algorithm, SMALL) for name, algorithm in algorithms.items()}


def small_run(runtime: Literal["inline", "ray"] = "inline", env_steps: int = 1_200, **changes: Any) -> mf.Experiment:
    """An experiment of about a second; `changes` replace its parts.

    Its environments are stepped one by one, as most users' own are.
    """
    experiment = mf.Experiment(
        mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, num_envs=4, batched=False),
        policies=policies(hunters=SMALL_PPO, prey=SMALL_DQN),
        mapping=HALVES,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        runtime=mf.RuntimeConfig(runtime),
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=400, console="none", tensorboard=False),
    )
    return replace(experiment, **changes)


def small_spec(**changes: Any) -> RunSpec:
    """The specification that a runtime gets for it."""
    return ready(small_run(**changes)).spec


def without_times(value: Any) -> Any:
    """A report without its keys that end in `_s`."""
    if isinstance(value, Mapping):
        return {key: without_times(item) for key, item in value.items() if not key.endswith("_s")}
    return value
