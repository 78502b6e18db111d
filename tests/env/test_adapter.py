"""The adapter's contract with environments: what it makes of them, and what it says when they break theirs."""

from __future__ import annotations

import pickle
from collections import namedtuple
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.utils.wrappers import MultiEpisodeEnv
from ray._raylet import raise_sys_exit_with_custom_error_message

from marlflow.base.errors import EnvironmentFailed
from marlflow.env import open_adapter


class Scripted(ParallelEnv):
    """Plays back `steps`: each is (agents afterwards, rewards, terminations, truncations)."""

    metadata: ClassVar = {"name": "scripted"}
    possible_agents: ClassVar = ["a", "b", "c"]

    def __init__(self, steps, start=("a", "b")):
        self.steps, self.start = steps, start

    def observation_space(self, agent):
        return spaces.Box(-1, 1, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def see(self, agents):
        return {agent: np.full(1, self.t, np.float32) for agent in agents}

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = list(self.start)
        return self.see(self.agents), {agent: {} for agent in self.agents}

    def step(self, actions):
        acted = self.agents
        self.agents, rewards, terminations, truncations = self.steps[self.t]
        self.t += 1
        seen = self.see([*dict.fromkeys([*acted, *self.agents])])
        return seen, rewards, terminations, truncations, {agent: {} for agent in seen}


def test_who_decides_and_who_has_ended():
    adapter = open_adapter(
        Scripted(
            [
                (["a", "b"], {"a": 1.0, "b": 2.0}, {"a": False, "b": False}, {"a": False, "b": False}),
                (["b", "c"], {"a": 3.0, "b": 4.0}, {"a": True, "b": False}, {"a": False, "b": False}),
                ([], {"a": 9.0, "b": 5.0, "c": 6.0}, {"b": True, "c": False}, {"b": True, "c": True}),
            ]
        )
    )
    turn = adapter.reset(3)
    assert (turn.deciding, turn.rewards, turn.over) == ([0, 1], [], False)
    turn = adapter.act([0, 1])
    assert (turn.deciding, turn.reward_slots, turn.rewards, turn.ended) == ([0, 1], [0, 1], [1.0, 2.0], [])
    turn = adapter.act([0, 1])
    assert (turn.deciding, turn.reward_slots, turn.rewards) == ([1, 2], [0, 1], [3.0, 4.0])
    assert [ending[:3] for ending in turn.ended] == [(0, True, False)]
    assert turn.ended[0].observation == 2
    turn = adapter.act([0, 1])
    assert turn.over
    # Both flags at once count as terminated, and what the dead receive is still told.
    assert [ending[:3] for ending in turn.ended] == [(1, True, False), (2, False, True)]
    assert (turn.reward_slots, turn.rewards) == ([0, 1, 2], [9.0, 5.0, 6.0])
    assert adapter.appeared() == {0, 1, 2}
    assert adapter.vanished == 0


def test_an_agent_that_vanishes_unmarked_is_truncated_and_counted():
    adapter = open_adapter(Scripted([(["b"], {"a": 1.0, "b": 1.0}, {"a": False}, {"a": False})]))
    adapter.reset(0)
    turn = adapter.act([0, 0])
    assert [ending[:3] for ending in turn.ended] == [(0, False, True)]
    assert adapter.vanished == 1


def test_the_dead_that_stay_listed_do_not_decide_until_they_have_left_and_returned():
    dead = {"a": True, "b": False}
    adapter = open_adapter(
        Scripted(
            [
                (["a", "b"], {"a": 1.0, "b": 1.0}, dead, {}),
                (["a", "b"], {"b": 1.0}, {}, {}),
                (["b"], {"b": 1.0}, {}, {}),
                (["a", "b"], {"b": 1.0}, {}, {}),
            ]
        )
    )
    adapter.reset(0)
    assert adapter.act([0, 0]).deciding == [1]
    assert adapter.act([0]).deciding == [1]
    assert adapter.act([0]).deciding == [1]
    assert adapter.act([0]).deciding == [0, 1]


def test_an_undeclared_agent_is_an_error():
    adapter = open_adapter(Scripted([(["a", "stranger"], {"a": 1.0}, {}, {})]), env_index=4)
    adapter.reset(11)
    with pytest.raises(EnvironmentFailed, match="'stranger' is not one of possible_agents") as caught:
        adapter.act([0, 0])
    assert caught.value.where == "environment scripted, env 4, episode seed 11, env step 1, agent 'stranger'"


def test_a_missing_observation_is_an_error():
    class Blind(Scripted):
        def see(self, agents):
            return super().see(agent for agent in agents if agent == "a" or self.t == 0)

    adapter = open_adapter(Blind([(["a", "b"], {"a": 0.0, "b": 0.0}, {}, {})] * 2))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match="no observation") as caught:
        adapter.act([0, 0])
    assert "agent 'b'" in caught.value.where


