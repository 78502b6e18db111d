"""Wrappers make nothing up that the environment owes: rewards, observations, and what infos say at the end."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.errors import EnvironmentFailed
from marlflow.env import open_adapter
from marlflow.env.wrappers.automaton_task import automaton
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shipped import black_death, joint_state, pad_observations
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

ENDS_AT = 6
TASK = {
    "states": ["a", "b"],
    "initial": "a",
    "transitions": [
        {"from": "a", "when": "x", "to": "b"},
        {"from": "a", "when": "!x", "to": "a"},
        {"from": "b", "when": "true", "to": "b"},
    ],
    "accepting": [["b"]],
}


class Pair(ParallelEnv):  # type: ignore[type-arg]
    """Two agents see the number of the step, are paid 1 in each, and are truncated in the sixth; all win then.

    A `fault` is what is missing in the second step, or in the last one, or that a_1 dies in the third.
    """

    metadata: dict[str, Any] = {"name": "pair", "render_modes": []}  # noqa: RUF012
    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self, fault: str = "") -> None:
        self.fault = fault

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Box(0, 9, (1,))

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.t = list(self.possible_agents), 0
        return {agent: np.zeros(1, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, int]) -> Any:
        self.t += 1
        there, over = list(self.agents), self.t == ENDS_AT
        seen = {agent: np.full(1, self.t, np.float32) for agent in there}
        rewards = dict.fromkeys(there, 1.0)
        dies = {agent: self.fault == "dies" and self.t == 3 and agent == "a_1" for agent in there}
        self.agents = [agent for agent in there if not (dies[agent] or over)]
        told = self.possible_agents if over else there
        if self.t == 2 and self.fault == "reward":
            del rewards["a_1"]
        if self.t == 2 and self.fault == "observation":
            del seen["a_1"]
        if over and self.fault == "last observations":
            seen = {}
        return seen, rewards, dies, dict.fromkeys(there, over), {agent: {"won": float(over)} for agent in told}


WRAPPERS = {
    "none": (),
    "black_death": (black_death,),
    "sharing black_death": (partial(black_death, keeps_receiving=True),),
    "managed": (partial(managed, options=2, every=2, manager="manager"),),
    "managed black_death": (black_death, partial(managed, options=2, every=2, manager="manager")),
    "automaton": (partial(automaton, labels=lambda *_: [], automaton=TASK, keep_reward=True, noop=0),),
    "joint_state": (joint_state,),
}


def wrapped(name: str, fault: str = "") -> Any:
    env: Any = Pair(fault)
    for wrapper in WRAPPERS[name]:
        env = wrapper(env)
    return env


def play(name: str, fault: str = "") -> list[Any]:
    """Play an episode of first actions; return the ends and late infos of its last step."""
    adapter = open_adapter(wrapped(name, fault))
    result = adapter.reset(0)
    for _ in range(99):
        result = adapter.act([0] * len(result.deciding))
        if result.over:
            return [*result.ended, result.last_infos]
    raise AssertionError("it does not end")


@pytest.mark.parametrize("fault", ["reward", "observation"])
@pytest.mark.parametrize("name", WRAPPERS)
def test_what_is_missing_is_missing_behind_a_wrapper_too(name: str, fault: str) -> None:
    play(name)
    if name == "automaton" and fault == "observation":
        # It shows what agents saw last.
        return
    with pytest.raises(EnvironmentFailed, match=f"no {fault}"):
        play(name, fault)


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_time_limit_without_observations_leaves_those_before_it(name: str) -> None:
    ends = [end for end in play(name, "last observations")[:-1] if end.truncated]
    assert ends
    for end in ends:
        seen = end.observation["observation"] if isinstance(end.observation, dict) else end.observation
        assert seen is None or np.ravel(seen)[0] == ENDS_AT - 1


@pytest.mark.parametrize("name", WRAPPERS)
def test_an_agent_that_died_earlier_learns_that_its_team_won(name: str, tmp_path: Any) -> None:
    policies = {"player": mf.Policy(SMALL_PPO, SMALL)}
    mapping = [mf.Rule("*", "player")]
    if "managed" in name:
        policies["manager"] = mf.Policy(SMALL_PPO, SMALL)
        mapping = [mf.Rule("manager*", "manager"), *mapping]
    experiment = small_run(
        env=mf.Env(Pair, {"fault": "dies"}, wrappers=WRAPPERS[name]),
        policies=policies,
        mapping=mapping,
        metrics={"won": mf.InfoMetric("won")},
    )
    result = mf.train(experiment, tmp_path)
    assert result.metrics["policies"]["player"]["infos"]["won"] == 1.0


def test_black_death_pays_nothing_to_an_agent_that_leaves_without_a_flag() -> None:
    class Leaving(Pair):
        def step(self, actions: Mapping[str, int]) -> Any:
            seen, rewards, *rest = super().step(actions)
            if self.t == 2:
                self.agents.remove("a_1")
                del rewards["a_1"], seen["a_1"]
            return seen, rewards, *rest

    env = black_death(Leaving())
    env.reset()
    for _ in range(ENDS_AT):
        observations, rewards, *_ = env.step(dict.fromkeys(env.agents, 0))
        assert rewards["a_0"] == 1.0
    assert rewards["a_1"] == 0.0
    assert observations["a_1"][0] == 0.0


def test_observations_of_one_number_are_padded() -> None:
    class Scalar(Pair):
        def observation_space(self, agent: str) -> spaces.Space[Any]:
            return spaces.Box(-1 if agent == "a_0" else 0, 9, ())

        def reset(self, seed: int | None = None, options: Any = None) -> Any:
            seen, infos = super().reset(seed, options)
            return {agent: np.float32(one[0]) for agent, one in seen.items()}, infos

    env = pad_observations(Scalar())
    assert env.observation_space("a_1") == env.observation_space("a_0") == spaces.Box(-1, 9, ())
    seen, _ = env.reset()
    assert seen == {"a_0": 0.0, "a_1": 0.0}
