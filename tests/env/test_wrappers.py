"""The wrappers of the ready sets change what they say and nothing else, on environments of both kinds."""

import pickle
import re
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import supersuit
from gymnasium import spaces
from pettingzoo import ParallelEnv
from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec
from pettingzoo.utils.env import AECEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.env import make_environment
from marlflow.env.make import Wrapper, wrapped
from marlflow.env.wrappers import shipped as wrappers
from marlflow.env.wrappers.automaton_task import automaton

ENVIRONMENTS = {
    "cartpole_team": ("marlflow.env.games.cartpole_team.parallel_env", {"max_cycles": 30}),
    "connect_four": ("pettingzoo.classic.connect_four_v3.env", {}),
    "rps": ("pettingzoo.classic.rps_v2.parallel_env", {}),
    "simple_spread": ("mpe2.simple_spread_v3.parallel_env", {}),
    "simple_speaker_listener": ("mpe2.simple_speaker_listener_v4.parallel_env", {}),
    "simple_tag": ("mpe2.simple_tag_v3.parallel_env", {}),
    "simple_tag in turns": ("mpe2.simple_tag_v3.env", {}),
    "multiwalker": ("pettingzoo.sisl.multiwalker_v9.parallel_env", {"terminate_on_fall": False}),
    "cooperative_pong": ("pettingzoo.butterfly.cooperative_pong_v6.parallel_env", {}),
    "cooperative_pong in turns": ("pettingzoo.butterfly.cooperative_pong_v6.env", {}),
}
STACK = Wrapper("stack", supersuit.frame_stack_v2, {"stack_size": 4})
PADDING = (wrappers.pad_observations, wrappers.pad_actions)
PIXELS = (wrappers.gray, wrappers.resize, STACK)


def made(name, *around):
    target, arguments = ENVIRONMENTS[name]
    return make_environment(target, arguments, around)


def action(space, t, number):
    """An action of the space that depends on nothing but the moment and the agent's number."""
    random = np.random.default_rng((t, number))
    if isinstance(space, spaces.Discrete):
        return int(random.integers(space.n))
    return random.uniform(space.low, space.high).astype(space.dtype)


def steps(env, like=None, most=200):
    """What reset and each step of one episode of a Parallel environment return; acts in the spaces of `like`."""
    observations, infos = env.reset(seed=3)
    shown = [(observations, {}, {}, {}, infos)]
    agents = list(env.possible_agents)
    for t in range(most):
        if not env.agents:
            break
        actions = {agent: action((like or env).action_space(agent), t, agents.index(agent)) for agent in env.agents}
        shown.append(env.step(actions))
    assert not env.agents, "the episode did not end"
    return [tuple(dict(part) for part in step) for step in shown]


def assert_only_observations_differ(changed, raw, as_expected):
    assert len(changed) == len(raw)
    for (seen, *rest), (shown, *raw_rest) in zip(changed, raw, strict=True):
        assert rest == raw_rest
        assert seen.keys() == shown.keys()
        for agent, observation in seen.items():
            np.testing.assert_array_equal(observation, as_expected(agent, shown[agent]))


def test_padded_observations_end_in_zeros():
    raw, env = made("simple_tag"), made("simple_tag", wrappers.pad_observations)
    assert all(env.observation_space(agent) == env.observation_space("agent_0") for agent in env.possible_agents)
    longest = max(raw.observation_space(agent).shape[0] for agent in raw.possible_agents)

    def padded(agent, shown):
        return [*shown, *np.zeros(longest - len(shown))]

    assert_only_observations_differ(steps(env, raw), steps(raw), padded)


def test_discrete_observations_of_different_sizes_are_padded_by_values_that_do_not_come():
    env = made("rps", *PADDING)
    assert all(
        env.observation_space(agent).contains(observation)
        for observations, *_ in steps(env)
        for agent, observation in observations.items()
    )


def test_an_action_that_an_agent_does_not_have_is_its_first():
    raw, env = made("simple_speaker_listener"), made("simple_speaker_listener", wrappers.pad_actions)
    assert [env.action_space(agent) for agent in env.possible_agents] == [spaces.Discrete(5)] * 2
    raw.reset(seed=0), env.reset(seed=0)
    for choice in range(5):
        expected = raw.step({"speaker_0": choice if choice < 3 else 0, "listener_0": choice})
        np.testing.assert_equal(env.step({"speaker_0": choice, "listener_0": choice}), expected)


