"""Agents are named by text, each by its own: whatever else an environment has is refused in a sentence."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.conversions import parallel_to_aec

import marlflow as mf
from marlflow.config.environment import environment_maker, opened
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.cartpole_team import BatchedCartPoleTeam
from marlflow.env.episode_location import EpisodeLocation
from marlflow.env.opening import open_adapter
from marlflow.env.wrappers.shipped import agent_indicator
from tests.cli.conftest import Marlflow, marlflow  # noqa: F401  a fixture


class Team(ParallelEnv[Any, Any, Any]):
    """Ends after one env step."""

    def __init__(self, agents: list[Any], declared: bool = True) -> None:
        self.all, self.metadata, self.render_mode = agents, {"name": "team"}, None
        if declared:
            self.possible_agents = agents

    def observation_space(self, agent: Any) -> Any:
        return Box(-1, 1, (2,))

    def action_space(self, agent: Any) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents = list(self.all)
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        seen = {agent: np.zeros(2, np.float32) for agent in self.agents}
        over, live = self.agents, dict.fromkeys(self.agents, False)
        self.agents = []
        return seen, dict.fromkeys(over, 1.0), dict.fromkeys(over, True), live, {agent: {} for agent in over}


def numbers() -> Team:
    return Team([0, 1])


def numbers_aec() -> AECEnv[Any, Any, Any]:
    return parallel_to_aec(numbers())


class Side(Enum):
    RED = "red"


class Named(StrEnum):
    RED = "red"


REFUSED = {
    "numbers": ([0, 1], "agent 0 is of type int, and agents are named by text"),
    "numbers of numpy": ([np.int64(3)], "is of type int64"),
    "a number after names": (["a", 1], "agent 1 is of type int"),
    "tuples": ([("a", 1)], r"agent \('a', 1\) is of type tuple"),
    "lists": ([["a"]], r"agent \['a'\] is of type list"),
    "nothing": ([None], "agent None is of type NoneType"),
    "an enumeration": ([Side.RED], "is of type Side"),
    "bytes": ([b"a"], "is of type bytes"),
    "one twice": (["a", "b", "a"], "two agents are named 'a': give each a name of its own"),
}


@pytest.mark.parametrize(("agents", "problem"), REFUSED.values(), ids=REFUSED)
def test_agents_without_names_of_their_own_are_refused(agents: list[Any], problem: str) -> None:
    env = mf.Env(lambda: Team(agents))
    with pytest.raises(mf.ConfigInvalid, match=rf"^environment \S+ cannot start: .*{problem}"):
        opened(environment_maker(env), env).__enter__()
    with pytest.raises(mf.ConfigInvalid, match=problem):
        agent_indicator(Team(agents))
    batched = BatchedCartPoleTeam(num_envs=1, num_agents=1)
    batched.possible_agents = agents
    with pytest.raises(mf.EnvironmentFailed, match=problem):
        BatchedAdapter(batched, EpisodeLocation("team", 0))


@pytest.mark.parametrize("agents", [[0, 1], ["a", 1]])
def test_agents_that_appear_are_named_too(agents: list[Any]) -> None:
    with pytest.raises(mf.EnvironmentFailed, match=r"agent [01] is of type int"):
        open_adapter(Team(agents, declared=False))


def test_names_that_are_text_of_another_class_are_names() -> None:
    assert list(open_adapter(Team([Named.RED, np.str_("blue")])).agents) == ["red", "blue"]


@pytest.mark.parametrize("factory", ["numbers", "numbers_aec"])
@pytest.mark.parametrize("command", ["check-env", "train", "plan"])
def test_each_command_says_so(marlflow: Marlflow, command: str, factory: str) -> None:  # noqa: F811
    said = marlflow(command, f"env._target_={__name__}.{factory}", "env=python", "runtime=inline")
    assert said.code == (1 if command == "check-env" else 2)
    text = " ".join((said.out + said.err).split())
    assert "agent 0 is of type int, and agents are named by text; give it a name such as 'agent_0'" in text
    assert "Traceback" not in text