NOBODY_ENDED = {"a": False, "b": False}


@pytest.mark.parametrize(
    "step",
    [
        (["a", "b"], {"a": 1.0}, NOBODY_ENDED, NOBODY_ENDED),
        (["a", "b"], {"a": 1.0, "c": 1.0}, NOBODY_ENDED, NOBODY_ENDED),
        (["a"], {"a": 1.0}, {"a": False, "b": True}, NOBODY_ENDED),
        (["a"], {"a": 1.0}, NOBODY_ENDED, {"a": False, "b": True}),
    ],
    ids=["left out", "given to another", "left out at its end", "left out when truncated"],
)
def test_an_agent_that_lived_before_a_step_without_a_reward_is_an_error(step):
    fine = (["a", "b"], {"a": 0.0, "b": 0.0}, NOBODY_ENDED, NOBODY_ENDED)
    for before in ([], [fine, fine]):  # the first step of an episode, and one on the short way
        adapter = open_adapter(Scripted([*before, step]))
        adapter.reset(0)
        for _ in before:
            adapter.act([0, 0])
        with pytest.raises(EnvironmentFailed, match="gave no reward for an agent that was alive before it") as caught:
            adapter.act([0, 0])
        assert (
            caught.value.where == f"environment scripted, env 0, episode seed 0, env step {len(before) + 1}, agent 'b'"
        )


def test_an_observation_of_another_shape_is_an_error():
    class Wide(Scripted):
        def see(self, agents):
            return {agent: np.zeros(2, np.float32) for agent in agents}

    with pytest.raises(EnvironmentFailed, match=r"shape \(1,\) was declared, one of shape \(2,\) came"):
        open_adapter(Wide([])).reset(0)


def test_an_environments_exception_says_where_and_shows_only_its_own_frames():
    class Raises(Scripted):
        def step(self, actions):
            return self.deeper()

        def deeper(self):
            raise ZeroDivisionError("a wheel came off")

    adapter = open_adapter(Raises([]), env_index=2, name="wheels")
    adapter.reset(7)
    with pytest.raises(EnvironmentFailed) as caught:
        adapter.act([0, 0])
    failure = pickle.loads(pickle.dumps(caught.value))  # noqa: S301  (it has just been made)
    assert failure.where == "environment wheels, env 2, episode seed 7, env step 1"
    assert failure.reason == "step() raised ZeroDivisionError: a wheel came off"
    assert "in deeper" in failure.user_traceback
    assert "in step" in failure.user_traceback
    assert "marlflow" not in failure.user_traceback.replace(__file__, "").replace("tests", "")
    assert "in act" not in failure.user_traceback


class Quits(Scripted):
    def __init__(self, error):
        super().__init__([])
        self.error = error

    def step(self, actions):
        raise self.error


def test_an_environment_that_would_end_the_process_has_failed():
    adapter = open_adapter(Quits(SystemExit(0)))
    adapter.reset(7)
    with pytest.raises(EnvironmentFailed, match=r"step\(\) raised SystemExit: 0"):
        adapter.act([0, 0])