class Low(ParallelEnv):
    """Two agents, which see what is at most `high`."""

    metadata: ClassVar = {}

    def __init__(self, high):
        self.agents = self.possible_agents = ["a", "b"]
        self.seen = spaces.Box(-5.0, high, (3,), np.float32)

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return dict.fromkeys(self.agents, self.seen.low), {agent: {} for agent in self.agents}


@pytest.mark.parametrize("high", [0.0, -2.0, 3.0])
def test_agents_are_told_apart_whatever_the_highest_observation_is(high):
    env = wrappers.agent_indicator(Low(high))
    observations, _ = env.reset(seed=0)
    marks = [tuple(observations[agent][-2:]) for agent in env.possible_agents]
    assert len(set(marks)) == 2
    assert all(env.observation_space(agent).contains(observations[agent]) for agent in env.possible_agents)


@pytest.mark.parametrize(
    ("seen", "mark"),
    [
        (spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (3,), np.int32), 1),
        (spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (3,), np.int64), 1),
        (spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (3,), np.float32), 1),
        (spaces.Box(-np.inf, np.inf, (3,), np.float64), 1),
        (spaces.Box(0, 255, (3,), np.uint8), 255),
        (spaces.Box(0, 7, (3,), np.int32), 7),
    ],
)
def test_the_mark_of_an_agent_is_1_where_observations_have_no_bounds(seen, mark):
    env = Low(0.0)
    env.seen = seen
    shown, _ = wrappers.agent_indicator(env).reset(seed=0)
    assert {tuple(row[-2:].tolist()) for row in shown.values()} == {(mark, 0), (0, mark)}


@pytest.mark.parametrize("name", ["cartpole_team", "simple_spread"])
def test_agents_see_which_they_are_within_the_bounds_declared(name):
    raw, env = made(name), made(name, wrappers.agent_indicator)
    agents = list(raw.possible_agents)

    def indicated(agent, shown):
        return [*shown, *(float(agent == other) for other in agents)]

    shown = steps(env)
    assert_only_observations_differ(shown, steps(raw), indicated)
    assert all(env.observation_space(agent).contains(seen[agent]) for seen, *_ in shown for agent in seen)


def test_agents_may_see_their_group_alone():
    env = made("simple_tag", wrappers.pad_observations, Wrapper("type", wrappers.agent_indicator, {"type_only": True}))
    observations, _ = env.reset(seed=0)
    ends = {agent: observation[-2:].tolist() for agent, observation in observations.items()}
    assert ends == {**{f"adversary_{number}": [1, 0] for number in range(3)}, "agent_0": [0, 1]}


def test_an_image_gets_a_channel_for_each_agent():
    env = made("cooperative_pong", wrappers.gray, wrappers.resize, wrappers.agent_indicator)
    observations, _ = env.reset(seed=0)
    for number, agent in enumerate(env.possible_agents):
        assert env.observation_space(agent).contains(observations[agent])
        assert (observations[agent][..., 1:].min((0, 1)) == observations[agent][..., 1:].max((0, 1))).all()
        assert np.flatnonzero(observations[agent][0, 0, 1:]).tolist() == [number]


def test_a_discrete_observation_and_the_agent_make_one_number():
    env = made("rps", wrappers.agent_indicator)
    observations, _ = env.reset(seed=0)
    assert env.observation_space("player_1") == spaces.Discrete(8)
    assert observations == {"player_0": 3 * 2, "player_1": 3 * 2 + 1}


@pytest.mark.parametrize("name", ["cooperative_pong", "cooperative_pong in turns"])
def test_pixels_are_what_the_cnn_takes(name):
    env = made(name, *PIXELS)
    space = env.observation_space("paddle_0")
    assert (space.shape, space.dtype) == ((84, 84, 4), np.uint8)
    env.reset(seed=0)


