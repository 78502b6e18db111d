"""What managers get, see and are told where workers end, return or begin late."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

from marlflow.env import open_adapter
from marlflow.env.wrappers.managed import managed
from tests.env.test_conservation import Played, assert_exact

TERMINATED, TRUNCATED, JOINED = "terminated", "truncated", "joined"


class Team(ParallelEnv):  # type: ignore[type-arg]
    """Each env step pays 1 to every agent, also to those that have ended; agents see how many steps there were.

    `happens` says what happens to agents by env step.
    """

    metadata: dict[str, Any] = {"name": "team"}  # noqa: RUF012
    possible_agents = ["a0", "a1"]  # noqa: RUF012

    def __init__(self, happens: Mapping[int, Mapping[str, str]], begin: tuple[str, ...] = ("a0", "a1")) -> None:
        self.happens, self.begin = happens, begin

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(20)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, int], dict[str, Any]]:
        self.agents, self.t = list(self.begin), 0
        return dict.fromkeys(self.agents, 0), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, int]) -> Any:
        self.t += 1
        now = self.happens.get(self.t, {})
        joined = [agent for agent, what in now.items() if what == JOINED]
        there = [*self.agents, *joined]
        flags = ({agent: now.get(agent) == what for agent in there} for what in (TERMINATED, TRUNCATED))
        self.agents = [agent for agent in there if now.get(agent) not in {TERMINATED, TRUNCATED}]
        seen, infos = dict.fromkeys(there, self.t), {agent: {} for agent in there}
        return seen, dict.fromkeys(self.possible_agents, 1.0), *flags, infos


def issued(env: Any) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Play an episode in which options are kept as long as possible; the rewards by agent, and the ends in order."""
    env.reset(seed=0)
    rewards: dict[str, float] = defaultdict(float)
    ends = []
    while env.agents:
        agent = env.agent_selection
        if env.terminations[agent] or env.truncations[agent]:
            ends.append((agent, TERMINATED if env.terminations[agent] else TRUNCATED))
            env.step(None)
            continue
        mask = env.infos[agent].get("action_mask")
        env.step(0 if mask is None else int(mask.argmax()))
        for each, reward in env.rewards.items():
            rewards[each] += reward
    return rewards, ends


@pytest.mark.parametrize("acts", ["when_due", "every_env_step"])
def test_what_an_ended_worker_still_earns_reaches_its_manager_once(acts: Any) -> None:
    def make() -> Any:
        happens = {2: {"a0": TERMINATED}, 4: {"a1": TERMINATED}}
        return managed(Team(happens), 3, every=3, manager="boss", worker_share=0.5, manager_acts=acts)

    assert issued(make())[0] == {"boss": 8.0, "a0": 2.0, "a1": 2.0}
    assert_exact(make, Played(collects=(3, 1, 7, 5, 20, 11), episodes=2))


@pytest.mark.parametrize("acts", ["when_due", "every_env_step"])
def test_what_a_worker_earns_after_its_manager_has_ended_with_it_counts_in_both_returns(acts: Any) -> None:
    def make() -> Any:
        happens = {2: {"a0": TERMINATED}, 4: {"a1": TERMINATED}}
        return managed(Team(happens), 3, every=3, worker_share=0.5, manager_acts=acts)

    assert issued(make())[0] == {"manager_a0": 4.0, "manager_a1": 4.0, "a0": 2.0, "a1": 2.0}
    assert_exact(make, Played(collects=(3, 1, 7, 5, 20, 11), episodes=2))


def test_a_manager_whose_worker_returned_and_terminated_is_not_truncated() -> None:
    happens = {2: {"a0": TRUNCATED}, 4: {"a0": JOINED}, 6: {"a0": TERMINATED}, 8: {"a1": TERMINATED}}
    _, ends = issued(managed(Team(happens), 3, every=3))
    of_manager = [what for agent, what in ends if agent == "manager_a0"]
    assert of_manager == [TRUNCATED, TERMINATED]


def test_an_option_that_ends_as_its_worker_is_truncated_leaves_the_manager_due() -> None:
    """The manager's last observation and mask are bootstrapped from: there it would have chosen again."""
    env = managed(
        Team({5: {"a0": TRUNCATED, "a1": TRUNCATED}}),
        3,
        every=4,
        terminate=lambda seen, option: int(seen) >= 5,
        manager_acts="every_env_step",
    )
    env.reset(seed=0)
    last = {}
    for agent in env.agent_iter():
        seen, _, _, truncated, info = env.last()
        if truncated:
            last[agent] = seen, info.get("action_mask")
            env.step(None)
            continue
        env.step(int(info["action_mask"].argmax()) if "action_mask" in info else 0)
    for agent in ("a0", "a1"):
        assert last[agent][0]["left"][0] == 0.0
        seen, mask = last[f"manager_{agent}"]
        assert seen["left"][0] == 0.0
        assert mask.tolist() == [1, 1, 1, 0]


def test_a_manager_that_begins_later_may_act_at_every_env_step() -> None:
    happens = {2: {"a1": JOINED}, 6: {"a0": TERMINATED, "a1": TERMINATED}}

    def make() -> Any:
        return managed(Team(happens, begin=("a0",)), 3, every=2, agents="a1", manager_acts="every_env_step")

    adapter = open_adapter(make())
    assert adapter.masked("manager_a1")
    assert_exact(make, Played(collects=(3, 1, 7, 5, 20, 11), episodes=2))