def test_ray_may_end_a_process_in_a_step():
    ends = SystemExit(1)
    ends.ray_terminate_msg = "The process receives a SIGTERM."
    adapter = open_adapter(Quits(ends))
    adapter.reset(7)
    with pytest.raises(SystemExit):
        adapter.act([0, 0])


def test_how_ray_ends_a_process_is_told_from_an_environments_own_exit():
    with pytest.raises(SystemExit) as ended:
        raise_sys_exit_with_custom_error_message("the end")
    assert ended.value.ray_terminate_msg == "the end"


def test_an_aec_environments_exception_names_the_agent():
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    adapter = open_adapter(tictactoe.env())
    turn = adapter.reset(0)
    assert turn.masks[0].tolist() == [1] * 9
    with pytest.raises(EnvironmentFailed, match="AssertionError") as caught:
        adapter.act([99])
    assert caught.value.where.endswith("env step 1, agent 'player_1'")


class NoMasksAtFirst(Scripted):
    def step(self, actions):
        *first, infos = super().step(actions)
        return *first, {agent: {"action_mask": np.ones(2)} for agent in infos}


def test_a_mask_that_was_not_there_at_reset_is_an_error():
    adapter = open_adapter(NoMasksAtFirst([(["a", "b"], {"a": 0.0, "b": 0.0}, {}, {})]))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match="reset\\(\\) gave no agent one"):
        adapter.act([0, 0])


def test_the_mask_is_split_off_the_observation_and_its_space():
    connect_four = pytest.importorskip("pettingzoo.classic.connect_four_v3")
    adapter = open_adapter(connect_four.env())
    assert adapter.masked("player_0")
    assert adapter.observation_space("player_0").shape == (6, 7, 2)
    turn = adapter.reset(0)
    assert turn.observations[0].shape == (6, 7, 2)
    assert turn.masks[0].tolist() == [1] * 7


def test_each_player_of_a_won_game_receives_its_reward_before_its_end():
    connect_four = pytest.importorskip("pettingzoo.classic.connect_four_v3")
    adapter = open_adapter(connect_four.env())
    turn = adapter.reset(0)
    rewards = []
    for column in (0, 1, 0, 1, 0, 1, 0):
        turn = adapter.act([column])
        rewards += zip(turn.reward_slots, turn.rewards, strict=True)
    assert turn.over
    assert sorted(rewards) == [(0, 1), (1, -1)]
    assert sorted(ending[:3] for ending in turn.ended) == [(0, True, False), (1, True, False)]
    assert adapter.env_steps == 7


class Undeclared(AECEnv):
    """Declares nobody; `b` comes at the second turn."""

    metadata: ClassVar = {"name": "undeclared"}

    def observation_space(self, agent):
        return spaces.Discrete(9)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return self.t

    def reset(self, seed=None, options=None):
        self.t = 0
        self.agents = ["a"]
        self.rewards, self.infos = {"a": 0.0}, {"a": {}}
        self.terminations, self.truncations = {"a": False}, {"a": False}
        self._cumulative_rewards = {"a": 0.0}
        self.agent_selection = "a"

    def step(self, action):
        if self.truncations[self.agent_selection]:
            return self._was_dead_step(action)
        self.t += 1
        self.agents = ["a", "b"]
        self.rewards = dict.fromkeys(self.agents, 1.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 1.0)
        self.infos = {agent: {} for agent in self.agents}
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, self.t >= 4)
        self.agent_selection = self.agents[self.t % 2]
        return None


def test_where_nobody_is_declared_new_names_get_slots_as_they_appear():
    adapter = open_adapter(Undeclared())
    assert not adapter.declared
    assert adapter.agents == ["a"]
    adapter.reset(0)
    turn = adapter.act([0])
    assert adapter.agents == ["a", "b"]
    assert turn.deciding == [1]


class Unpaid(Undeclared):
    """Leaves out of `rewards` who is in `unpaid`, from the second env step on."""

    unpaid = ("a",)

    def step(self, action):
        super().step(action)
        if self.t >= 2:
            self.rewards = {agent: 1.0 for agent in self.agents if agent not in self.unpaid}