def test_pixels_are_supersuits_own():
    theirs = made(
        "cooperative_pong",
        supersuit.color_reduction_v0,
        Wrapper("resize", supersuit.resize_v1, {"x_size": 84, "y_size": 84}),
        STACK,
    )
    ours = made("cooperative_pong", *PIXELS)
    assert ours.observation_space("paddle_0") == theirs.observation_space("paddle_0")
    for _ in range(2):
        observations, expected = ours.reset(seed=1)[0], theirs.reset(seed=1)[0]
        for _ in range(6):
            np.testing.assert_equal(observations, expected)
            observations, expected = (
                ours.step(dict.fromkeys(observations, 1))[0],
                theirs.step(dict.fromkeys(observations, 1))[0],
            )


@pytest.mark.parametrize("name", ["cartpole_team", "multiwalker"])
def test_the_dead_see_zeros_and_end_with_the_others_as_they_ended(name):
    raw, black = steps(made(name)), steps(made(name, wrappers.black_death))
    assert len(raw) == len(black)
    ended, everybody = {}, set(raw[0][0])
    for (shown, rewards, terminations, truncations, _), (seen, got, terminated, truncated, infos) in zip(
        raw[1:], black[1:], strict=True
    ):
        assert seen.keys() == got.keys() == terminated.keys() == infos.keys() == everybody
        assert got == {agent: rewards.get(agent, 0) for agent in everybody}
        for agent in everybody:
            np.testing.assert_array_equal(seen[agent], shown.get(agent, np.zeros_like(seen[agent])))
        ended |= {
            agent: (terminations[agent], truncations[agent])
            for agent in shown
            if agent not in ended and (terminations[agent] or truncations[agent])
        }
        over = ended.keys() == everybody
        assert {agent: (terminated[agent], truncated[agent]) for agent in everybody} == (
            ended if over else dict.fromkeys(everybody, (False, False))
        )
    assert over
    assert len(raw[-1][0]) < len(everybody), "nobody died before the others"


@pytest.mark.parametrize("name", ["cartpole_team", "multiwalker"])
def test_the_dead_of_a_team_keep_receiving_what_the_living_get(name):
    raw = steps(made(name))
    black = steps(made(name, partial(wrappers.black_death, keeps_receiving=True)))
    ended, posthumous = set(), 0
    for (_, rewards, terminations, truncations, _), (_, got, *_) in zip(raw[1:], black[1:], strict=True):
        acted = [agent for agent in terminations if agent not in ended]
        mean = sum(rewards[agent] for agent in acted) / len(acted)
        assert got == pytest.approx({agent: rewards.get(agent, mean) for agent in got})
        posthumous += sum(agent not in rewards for agent in got)
        ended |= {agent for agent in acted if terminations[agent] or truncations[agent]}
    assert posthumous > 0, "nobody died before the others"


