"""What a run takes at least is held against the memory that there is, before anything is built."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.ppo import PPO
from marlflow.checks.memory import available_memory, memory_problems
from marlflow.checks.validation import ready
from marlflow.config.experiment import Policy, Rollouts, RuntimeConfig, Stop
from marlflow.policy.tensors import parameters_of
from marlflow.policy.torso import MLP
from tests.driver.joint_replay_learning import Sum, sum_run
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with

GIB = 2**30


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"policies": {"hunters": Policy(PPO(), MLP((10**9,))), "prey": Policy()}}, "policies.hunters.model"),
        ({"policies": {"hunters": Policy(PPO(), MLP((100_000, 100_000))), "prey": Policy()}}, "policies.hunters.model"),
        ({"policies": {"hunters": Policy(PPO(), MLP((2**31 - 1,) * 3)), "prey": Policy()}}, "policies.hunters.model"),
        (
            {"policies": {"hunters": Policy(DQN(replay_agent_steps=10**15)), "prey": Policy()}},
            "policies.hunters.algorithm.replay_agent_steps",
        ),
        ({"rollouts": Rollouts(2, 10**15)}, "rollouts.fragment_env_steps"),
        (
            {"policies": {"hunters": Policy(PPO(batch_agent_steps=10**15)), "prey": Policy()}},
            "policies.hunters.algorithm.batch_agent_steps",
        ),
    ],
)
def test_what_cannot_fit_is_refused_before_it_is_built(changes: dict[str, Any], named: str) -> None:
    (problem,) = wrong_with(small_run(**changes))
    assert problem.startswith("the run needs at least ")
    assert named in problem
    assert " and this machine has " in problem


def test_what_is_asked_is_held_against_what_there_is() -> None:
    made = ready(small_run(policies={"hunters": Policy(PPO(), MLP((1_000, 1_000))), "prey": Policy()}))
    # A million parameters: weights, gradients, two moments, what is published, and one actor on each of two workers.
    assert list(memory_problems(made.experiment, made.spec, made.players, 27_000_000))
    assert not list(memory_problems(made.experiment, made.spec, made.players, 40_000_000))
    on_a_cluster = dataclasses.replace(made.experiment, runtime=RuntimeConfig(address="auto"))
    assert not list(memory_problems(on_a_cluster, made.spec, made.players, 0))


def test_processes_take_memory_only_where_there_are_any() -> None:
    made = ready(small_run())
    assert not list(memory_problems(made.experiment, made.spec, made.players, GIB // 10))
    separate = dataclasses.replace(made.experiment, runtime=RuntimeConfig("ray"))
    (problem,) = memory_problems(separate, made.spec, made.players, GIB // 10)
    assert "4 processes" in problem


def test_rows_that_the_run_never_makes_take_no_memory() -> None:
    whole = available_memory()
    row = 4 * 4 + 8
    replay = DQN(replay_agent_steps=whole // row)  # lower than the machine has, higher than it has left
    made = ready(small_run(policies={"hunters": Policy(replay), "prey": Policy()}, stop=Stop(env_steps=1_000)))
    assert not list(memory_problems(made.experiment, made.spec, made.players, GIB))


def test_parameters_are_counted_without_memory_where_that_is_possible() -> None:
    assert parameters_of(lambda: nn.Linear(10**6, 10**6)) == 10**12 + 10**6
    assert parameters_of(lambda: nn.Linear(2**40, 2**40)) == 2**62
    assert parameters_of(lambda: torch.zeros(3).numpy()) is None


def test_an_object_store_larger_than_the_memory_is_refused_before_ray_refuses_to_start() -> None:
    made = ready(small_run())
    experiment = dataclasses.replace(made.experiment, runtime=RuntimeConfig("ray", object_store_bytes=2**40))
    (problem,) = memory_problems(experiment, made.spec, made.players, available_bytes=2**39)
    assert problem == (
        "runtime.object_store_bytes is 1,099,511,627,776 (1.0 TiB), and this machine has 512.00 GiB of memory left; "
        "lower it, or leave it null"
    )
    assert list(memory_problems(experiment, made.spec, made.players, available_bytes=2**41)) == []


def test_a_replay_of_joint_rows_takes_what_its_seats_do() -> None:
    made, huge = ready(sum_run()), Sum(replay_agent_steps=6 * 10**12)
    policies = {name: replace(one, algorithm=huge) for name, one in made.spec.policies.items()}
    learner = replace(made.spec.learners["both"], algorithm=huge, policies=tuple(policies.values()))
    spec = replace(made.spec, policies=policies, learners={"both": learner})
    # Of six seats four are red, with rows of 8 + 8 bytes, and two are blue, with rows of 12 + 8 bytes.
    needed = 10**12 * (4 * 16 + 2 * 20)
    assert not list(memory_problems(made.experiment, spec, made.players, needed + GIB))
    assert list(memory_problems(made.experiment, spec, made.players, needed - GIB))
