"""PPO and DQN in one run, one of them under rules or a manager: each learns the same as alone.

The rules hold for the group on the left, which the group on the right never notices (see `two_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.wrappers.automaton_task import automaton
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.two_groups import MLP, SMALL, TwoGroups, pair

LEFT = "left_*"


def first_if_high(observation: Any, agent: str) -> Any:
    """The first action is safe where the second number is high, the second where the third is."""
    return observation[1:3] > 0.3


def other_than_first(observations: Any, actions: dict[str, Any]) -> dict[str, Any]:
    """The second of the left acts like the first."""
    return {**actions, "left_1": actions["left_0"]} if {"left_0", "left_1"} <= actions.keys() else actions


def labels(observation: Any, agent: str) -> set[str]:
    return {name for name, number in zip("ab", observation[1:3], strict=True) if number > 0.4}


THEN = {
    "states": ["start", "went", "dead"],
    "initial": "start",
    "accepting": [["went"]],
    "sink": "dead",
    "transitions": [
        {"from": "start", "when": "a", "to": "went"},
        {"from": "start", "when": "!a", "to": "start"},
        {"from": "went", "when": "a & b", "to": "dead"},
        {"from": "went", "when": "!(a & b)", "to": "went"},
    ],
}


@dataclass(frozen=True)
class Ruled:
    """A wrapper for the left, and the algorithm of each policy."""

    wrapper: Any
    learns: dict[str, str]


CASES = {
    "shield": Ruled(partial(shield, safe=first_if_high, when_none="all", agents=LEFT), {"left": "ppo", "right": "dqn"}),
    "correction": Ruled(partial(shield, post=other_than_first), {"left": "dqn", "right": "ppo"}),
    "automaton": Ruled(
        partial(automaton, labels=labels, automaton=THEN, agents=LEFT, noop=0), {"left": "ppo", "right": "dqn"}
    ),
    "managed": Ruled(
        partial(managed, options=2, every=3, agents=LEFT), {"left": "ppo", "manager": "dqn", "right": "dqn"}
    ),
    "forced managers": Ruled(
        partial(managed, options=2, every=4, agents=LEFT, manager="manager", manager_acts="every_env_step"),
        {"left": "dqn", "manager": "dqn", "right": "ppo"},
    ),
}


def experiment(ruled: Ruled, learning: set[str]) -> mf.Experiment:
    policies = {
        name: mf.Policy(SMALL[algorithm][0] if name in learning else mf.Random(), MLP)
        for name, algorithm in ruled.learns.items()
    }
    rules = [mf.Rule(f"{name}*", name) for name in policies]
    base = pair("random", "random", "", env_steps=1_200 if "manager" in policies else 400)
    env = mf.Env(TwoGroups, {}, (ruled.wrapper,), num_envs=4)
    return replace(base, env=env, policies=policies, mapping=rules)


@pytest.mark.parametrize("name", CASES)
def test_each_learns_what_it_learns_beside_nobody(name: str, tmp_path: Path) -> None:
    ruled = CASES[name]
    result = mf.train(experiment(ruled, set(ruled.learns)), tmp_path / "together")
    assert all(learner["updates"] > 0 for learner in result.metrics["learners"].values())
    together = kept(tmp_path / "together")
    # A worker's reward depends on its option, so a manager and its workers belong together.
    left = set(ruled.learns) - {"right"}
    for learning in (left, {"right"}):
        folder = tmp_path / "-".join(sorted(learning))
        mf.train(experiment(ruled, learning), folder)
        for policy in learning:
            assert_equal(together[f"learner.{policy}"], kept(folder)[f"learner.{policy}"])


def test_a_manager_and_its_worker_do_learn_from_each_other(tmp_path: Path) -> None:
    """The control: the worker sees its option, so with another manager it comes to something else."""
    ruled = CASES["managed"]
    vectors = []
    for learning in ({"left", "manager"}, {"left"}):
        folder = tmp_path / "-".join(sorted(learning))
        mf.train(experiment(ruled, learning), folder)
        vectors.append(kept(folder)["learner.left"]["published"])
    assert not np.array_equal(*vectors)