class Sides(ParallelEnv):
    """Two of red, who receive -1 in each env step, and one of blue, who receives 5; `ends` has who ends when, and how.

    Whoever has ended is still observed, and is allowed nothing.
    """

    metadata: ClassVar[dict] = {"name": "sides"}
    possible_agents: ClassVar[list] = ["red_0", "red_1", "blue_0"]

    def __init__(self, ends):
        self.ends = ends

    def observation_space(self, agent):
        return spaces.Box(0, 99, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents, self.t = list(self.possible_agents), 0
        return self.shown()

    def shown(self):
        masks = {agent: np.full(2, agent in self.agents, np.int8) for agent in self.possible_agents}
        observations = {agent: np.full(1, self.t, np.float32) for agent in self.possible_agents}
        return observations, {agent: {"action_mask": mask} for agent, mask in masks.items()}

    def step(self, actions):
        assert set(actions) == set(self.agents)
        self.t += 1
        rewards = {agent: 5.0 if agent == "blue_0" else -1.0 for agent in self.agents}
        terminations, truncations = (
            {agent: self.ends.get(agent) == (self.t, how) for agent in self.agents} for how in ("died", "time")
        )
        self.agents = [agent for agent in self.agents if not terminations[agent] and not truncations[agent]]
        observations, infos = self.shown()
        return observations, rewards, terminations, truncations, infos


@pytest.mark.parametrize(
    ("keeps", "red_0", "ends"),
    [
        (False, [-1, 0, 0, 0], {"red_0": "died", "red_1": "died", "blue_0": "time"}),
        (True, [-1, 2, 5, 5], {"red_0": "time", "red_1": "time", "blue_0": "time"}),
        ("group", [-1, -1, 0, 0], {"red_0": "time", "red_1": "time", "blue_0": "time"}),
    ],
)
def test_the_dead_receive_from_their_side_and_end_as_whoever_lived_longest(keeps, red_0, ends):
    lives = {"red_0": (1, "died"), "red_1": (2, "died"), "blue_0": (4, "time")}
    env = wrapped(Sides(lives), [partial(wrappers.black_death, keeps_receiving=keeps)], "it")
    env.reset()
    received = []
    for t in range(4):
        acting = list(env.agents)
        seen, rewards, terminations, truncations, infos = env.step(dict.fromkeys(acting, 0))
        received.append(rewards["red_0"])
        dead = [agent for agent, (ended, _) in lives.items() if ended <= t]
        assert {agent: float(seen[agent][0]) for agent in acting} == {a: 0.0 if a in dead else t + 1.0 for a in acting}
        may_act = [agent for agent, info in infos.items() if info["action_mask"].any()]
        assert may_act == env.agents, "a mask that allows nothing stays at the end, where it says nothing"
    assert received == red_0
    found = {agent: "died" if terminations[agent] else "time" for agent in acting}
    assert found == ends
    assert all(terminations[agent] != truncations[agent] for agent in acting)


def test_the_dead_end_by_death_if_their_side_dies_out():
    lives = {"red_0": (1, "time"), "red_1": (2, "died"), "blue_0": (3, "died")}
    env = wrapped(Sides(lives), [partial(wrappers.black_death, keeps_receiving=True)], "it")
    env.reset()
    for _ in range(3):
        _, _, terminations, truncations, _ = env.step(dict.fromkeys(env.agents, 0))
    assert all(terminations.values())
    assert not any(truncations.values())


def test_masks_move_from_the_observation_to_the_info_of_whoever_is_to_move():
    raw, env = made("connect_four"), made("connect_four", wrappers.mask_in_info)
    raw.reset(seed=0), env.reset(seed=0)
    for t in range(42):
        (shown, *ends, _), (seen, *same_ends, info) = raw.last(), env.last()
        assert ends == same_ends
        np.testing.assert_array_equal(seen, shown["observation"])
        np.testing.assert_array_equal(info["action_mask"], shown["action_mask"])
        if any(ends[1:]):
            break
        column = int(np.random.default_rng(t).choice(np.flatnonzero(shown["action_mask"])))
        raw.step(column), env.step(column)
    assert any(ends[1:]), "nobody won, and the board is not full"


class HalfMasked(ParallelEnv):
    """Agent a sees a Dict of two parts beside its mask, and b a vector; one env step."""

    metadata: ClassVar[dict] = {"name": "half_masked"}
    render_mode = None
    possible_agents: ClassVar[list] = ["a", "b"]
    seen: ClassVar[dict] = {
        "a": {"x": np.ones(2, np.float32), "y": np.int64(1), "action_mask": np.array([0, 1, 1], np.int8)},
        "b": np.zeros(3, np.float32),
    }

    def observation_space(self, agent):
        parts = {"x": spaces.Box(0, 1, (2,)), "y": spaces.Discrete(2), "action_mask": spaces.MultiBinary(3)}
        return spaces.Dict(parts) if agent == "a" else spaces.Box(0, 1, (3,))

    def action_space(self, agent):
        return spaces.Discrete(3)

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict(self.seen), {"a": {}, "b": {"own": 1}}

    def step(self, actions):
        self.agents, none = [], dict.fromkeys(actions, False)
        return dict(self.seen), dict.fromkeys(actions, 0.0), dict.fromkeys(actions, True), none, {"a": {}, "b": {}}


@pytest.mark.parametrize("in_turns", [False, True])
def test_a_mask_moves_beside_other_parts_and_agents_without_one_see_what_they_saw(in_turns: bool) -> None:
    env = wrappers.mask_in_info(parallel_to_aec(HalfMasked()) if in_turns else HalfMasked())
    assert env.observation_space("a") == spaces.Dict(x=spaces.Box(0, 1, (2,)), y=spaces.Discrete(2))
    assert env.observation_space("b") == spaces.Box(0, 1, (3,))
    if in_turns:
        env.reset()
        seen, infos = {}, {}
        for agent in env.agent_iter(2):
            seen[agent], *_, infos[agent] = env.last()
            env.step(0)
    else:
        seen, infos = env.reset()
    assert set(seen["a"]) == {"x", "y"}
    assert infos["a"]["action_mask"].tolist() == [0, 1, 1]
    assert seen["b"].tolist() == [0, 0, 0]
    assert infos["b"] == {"own": 1}


class Carefree(ParallelEnv):
    """Agents 0 and 1 see what is out of bounds; their actions are nested, and `taken` has all."""

    metadata: ClassVar[dict] = {"name": "carefree"}
    possible_agents: ClassVar[list] = [0, 1]
    sees = spaces.Dict(
        place=spaces.Box(-1.0, 1.0, (2,)), lights=spaces.Tuple([spaces.Box(10, 20, (), np.uint8), spaces.Discrete(3)])
    )
    does = (
        spaces.Dict(
            word=spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]),
            walk=spaces.Tuple([spaces.Discrete(4, start=-2), spaces.MultiBinary(2)]),
        ),
        spaces.Tuple([spaces.Box(-1.0, 0.1, (2, 1), np.float64), spaces.Dict(push=spaces.Box(0.0, 2.0, ()))]),
    )

    def observation_space(self, agent):
        return self.sees

    def action_space(self, agent):
        return self.does[agent]

    def reset(self, seed=None, options=None):
        self.agents, self.taken = [0, 1], []
        return self.see(), {0: {}, 1: {}}

    def see(self):
        seen = {"place": np.array([0.5, -3.0], np.float32), "lights": (np.uint8(30), 2)}
        return dict.fromkeys(self.agents, seen)

    def step(self, actions):
        self.taken.append(actions)
        acted, self.agents = self.agents, [1][: len(self.taken) < 3]
        nothing = dict.fromkeys(acted, False)
        ends = {agent: agent not in self.agents for agent in acted}
        return {a: self.see().get(a) for a in acted}, {a: a + 1.0 for a in acted}, ends, nothing, {a: {} for a in acted}


