"""The joint state is every declared agent's observation and presence, held against loops over scripted episodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import ConfigInvalid
from marlflow.env import open_adapter
from marlflow.env.wrappers.shipped import black_death, joint_state
from tests.sampling.built_environments import BuiltAEC, BuiltParallel
from tests.sampling.scripts import Script, scripts

SEEDS = (1, 2, 3)


def numbers(space: spaces.Space, value: Any) -> list[float]:
    """One observation by gymnasium's own flattening, without its mask, bytes as fractions of 255."""
    if isinstance(space, spaces.Dict):
        return [x for key, inner in space.items() if key != "action_mask" for x in numbers(inner, value[key])]
    if isinstance(space, spaces.Tuple):
        return [x for inner, part in zip(space, value, strict=True) for x in numbers(inner, part)]
    pixels = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return [float(np.float32(x)) / (255 if pixels else 1) for x in np.ravel(spaces.flatten(space, value))]


def width(space: spaces.Space) -> int:
    whole = spaces.flatdim(space)
    has_mask = isinstance(space, spaces.Dict) and "action_mask" in space.spaces
    return whole - spaces.flatdim(space["action_mask"]) if has_mask else whole


def joined(env: Any, present: dict[str, list[float]]) -> list[float]:
    """The whole state, of the numbers of those that are present."""
    state: list[float] = []
    for agent in env.possible_agents:
        size = width(env.observation_space(agent))
        state += [*present[agent], 1.0] if agent in present else [0.0] * (size + 1)
    return state


def declared(script: Script) -> Script:
    return replace(script, habits=script.habits - {"undeclared"})


def actions(adapter: Any, env: Any, result: Any) -> list[Any]:
    taken = []
    for index, slot in enumerate(result.deciding):
        space = env.action_space(adapter.agents[slot])
        mask = result.masks[index] if result.masks else None
        taken.append(space.start + int(np.argmax(mask)) if mask is not None else space.sample())
    return taken


@given(scripts(), st.sampled_from(SEEDS))
def test_of_a_parallel_environment_it_is_what_the_adapter_says_of_each_agent(script: Script, seed: int) -> None:
    env = BuiltParallel(declared(script))
    adapter = open_adapter(joint_state(env))
    for episode in (seed, seed + 7):
        result = adapter.reset(episode)
        last: dict[int, list[float]] = {}
        while True:
            now = {
                slot: numbers(env.observation_space(adapter.agents[slot]), seen_whole(env, adapter, slot, observation))
                for slot, observation in zip(result.deciding, result.observations, strict=True)
            }
            for end in result.ended:
                if not end.terminated:
                    space = env.observation_space(adapter.agents[end.slot])
                    final = end.observation
                    known = None if final is None else numbers(space, seen_whole(env, adapter, end.slot, final))
                    now[end.slot] = last[end.slot] if known is None else known
            expected = joined(env, {adapter.agents[slot]: own for slot, own in now.items()})
            np.testing.assert_allclose(adapter.state(), expected, rtol=1e-6, atol=1e-7)
            if result.over:
                break
            last = now
            result = adapter.act(actions(adapter, env, result))


def seen_whole(env: Any, adapter: Any, slot: int, observation: Any) -> Any:
    """The observation as its space, which may have a mask, has it."""
    space = env.observation_space(adapter.agents[slot])
    alone = isinstance(space, spaces.Dict) and set(space) == {"observation", "action_mask"}
    return {"observation": observation} if alone else observation


class JournalAEC(BuiltAEC):
    """Writes down after each turn what every agent that is there, or was truncated in it, observes."""

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self.present = self.seen_by([agent for agent in self.agents if not self.is_dead(agent)])

    def step(self, action):
        before = [agent for agent in self.agents if not self.is_dead(agent)]
        was_dead = self.is_dead(self.agent_selection)
        super().step(action)
        if was_dead:
            return
        last = self.present
        there = [agent for agent in self.agents if not self.is_dead(agent)]
        there += [agent for agent in before if agent in self.agents and self.is_truncated(agent)]
        gone = [agent for agent in before if agent not in self.agents]
        self.present = {**self.seen_by(there), **{agent: last[agent] for agent in gone}}

    def is_truncated(self, agent):
        return self.truncations[agent] and not self.terminations[agent]

    def seen_by(self, agents):
        return {agent: numbers(self.observation_space(agent), self.see(agent, self.is_dead(agent))) for agent in agents}


@given(scripts(), st.sampled_from(SEEDS))
def test_of_an_aec_environment_it_is_what_all_observe_after_a_turn(script: Script, seed: int) -> None:
    # What a dead step lets an environment show differs from what the turn before it did.
    env = JournalAEC(declared(script))
    adapter = open_adapter(joint_state(env))
    result = adapter.reset(seed)
    while True:
        np.testing.assert_allclose(adapter.state(), joined(env, env.present), rtol=1e-6, atol=1e-7)
        if result.over:
            break
        result = adapter.act(actions(adapter, env, result))


def test_an_environment_that_declares_no_agents_is_refused() -> None:
    with pytest.raises(ConfigInvalid, match="possible_agents"):
        joint_state(Undeclared())


class Undeclared(BuiltParallel):
    """Names no agents beforehand."""

    def __init__(self) -> None:
        self.metadata = {"name": "undeclared"}


def test_it_goes_around_other_wrappers() -> None:
    simple_spread = pytest.importorskip("mpe2.simple_spread_v3")
    adapter = open_adapter(joint_state(black_death(simple_spread.parallel_env(N=2, max_cycles=2))))
    result = adapter.reset(0)
    expected = [x for seen in result.observations for x in (*seen, 1.0)]
    np.testing.assert_allclose(adapter.state(), expected, rtol=1e-6)
    assert adapter.state_space() == spaces.Box(-np.inf, np.inf, (len(expected),), np.float32)
