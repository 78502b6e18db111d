"""Names of Stable-Baselines3, RLlib, CleanRL and BenchMARL are answered with keys that exist."""

from __future__ import annotations

from dataclasses import fields
from functools import reduce
from typing import Any

import pytest

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.config.other_names import FOREIGN_NAMES, own_key
from marlflow.config.renamed import unknown_key
from tests.config.composition import experiment_of

ALGORITHMS = {algorithm.name: algorithm for algorithm in SHIPPED}
PATH = "policies.a.algorithm"


def keys_of(algorithm: mf.Algorithm) -> list[str]:
    return [field.name for field in fields(algorithm)]  # type: ignore[arg-type]


def answer(name: str, algorithm: str) -> str | None:
    return own_key(f"{PATH}.{name}", name, keys_of(ALGORITHMS[algorithm]))


ANSWERS = {
    "ppo": {
        "lr": f"{PATH}.learning_rate",
        "gamma": f"{PATH}.discount",
        "ent_coef": f"{PATH}.entropy_coefficient",
        "vf_coef": f"{PATH}.value_coefficient",
        "clip_coef": f"{PATH}.clip_range",
        "clip_param": f"{PATH}.clip_range",
        "n_epochs": f"{PATH}.epochs",
        "update_epochs": f"{PATH}.epochs",
        "num_sgd_iter": f"{PATH}.epochs",
        "lambda_": f"{PATH}.gae_lambda",
        "batch_size": f"{PATH}.minibatch_agent_steps",
        "n_steps": f"{PATH}.batch_agent_steps",
        "train_batch_size": f"{PATH}.batch_agent_steps",
        "grad_clip": f"{PATH}.max_grad_norm",
        "adam_eps": f"{PATH}.optimizer.eps",
        "net_arch": "policies.a.model.hidden_sizes",
        "total_timesteps": "stop.env_steps",
        "num_rollout_workers": "rollouts.num_workers",
        "n_envs": "env.num_envs",
        "buffer_size": None,
        "nonsense": None,
    },
    "dqn": {
        "batch_size": f"{PATH}.batch_agent_steps",
        "buffer_size": f"{PATH}.replay_agent_steps",
        "replay_buffer_config": f"{PATH}.replay_agent_steps",
        "off_policy_memory_size": f"{PATH}.replay_agent_steps",
        "n_steps": f"{PATH}.n_step",
        "learning_starts": f"{PATH}.learning_starts_agent_steps",
        "train_freq": f"{PATH}.train_every_agent_steps",
        "target_update_interval": f"{PATH}.target_every_updates",
        "exploration_fraction": f"{PATH}.epsilon",
        "start_e": f"{PATH}.epsilon",
        "v_min": f"{PATH}.value_min",
        "ent_coef": None,
    },
    "sac": {"ent_coef": f"{PATH}.temperature", "actor_lr": f"{PATH}.learning_rate", "n_steps": None},
    "ddpg": {"actor_lr": f"{PATH}.actor_learning_rate", "q_lr": f"{PATH}.learning_rate"},
    "td3": {"policy_delay": f"{PATH}.actor_every_updates", "policy_noise": f"{PATH}.target_noise"},
    "impala": {"gae_lambda": f"{PATH}.trace_lambda", "vtrace_clip_rho_threshold": f"{PATH}.rho_max"},
    "a2c": {"batch_size": f"{PATH}.batch_agent_steps", "n_epochs": None},
    "qmix": {"mixing_embed_dim": f"{PATH}.embed_size"},
}


@pytest.mark.parametrize("algorithm", ANSWERS)
def test_a_name_is_answered_with_the_key_of_the_algorithm(algorithm: str) -> None:
    expected = ANSWERS[algorithm]
    assert {name: answer(name, algorithm) for name in expected} == expected


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_answer_is_a_key_that_exists(algorithm: str) -> None:
    experiment = mf.Experiment(mf.Env("cartpole_team"), policies={"a": mf.Policy(ALGORITHMS[algorithm])})
    for name in FOREIGN_NAMES:
        if (path := answer(name, algorithm)) is not None:
            reduce(member, path.split("."), experiment)


def member(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, dict) else getattr(value, name)


def test_every_key_of_the_table_is_of_some_algorithm_or_of_the_run() -> None:
    taken = {key for algorithm in SHIPPED for key in keys_of(algorithm)} | {"hidden_size", "hidden_sizes"}
    experiment = mf.Experiment(mf.Env("cartpole_team"), policies={"<id>": mf.Policy(mf.PPO())})
    for name, foreign in FOREIGN_NAMES.items():
        for key in (*foreign.keys, *foreign.replay):
            if key.partition(".")[0] not in taken:
                reduce(member, key.split("."), experiment)
        # Where it is a key itself, it means the same.
        assert name not in taken or name in foreign.keys


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("lr=1e-3", "there is no lr; here it is policies.cart.algorithm.learning_rate or default_policy.algorithm."),
        ("total_timesteps=9", "there is no total_timesteps; here it is stop.env_steps, in env steps: one of a"),
        ("stop.total_timesteps=9", "there is no stop.total_timesteps; here it is stop.env_steps, in env steps"),
        ("algorithm.gamma=.9", "there is no algorithm.gamma; here it is policies.cart.algorithm.discount or"),
        ("net_arch=[64]", "there is no net_arch; here it is policies.cart.model.hidden_sizes or default_policy.model"),
        ("start_e=1", "there is no start_e; here it is policies.cart.algorithm.epsilon, a number or a schedule"),
        ("clip_coef=.2", "there is no clip_coef; here it is default_policy.algorithm.clip_range"),
        ("tau_x=1", "there is no tau_x; "),
        (
            "policy_delay=2",
            "there is no policy_delay; here it is policies.<id>.algorithm.actor_every_updates, which no",
        ),
        ("policies.cart.gamma=.9", "there is no policies.cart.gamma; here it is policies.cart.algorithm.discount"),
        ("env.gamma=.9", "there is no env.gamma; here it is policies.<id>.algorithm.discount"),
        (
            "policies.cart.algorithm.n_epochs=4",
            "there is no policies.cart.algorithm.n_epochs: DQN has none, which is epochs here; ppo, appo, ddppo, mappo",
        ),
        (
            "policies.cart.algorithm.clip_range=.2",
            "there is no policies.cart.algorithm.clip_range: DQN has none; ppo, appo, ddppo, mappo, happo",
        ),
    ],
)
def test_an_override_under_another_name_is_answered(override: str, said: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        experiment_of("env=cartpole_team", "policy@policies.cart=dqn", override)
    assert len(caught.value.problems) == 1
    assert str(caught.value.problems[0]).startswith(said)
    assert len(caught.value.problems[0]) < 400


def test_a_similar_key_of_another_section_comes_first() -> None:
    assert unknown_key("env.n_envs", "n_envs", ["num_envs", "cells"], "env") == (
        "there is no env.n_envs; here it is env.num_envs, over all workers"
    )
    assert unknown_key("env.max_steps", "max_steps", ["max_step"], "Game") == (
        "there is no env.max_steps; did you mean 'env.max_step'?"
    )