class Silent(ParallelEnv):
    """Agent b ends in the second step without a last observation, and comes back in the third; infos are None."""

    metadata: ClassVar = {"name": "silent"}
    possible_agents: ClassVar = ["a", "b"]

    def __init__(self, seen=None, does=None):
        self.seen = seen or spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.does = does or spaces.Discrete(3)

    def observation_space(self, agent):
        return self.seen

    def action_space(self, agent):
        return self.does

    def reset(self, seed=None, options=None):
        self.t, self.agents = 0, ["a", "b"]
        return self.see(), dict.fromkeys(self.agents)

    def see(self):
        return dict.fromkeys(self.agents, np.zeros(self.seen.shape, self.seen.dtype))

    def step(self, actions):
        self.t += 1
        ends = {agent: self.t == 2 and agent == "b" for agent in actions}
        self.agents = ["a"] if self.t == 2 else ["a", "b"]
        seen = {**dict.fromkeys(actions), **self.see()}
        return seen, dict.fromkeys(actions, 1.0), ends, dict.fromkeys(actions, False), dict.fromkeys(seen)


AROUND_SILENCE = {
    "last_action": wrappers.last_action,
    "agent_indicator": wrappers.agent_indicator,
    "clip_observations": wrappers.clip_observations,
    "pad_observations": wrappers.pad_observations,
    "pad_actions": wrappers.pad_actions,
    "flatten_actions": wrappers.flatten_actions,
    "automaton": lambda env: automaton(env, lambda seen, agent: [], formula="F goal", keep_reward=True, noop=0),
}