def test_a_living_agent_without_a_reward_is_an_error_in_an_aec_environment():
    adapter = open_adapter(Unpaid())
    adapter.reset(0)
    adapter.act([0])
    with pytest.raises(EnvironmentFailed, match="left an agent out of `rewards` that was and is in `agents`") as caught:
        adapter.act([0])
    assert caught.value.where.endswith("env step 2, agent 'a'")


class Lingering(Undeclared):
    """Nobody leaves by a dead step."""

    def _was_dead_step(self, action):
        self.rewards = {}


def test_the_dead_who_stay_after_their_dead_step_are_an_error():
    adapter = open_adapter(Lingering())
    adapter.reset(0)
    for _ in range(3):
        adapter.act([0])
    with pytest.raises(EnvironmentFailed, match="a dead agent stayed in `agents` after its dead step"):
        adapter.act([0])


def test_who_is_back_after_its_dead_step_begins_a_new_trajectory():
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    adapter = open_adapter(MultiEpisodeEnv(tictactoe.env(), 2))
    adapter.reset(0)
    for square in (0, 3, 1, 4, 2):
        turn = adapter.act([square])
    assert sorted(ending[:3] for ending in turn.ended) == [(0, True, False), (1, True, False)]
    assert (turn.deciding, turn.over) == ([0], False)
    for square in (0, 3, 1, 4, 2):
        turn = adapter.act([square])
    assert turn.over


def test_final_observations_are_kept_where_an_environment_shows_everything_in_one_array():
    class OneArray(Undeclared):
        shown = np.zeros(2, np.float32)

        def observation_space(self, agent):
            return spaces.Box(0, 9, (2,), np.float32)

        def observe(self, agent):
            self.shown[:] = ord(agent) - ord("a"), self.t
            return self.shown

    adapter = open_adapter(OneArray())
    adapter.reset(0)
    for _ in range(4):
        turn = adapter.act([0])
    assert [(ending.slot, ending.observation.tolist()) for ending in turn.ended] == [(0, [0, 4]), (1, [1, 4])]


def test_a_selected_agent_that_is_not_there_is_an_error():
    class Strange(Undeclared):
        def step(self, action):
            super().step(action)
            self.agent_selection = "stranger"
            self.terminations["stranger"] = self.truncations["stranger"] = False

    adapter = open_adapter(Strange())
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match="the selected agent is not in `agents`") as caught:
        adapter.act([0])
    assert "agent 'stranger'" in caught.value.where


def test_only_pettingzoo_environments_are_opened():
    with pytest.raises(TypeError, match="expected a PettingZoo AECEnv or ParallelEnv, or a BatchedEnv, got int"):
        open_adapter(3)


def test_a_step_that_returns_what_an_older_interface_did_is_named():
    class Older(Scripted):
        def step(self, actions):
            observations, rewards, terminations, _, infos = super().step(actions)
            return observations, rewards, terminations, infos

    adapter = open_adapter(Older([(["a", "b"], {"a": 0.0, "b": 0.0}, {}, {})] * 2))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match=r"step\(\) returned 4 things; a ParallelEnv returns 5: observations"):
        adapter.act([0, 0])


