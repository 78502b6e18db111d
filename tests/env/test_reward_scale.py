"""Rewards are divided by the deviation of returns in random play, held against loops over the environment itself."""

from __future__ import annotations

import copy
import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.test import api_test, parallel_api_test
from pettingzoo.utils.conversions import parallel_to_aec

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.check_env.reproduce import difference
from marlflow.env import make_environment
from marlflow.env.simulators.gymnasium_team import GymnasiumTeam
from marlflow.env.wrappers.reward_scale import measured_scales
from marlflow.env.wrappers.shipped import reward_scale
from marlflow.runs.saved_runs import newest
from tests.env.tuple_game import LENGTHS, TupleGame
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run, without_times

AGENTS = ["agent_0", "agent_1", "agent_2"]


def game() -> GymnasiumTeam:
    """Agent i is paid (i + 1) * t in its t-th step, and plays LENGTHS[i] steps."""
    return GymnasiumTeam(TupleGame())


def returns_of(agent: int, discount: float, env_steps: int) -> list[float]:
    """Those of the game, whatever is played, one step after another."""
    found, step = [], 0
    while step < env_steps:
        current = 0.0
        for t in range(1, max(LENGTHS) + 1):
            if step == env_steps:
                break
            step += 1
            if t <= LENGTHS[agent]:
                current = discount * current + (agent + 1) * t
                found.append(current)
    return found


@pytest.mark.parametrize("discount", [0.0, 0.9, 1.0])
@pytest.mark.parametrize("env_steps", [5, 13, 40])
def test_the_scale_is_the_deviation_of_returns(discount: float, env_steps: int) -> None:
    own = [returns_of(agent, discount, env_steps) for agent in range(3)]
    found = measured_scales(game(), discount, env_steps, "agent")
    assert found == pytest.approx({agent: float(np.std(each)) for agent, each in zip(AGENTS, own, strict=True)})
    together = float(np.std(np.concatenate(own)))
    for by in ("group", "all"):
        assert measured_scales(game(), discount, env_steps, by) == pytest.approx(dict.fromkeys(AGENTS, together))


def test_in_turns_the_scale_is_the_same() -> None:
    """A decision's reward comes on others' turns, and on the agent's dead step."""
    in_turns = parallel_to_aec(game())  # two steps of three turns, then three of two
    expected = measured_scales(game(), 0.9, 10, "agent")
    assert measured_scales(in_turns, 0.9, 2 * 12, "agent") == pytest.approx(expected)


def test_groups_are_names_without_numbers() -> None:
    env = make_environment("mpe2.simple_tag_v3.parallel_env", {"max_cycles": 25})
    own, group = (measured_scales(env, 0.9, 500, by) for by in ("agent", "group"))
    assert len({scale for agent, scale in group.items() if agent.startswith("adversary")}) == 1
    assert len(set(group.values())) == 2
    assert own["agent_0"] == group["agent_0"]
    assert own["adversary_0"] == pytest.approx(group["adversary_0"]), "adversaries are paid together"


MADE = {
    "parallel": ("marlflow.env.games.cartpole_team.parallel_env", {"max_cycles": 20}),
    "in turns": ("marlflow.env.games.cartpole_team.env", {"max_cycles": 20}),
    "masked": ("pettingzoo.classic.connect_four_v3.env", {}),
    "masks in infos": ("marlflow.env.simulators.openspiel.env", {"game": "kuhn_poker"}),
}


@pytest.mark.parametrize("name", MADE)
def test_only_rewards_differ_and_every_instance_has_the_same_scales(name: str) -> None:
    raw, scaled, other = (make_environment(*MADE[name], around) for around in ((), (reward_scale,), (reward_scale,)))
    assert scaled.scales == other.scales  # type: ignore[union-attr]
    assert set(scaled.scales) == set(raw.possible_agents)  # type: ignore[union-attr]
    for seed in range(2):
        expected, found = (played(copy.copy(env), seed) for env in (raw, scaled))
        assert len(expected) > 3
        for (rewards, *rest), (paid, *shown) in zip(expected, found, strict=True):
            np.testing.assert_equal(shown, rest)
            assert paid == {agent: reward / scaled.scales[agent] for agent, reward in rewards.items()}  # type: ignore[union-attr]


def played(env: Any, seed: int) -> list[Any]:
    """Rewards and all else of each step of an episode, by actions that depend on the step alone."""
    random, found = np.random.default_rng(seed), []
    env.reset(seed=seed)
    if isinstance(env, ParallelEnv):
        while env.agents:
            observations, rewards, *rest = env.step({agent: int(random.integers(2)) for agent in env.agents})
            found.append((rewards, observations, *rest))
        return found
    for agent in env.agent_iter():
        observation, reward, terminated, truncated, info = env.last()
        found.append(({agent: reward}, observation, terminated, truncated, info))
        mask = observation["action_mask"] if isinstance(observation, dict) else np.ones(2)
        over = terminated or truncated
        env.step(None if over else int(random.choice(np.flatnonzero(mask))))
    return found


@pytest.mark.parametrize("name", MADE)
@pytest.mark.filterwarnings("ignore::UserWarning:pettingzoo.test")
def test_it_passes_pettingzoos_own_test_and_is_reproducible(name: str) -> None:
    env = make_environment(*MADE[name], (reward_scale,))
    (parallel_api_test if isinstance(env, ParallelEnv) else api_test)(env, num_cycles=20)
    assert difference(lambda: make_environment(*MADE[name], (reward_scale,)), seed=0) is None


def test_a_number_is_taken_as_it_is() -> None:
    env = reward_scale(game(), scale=4.0)
    env.reset(seed=0)
    first = {"agent_0": 1, "agent_1": 0, "agent_2": np.array([1.5, 1.5], np.float32)}
    assert env.step(first)[1] == {"agent_0": 0.25, "agent_1": 0.5, "agent_2": 0.75}


@pytest.mark.parametrize(
    ("arguments", "problems"),
    [
        (
            {"env_steps": 1},
            [r"the rewards of \['agent_0', 'agent_1', 'agent_2'\] do not vary in 1 env steps of random"],
        ),
        ({"discount": 1.5}, ["discount must be at least 0 and at most 1, not 1.5"]),
        (
            {"by": "policy", "env_steps": 0},
            ["env_steps must be at least 1", "by must be agent, group, all, not 'policy'"],
        ),
        ({"scale": 0.0}, ["scale must be more than 0, not 0.0"]),
    ],
)
def test_what_it_does_not_take_is_said(arguments: dict[str, Any], problems: list[str]) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        reward_scale(game(), **arguments)
    assert len(caught.value.problems) == len(problems)
    for found, expected in zip(caught.value.problems, problems, strict=True):
        assert re.match(expected, str(found))


def test_a_resumed_run_learns_the_same(tmp_path: Path) -> None:
    env = mf.Env("marlflow.env.games.cartpole_team.parallel_env", {"max_cycles": 30}, (reward_scale,), num_envs=2)
    run = small_run(env_steps=240, env=env, policies=policies(hunters=SMALL_PPO, prey=SMALL_DQN))
    whole = mf.train(run, tmp_path / "whole")
    mf.train(dataclasses.replace(run, stop=mf.Stop(env_steps=140)), tmp_path / "parts")
    parts = mf.resume(run, tmp_path / "parts")
    assert parts.metrics["faults"]["episodes_abandoned"] == 0
    assert without_times(parts.metrics) == without_times(whole.metrics)
    states = [from_bytes(newest(tmp_path / name).read("learner.prey")) for name in ("whole", "parts")]
    np.testing.assert_equal(states[1], states[0])