@pytest.mark.parametrize("name", AROUND_SILENCE)
def test_an_agent_may_end_without_a_last_observation_and_infos_may_be_none(name):
    does = spaces.Dict(move=spaces.Discrete(3)) if name == "flatten_actions" else None
    env = wrapped(Silent(does=does), [AROUND_SILENCE[name]], "it")
    env.reset()
    for t, ends in enumerate([{}, {"b": True}, {}]):
        before = list(env.agents)
        seen, rewards, terminations, truncations, _ = env.step({a: env.action_space(a).sample() for a in before})
        assert rewards == dict.fromkeys(before, 1.0)
        assert {agent: end for agent, end in terminations.items() if end} == ends
        assert not any(truncations.values())
        assert (seen.get("b") is None) == (t == 1)
        assert env.observation_space("a").contains(seen["a"])


def test_the_dead_and_managed_agents_may_have_no_info():
    env = wrapped(Silent(), [wrappers.black_death], "it")
    env.reset()
    for _ in range(2):
        seen, rewards, *_ = env.step(dict.fromkeys(env.agents, 0))
        assert set(seen) == set(rewards) == {"a", "b"}


def test_an_agent_that_comes_back_has_no_last_action():
    env = wrapped(Silent(), [wrappers.last_action], "it")
    env.reset()
    shown = [env.step(dict.fromkeys(env.agents, 1))[0].get("b") for _ in range(4)]
    assert [None if seen is None else seen.tolist() for seen in shown] == [
        [0, 0, 0, 1, 0],
        None,
        [0, 0, 0, 0, 0],
        [0, 0, 0, 1, 0],
    ]


class Vanishing(AECEnv):
    """Agent b leaves without a dead step while a moves for the second time, and is back when a moves again."""

    metadata: ClassVar = {"name": "vanishing"}
    possible_agents: ClassVar = ["a", "b"]

    def observation_space(self, agent):
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return np.zeros(1, np.float32)

    def reset(self, seed=None, options=None):
        self.agents, self.agent_selection, self.moves = ["a", "b"], "a", 0
        self._everybody()

    def _everybody(self):
        self.rewards, self._cumulative_rewards = (dict.fromkeys(self.agents, 0.0) for _ in range(2))
        self.terminations, self.truncations = (dict.fromkeys(self.agents, False) for _ in range(2))
        self.infos = {agent: {} for agent in self.agents}

    def step(self, action):
        self.moves += self.agent_selection == "a"
        self.agents = ["a"] if self.moves == 2 else ["a", "b"]
        self.agent_selection = "b" if self.agent_selection == "a" and self.moves != 2 else "a"
        self._everybody()


def test_an_agent_that_left_without_a_dead_step_has_no_last_action_when_it_comes_back():
    env = wrapped(Vanishing(), [wrappers.last_action], "it")
    env.reset()
    seen = []
    for _ in range(7):
        seen.append((env.agent_selection, env.observe(env.agent_selection)[1:].tolist()))
        env.step(1)
    of_b = [shown for agent, shown in seen if agent == "b"]
    assert of_b == [[0, 0], [0, 0], [0, 1]]


class Reaching(Silent):
    """Agent a reaches half as far as b, which has two joints; `done` has the actions that came."""

    spaces_of: ClassVar = {"a": spaces.Box(-1.0, 1.0, (1,)), "b": spaces.Box(-2.0, 4.0, (2,))}

    def action_space(self, agent):
        return self.spaces_of[agent]

    def step(self, actions):
        self.done = actions
        return super().step(actions)


def test_actions_stay_within_an_agents_own_bounds():
    env = wrapped(Reaching(), [wrappers.pad_actions], "it")
    env.reset()
    assert env.action_space("a") == env.action_space("b")
    env.step({"a": np.array([3.0, 9.0], np.float32), "b": np.array([-3.0, 3.0], np.float32)})
    assert {agent: action.tolist() for agent, action in env.unwrapped.done.items()} == {"a": [1.0], "b": [-2.0, 3.0]}


@pytest.mark.parametrize("dtype", [np.int32, np.uint8])
def test_a_last_action_beside_whole_numbers_is_not_rounded(dtype):
    force = spaces.Box(-1.0, 1.0, (1,), np.float32)
    env = wrapped(Silent(spaces.Box(0, 10, (2,), dtype), force), [wrappers.last_action], "it")
    env.reset()
    seen, *_ = env.step(dict.fromkeys(env.agents, np.array([-0.75], np.float32)))
    assert seen["a"].tolist() == [0.0, 0.0, -0.75]
    assert env.observation_space("a").contains(seen["a"])


