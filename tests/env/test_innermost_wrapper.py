from __future__ import annotations

import pytest
from pettingzoo.utils.wrappers import AssertOutOfBoundsWrapper, BaseWrapper, OrderEnforcingWrapper

from marlflow.env import open_adapter
from marlflow.env.aec import innermost_wrapper
from marlflow.env.wrappers.shipped import mask_in_info

READ = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")
# player_0 wins in the first column.
WON = (0, 1, 0, 1, 0, 1, 0)


@pytest.fixture
def connect_four():
    return pytest.importorskip("pettingzoo.classic.connect_four_v3").env()


class Doubled(BaseWrapper):
    @property
    def rewards(self):
        return {agent: 2 * reward for agent, reward in self.env.rewards.items()}


class LateWord(BaseWrapper):
    # It says nothing of its own until the third step.
    steps = 0

    def reset(self, seed=None, options=None):
        vars(self).pop("rewards", None)
        self.steps = 0
        super().reset(seed, options)

    def step(self, action):
        super().step(action)
        self.steps += 1
        if self.steps >= 3:
            self.rewards = dict.fromkeys(self.env.rewards, 5)


class Renaming(BaseWrapper):
    def __getattr__(self, name):
        return {"player_0": {}, "player_1": {}} if name == "infos" else super().__getattr__(name)


def play(env, episodes=1):
    adapter = open_adapter(env)
    received = []
    for episode in range(episodes):
        turn = adapter.reset(episode)
        for column in WON:
            assert not turn.over
            turn = adapter.act([column])
            received.append(list(zip(turn.reward_slots, turn.rewards, strict=True)))
        assert turn.over
    return received


def test_pettingzoos_own_wrappers_are_passed(connect_four):
    connect_four.reset(seed=0)
    holder = innermost_wrapper(connect_four)
    assert holder is connect_four.unwrapped
    assert all(getattr(holder, name) is getattr(connect_four, name) for name in READ)


def test_marlflows_own_wrappers_are_passed_while_they_hold_nothing(connect_four):
    wrapped = mask_in_info(connect_four)
    wrapped.reset(seed=0)
    assert innermost_wrapper(wrapped) is connect_four.unwrapped
    wrapped.rewards = {}
    assert innermost_wrapper(wrapped) is wrapped


@pytest.mark.parametrize("kind", [Doubled, LateWord, Renaming])
def test_any_other_wrapper_is_taken_at_its_word(connect_four, kind):
    below = kind(connect_four)
    above = OrderEnforcingWrapper(AssertOutOfBoundsWrapper(below))
    above.reset(seed=0)
    assert innermost_wrapper(below) is below
    assert innermost_wrapper(above) is below


def test_an_attribute_set_on_one_of_pettingzoos_wrappers_holds(connect_four):
    middle = AssertOutOfBoundsWrapper(connect_four)
    env = OrderEnforcingWrapper(middle)
    middle.infos = {"player_0": {"of": "the middle"}}
    env.reset(seed=0)
    assert innermost_wrapper(env) is middle


@pytest.mark.parametrize("outside", [False, True])
def test_overridden_rewards_reach_the_window(connect_four, outside):
    env = Doubled(connect_four) if outside else OrderEnforcingWrapper(Doubled(connect_four.unwrapped))
    assert sorted(play(env)[-1]) == [(0, 2), (1, -2)]


def test_rewards_that_a_wrapper_takes_over_in_the_midst_of_an_episode_reach_the_window(connect_four):
    received = play(LateWord(connect_four), episodes=2)
    # From the third step on it hands out five to both, at each step; the two dead steps come with the last.
    fives = [(0, 5), (1, 5)]
    assert received[:2] == [[], []]
    assert received[2:6] == [fives] * 4
    assert received[7:13] == received[:6]


def test_what_is_read_inside_is_what_is_said_outside(connect_four):
    class Outside(BaseWrapper):
        pass

    assert play(connect_four, episodes=2) == play(Outside(connect_four), episodes=2)