@pytest.mark.parametrize(
    ("position", "value", "said"),
    [
        (1, [0.0, 0.0], r"step\(\) returned a list as rewards"),
        (2, False, r"step\(\) returned a bool as terminations"),
        (3, None, r"step\(\) returned a NoneType as truncations"),
        (4, None, r"step\(\) returned a NoneType as infos"),
        (2, {"a": np.zeros(2, bool), "b": False}, "an array of 2 as a termination or truncation"),
    ],
)
def test_parts_of_a_step_that_are_not_by_agent_are_named(position, value, said):
    class Wrong(Scripted):
        def step(self, actions):
            parts = [*super().step(actions)]
            parts[position] = value
            return tuple(parts)

    adapter = open_adapter(Wrong([(["a", "b"], {"a": 0.0, "b": 0.0}, {}, {})] * 2))
    adapter.reset(0)
    with pytest.raises(EnvironmentFailed, match=said):
        adapter.act([0, 0])


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (lambda observations: observations, "returned a dict"),
        (lambda observations: (observations, None), "returned a NoneType as infos"),
        (lambda observations: None, "returned a NoneType"),
    ],
)
def test_a_reset_that_returns_what_an_older_interface_did_is_named(begin, said):
    class Older(Scripted):
        def reset(self, seed=None, options=None):
            return begin(super().reset(seed)[0])

    expected = rf"reset\(\) {said}; a ParallelEnv returns 2: observations and infos, a dict by agent each"
    with pytest.raises(EnvironmentFailed, match=expected):
        open_adapter(Older([]))


def test_named_tuples_and_lists_are_as_good_as_tuples():
    class Named(Scripted):
        def reset(self, seed=None, options=None):
            return [*super().reset(seed)]

        def step(self, actions):
            return namedtuple("Step", "seen rewards terminations truncations infos")(*super().step(actions))

    adapter = open_adapter(Named([(["a", "b"], {"a": 0.0, "b": 1.0}, {}, {})] * 2))
    adapter.reset(0)
    assert adapter.act([0, 0]).rewards == [0.0, 1.0]


def test_an_observation_that_is_missing_at_the_reset_is_reset_s():
    class Blind(Scripted):
        def reset(self, seed=None, options=None):
            _, infos = super().reset(seed)
            return {}, infos

    adapter = open_adapter(Blind([]))
    with pytest.raises(EnvironmentFailed, match=r"reset\(\) gave no observation for an agent that is in `agents`"):
        adapter.reset(0)


def test_a_mask_of_several_components_may_be_a_tuple_of_arrays():
    class Masked(Scripted):
        def action_space(self, agent):
            return spaces.MultiDiscrete([2, 3])

        def reset(self, seed=None, options=None):
            observations, infos = super().reset(seed)
            mask = (np.array([0, 1], np.int8), np.array([1, 0, 0], np.int8))
            return observations, {agent: {"action_mask": mask} for agent in infos}

    adapter = open_adapter(Masked([]))
    assert [mask.tolist() for mask in adapter.reset(0).masks] == [[0, 1, 1, 0, 0]] * 2


def test_agents_that_nobody_declares_can_be_given_their_slots_before_they_appear():
    adapter = open_adapter(Undeclared())
    adapter.seat(["b", "a"])
    turn = adapter.reset(0)
    assert (list(adapter.agents), turn.deciding) == (["b", "a"], [1])
    assert adapter.act([0]).deciding == [0]
    adapter.seat(["b", "a", "c"])
    adapter.seat(["c"])
    assert list(adapter.agents) == ["c", "b", "a"]
    assert adapter.action_space("c") == spaces.Discrete(2)


def test_an_environment_without_spaces_for_who_is_not_there_yet_fails():
    class Late(Undeclared):
        def action_space(self, agent):
            return {agent: spaces.Discrete(2) for agent in self.agents}[agent]

    with pytest.raises(EnvironmentFailed, match=r"observation_space\(\) or action_space\(\) raised KeyError: 'b'"):
        open_adapter(Late()).seat(["b"])


class Shy(Undeclared):
    """Knows the spaces of agents that are there only."""

    def action_space(self, agent):
        if agent not in getattr(self, "agents", ()):
            raise KeyError(agent)
        return super().action_space(agent)


def test_seats_of_agents_without_spaces_leave_an_adapter_as_it_was():
    adapter = open_adapter(Shy())
    adapter.reset(0)
    before = list(adapter.agents)
    with pytest.raises(EnvironmentFailed):
        adapter.seat(["nobody", *reversed(before)])
    assert list(adapter.agents) == before
    adapter.seat(before[::-1])
    assert list(adapter.agents) == before[::-1]
    adapter.reset(1)