def test_values_that_are_not_counted_from_0_and_the_agent_make_one_number():
    env = Silent(spaces.Discrete(3, start=5))
    env.see = lambda: dict.fromkeys(env.agents, 7)
    shown = wrapped(env, [wrappers.agent_indicator], "it")
    observations, _ = shown.reset()
    assert observations == {"a": 4, "b": 5}
    assert shown.observation_space("a") == spaces.Discrete(6)


def test_names_of_numbers_are_known_before_a_reset():
    assert wrappers.named_agents(Carefree()).action_space("agent_1") == Carefree.does[1]


def test_truth_values_have_no_wider_bounds():
    switches = spaces.Box(0, 1, (2,), np.bool_)
    assert wrapped(Silent(switches), [wrappers.widen_bounds], "it").observation_space("a") == switches


def test_observations_are_clipped_to_their_bounds_and_nothing_else_changes():
    env = wrapped(Carefree(), [wrappers.named_agents, wrappers.clip_observations], "it")
    observations, _ = env.reset()
    assert env.observation_space("agent_0") == Carefree.sees
    for seen in observations.values():
        assert seen["place"].tolist() == [0.5, -1.0]
        assert seen["lights"] == (20, 2)
        assert Carefree.sees.contains({**seen, "lights": (seen["lights"][0], np.int64(2))})


def test_widened_bounds_hold_all_numbers_of_the_dtype():
    env = wrapped(Carefree(), [wrappers.named_agents, wrappers.widen_bounds], "it")
    observations, _ = env.reset()
    space = env.observation_space("agent_1")
    assert space["place"] == spaces.Box(-np.inf, np.inf, (2,))
    assert space["lights"] == spaces.Tuple([spaces.Box(0, 255, (), np.uint8), spaces.Discrete(3)])
    np.testing.assert_array_equal(observations["agent_1"]["place"], [0.5, -3.0])


def test_nested_actions_are_one_whose_entries_are_in_the_order_of_the_space():
    inner = Carefree()
    env = wrapped(inner, [wrappers.named_agents, wrappers.flatten_actions], "it")
    env.reset()
    discrete, box = env.action_space("agent_0"), env.action_space("agent_1")
    assert discrete == spaces.MultiDiscrete([2, 3, 4, 2, 2])
    assert box == spaces.Box(np.float32([-1.0, -1.0, 0.0]), np.float32([0.1, 0.1, 2.0]))
    env.step({"agent_0": np.array([1, 2, 3, 0, 1]), "agent_1": box.high})
    first, second = inner.taken[0][0], inner.taken[0][1]
    assert [first["word"].tolist(), first["walk"][0], first["walk"][1].tolist()] == [[[2, 1]], 1, [0, 1]]
    assert [second[0].tolist(), float(second[1]["push"])] == [[[0.1], [0.1]], 2.0]
    for agent in (0, 1):
        assert Carefree.does[agent].contains(inner.taken[0][agent])


def test_agents_that_are_numbers_get_names():
    env = wrapped(Carefree(), [wrappers.named_agents], "it")
    env.reset()
    assert env.possible_agents == env.agents == ["agent_0", "agent_1"]
    actions = {agent: env.action_space(agent).sample() for agent in env.agents}
    _, rewards, terminations, _, infos = env.step(actions)
    assert rewards == {"agent_0": 1.0, "agent_1": 2.0}
    assert terminations == {"agent_0": True, "agent_1": False}
    assert (env.agents, list(infos)) == (["agent_1"], ["agent_0", "agent_1"])
    assert env.unwrapped.taken == [{0: actions["agent_0"], 1: actions["agent_1"]}]


@pytest.mark.parametrize(
    ("name", "around"),
    [
        *((name, PADDING) for name in ENVIRONMENTS if name != "connect_four"),
        *((name, (*PADDING, wrappers.agent_indicator)) for name in ("simple_tag", "simple_tag in turns", "rps")),
        ("cartpole_team", (wrappers.agent_indicator,)),
        ("cartpole_team", (wrappers.black_death,)),
        ("cartpole_team", (wrappers.named_agents, wrappers.widen_bounds, wrappers.clip_observations)),
        ("simple_tag in turns", (wrappers.flatten_actions, wrappers.clip_observations)),
        ("multiwalker", (wrappers.black_death, wrappers.agent_indicator)),
        ("connect_four", (wrappers.mask_in_info,)),
        ("connect_four", (wrappers.mask_in_info, wrappers.agent_indicator, *PADDING)),
        ("cooperative_pong", PIXELS),
        ("cooperative_pong in turns", PIXELS),
    ],
)
@pytest.mark.filterwarnings("ignore:Observation numpy array is all zeros")
def test_what_is_wrapped_passes_pettingzoos_own_test(name, around, capsys):
    env = made(name, *around)
    (api_test if isinstance(env, AECEnv) else parallel_api_test)(env, num_cycles=20)


def test_wrappers_from_a_configuration_can_be_sent_to_other_processes():
    around = [
        Wrapper("indicator", wrappers.agent_indicator),
        STACK,
        Wrapper("skip", supersuit.frame_skip_v0, {"num_frames": 2}),
    ]
    target, arguments = ENVIRONMENTS["simple_spread"]
    there = make_environment(target, arguments, pickle.loads(pickle.dumps(around)))  # noqa: S301  a worker's way
    assert there.observation_space("agent_0").shape == ((18 + 3) * 4,)


def padded_with_a_short_mask(env):
    env.action_space = lambda agent: spaces.Discrete(7 + (agent == "player_1"))
    return wrappers.pad_actions(env)


def padded_from_one(env):
    env.action_space = lambda _: spaces.Discrete(3, start=1)
    return wrappers.pad_actions(env)


@pytest.mark.parametrize(
    ("name", "around", "problem"),
    [
        (
            "connect_four",
            STACK,
            r"wrapper stack of environment .*connect_four_v3.env raised .*wrappers=\[mask_in_info,",
        ),
        ("connect_four", wrappers.agent_indicator, r"wrapper agent_indicator of .*wrappers=\[mask_in_info,"),
        ("connect_four", wrappers.pad_observations, r"agents see .*wrappers=\[mask_in_info,"),
        (
            "connect_four",
            padded_with_a_short_mask,
            r"'player_0' sees Dict.*, with a mask of its own actions only; .*wrappers=\[mask_in_info,",
        ),
        ("connect_four", wrappers.black_death, "name its parallel_env$"),
        ("rps", wrappers.black_death, r"'player_0' sees Discrete\(4\), not a Box$"),
        ("cartpole_team", wrappers.gray, "not pixels$"),
        ("connect_four", wrappers.named_agents, "name its parallel_env$"),
        ("rps", wrappers.clip_observations, "'player_0' sees Discrete\\(4\\), without a Box, which alone has bounds$"),
        ("cartpole_team", wrappers.random_opening, "it takes an AEC environment, in which agents take turns"),
        ("connect_four", lambda env: wrappers.random_opening(env, 0), "moves is at least 1, not 0$"),
        ("cartpole_team", wrappers.mask_in_info, r"no agent has an action_mask .*; 'cart_0' sees Box\(4,\)$"),
        ("simple_tag", wrappers.agent_indicator, "put padding before it$"),
        ("rps", padded_from_one, r"agents do 'player_0' Discrete\(3, start=1\), .*: values of Discrete .* from 0$"),
        (
            "cartpole_team",
            supersuit.normalize_obs_v0,
            "normalize_obs_v0 of .* raised AssertionError: .*infinite bounds",
        ),
    ],
)
def test_what_a_wrapper_does_not_take_is_said(name, around, problem):
    with pytest.raises(ConfigInvalid) as caught:
        made(name, around)
    assert re.search(problem, str(caught.value))


def test_wrappers_need_to_know_the_agents_beforehand():
    env = made("cartpole_team")
    del env.possible_agents
    with pytest.raises(ConfigInvalid, match="possible_agents"):
        wrapped(env, [wrappers.agent_indicator], "mine")
