"""Gymnasium environments with Tuple spaces as Parallel environments: everything of each agent is its own entry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

import marlflow as mf
from marlflow.env import make_environment, open_adapter
from marlflow.env.simulators.gymnasium_team import GymnasiumTeam, _first_action, parallel_env
from marlflow.env.wrappers.shipped import last_action
from tests.env.tuple_game import ID, TupleGame

AGENTS = ["agent_0", "agent_1", "agent_2"]


def actions(env: GymnasiumTeam) -> dict[str, Any]:
    first = {"agent_0": 2, "agent_1": 3, "agent_2": np.array([1.5, 1.5], np.float32)}
    return {agent: first[agent] for agent in env.agents}


def test_each_agent_has_its_entries_and_its_own_end() -> None:
    env, raw = parallel_env(ID), TupleGame()
    observations, infos = env.reset(seed=3)
    expected, info = raw.reset(seed=3)
    ends = []
    while env.agents:
        living = list(env.agents)
        for agent in living:
            number = AGENTS.index(agent)
            np.testing.assert_array_equal(observations[agent], expected[number])
            assert env.observation_space(agent) == raw.observation_space[number]  # type: ignore[index]
            assert env.action_space(agent) == raw.action_space[number]  # type: ignore[index]
            assert infos[agent] == {"t": info["t"], "names": "abc"[number]}
        observations, rewards, terminated, truncated, infos = env.step(actions(env))
        expected, paid, _, _, info = raw.step((2, 3, np.array([1.5, 1.5], np.float32)))
        assert observations.keys() == rewards.keys() == terminated.keys() == truncated.keys() == infos.keys()
        assert rewards == {agent: paid[AGENTS.index(agent)] for agent in living}
        ends.append((terminated, truncated))
    assert len(ends) == 5
    no = dict.fromkeys(AGENTS, False)
    assert ends[:2] == [(no, no), ({**no, "agent_0": True}, no)]
    assert ends[4] == ({"agent_1": False, "agent_2": False}, {"agent_1": True, "agent_2": True})
    # Who has left acts by the first action of its space.
    assert [taken[0] for taken in env._env.unwrapped.taken] == [2, 2, 1, 1, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("paid", "factor"), [("list", (1, 2, 3)), ("array", (1, 2, 3)), ("one", (1, 1, 1))])
def test_rewards_are_by_agent_or_common_and_one_flag_is_of_all(paid: str, factor: tuple[int, ...]) -> None:
    env = parallel_env(ID, {"own_ends": False, "paid": paid})
    env.reset(seed=0)
    for t in range(1, 5):
        _, rewards, terminated, truncated, _ = env.step(actions(env))
        assert list(rewards.values()) == [t * each for each in factor]
        assert {type(reward) for reward in rewards.values()} == {float}
        assert set(terminated.values()) == {t == 4}
        assert not any(truncated.values())
    assert env.agents == []


@pytest.mark.parametrize(("max_cycles", "terminated"), [(3, False), (4, True), (9, True)])
def test_a_limit_truncates_who_has_not_terminated(max_cycles: int, terminated: bool) -> None:
    env = parallel_env(ID, {"own_ends": False}, max_cycles)
    for _ in range(2):
        env.reset(seed=0)
        for _ in range(min(max_cycles, 4)):
            assert env.agents == AGENTS
            _, _, ends, cuts, _ = env.step(actions(env))
        assert env.agents == []
        assert set(ends.values()) == {terminated}
        assert set(cuts.values()) == {not terminated}


def test_the_first_action_of_an_agent_that_has_ended_may_be_nested() -> None:
    space = gym.spaces.Dict(
        move=gym.spaces.Discrete(3, start=2),
        both=gym.spaces.Tuple([gym.spaces.Box(1.0, 2.0, (2,)), gym.spaces.Discrete(2)]),
    )
    assert space.contains(_first_action(space))


def test_a_time_limit_of_gymnasium_is_a_truncation_and_frames_are_its_own() -> None:
    inner = gym.wrappers.TimeLimit(TupleGame(own_ends=False, render_mode="ansi"), 2)
    env = GymnasiumTeam(inner)
    env.reset(seed=0)
    env.step(actions(env))
    *_, terminated, truncated, _ = env.step(actions(env))
    assert (set(terminated.values()), set(truncated.values())) == ({False}, {True})
    assert (env.render(), env.render_mode, env.metadata["render_modes"]) == ("step 2", "ansi", ["ansi"])
    env.close()


@pytest.mark.parametrize("arguments", [{}, {"own_ends": False}])
def test_it_passes_pettingzoos_own_tests(arguments: dict[str, Any]) -> None:
    parallel_api_test(parallel_env(ID, arguments), num_cycles=30)
    parallel_seed_test(lambda: parallel_env(ID, arguments), num_cycles=30)


def test_masks_of_each_agent_reach_the_one_that_acts() -> None:
    adapter = open_adapter(parallel_env(ID, {"masked": True}))
    assert [adapter.masked(agent) for agent in AGENTS] == [True] * 3
    result = adapter.reset(0)
    for t in range(2):
        legal = (np.arange(4) % 2 == t).tolist()
        assert [mask.tolist() for mask in result.masks if mask is not None] == [legal, legal, [True] * 5]
        result = adapter.act([1 + t, t, np.array([0, 0])])


@pytest.mark.parametrize(
    ("id", "arguments", "max_cycles", "problem"),
    [
        (ID.replace("TupleGame", "NoTuple"), {}, None, r"NoTuple-v0 has the observation space Box.*, not a Tuple with"),
        (ID.replace("TupleGame", "Unequal"), {}, None, "Unequal-v0 has 3 observation spaces, but 2 action spaces"),
        (
            ID,
            {"sise": 3},
            None,
            "cannot make 'tests.env.tuple_game:TupleGame-v0': .*unexpected keyword argument 'sise'",
        ),
        ("tests.env.tuple_game:Tupel-v0", {}, None, "cannot make 'tests.env.tuple_game:Tupel-v0': "),
        ("no_such_module:Game-v0", {}, None, "cannot make 'no_such_module:Game-v0': No module named"),
        (ID, {}, 0, "max_cycles must be a whole number from 1, or null for no limit, not 0"),
    ],
)
def test_what_it_cannot_make_is_said(id: str, arguments: dict[str, Any], max_cycles: int | None, problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid, match=problem) as caught:
        parallel_env(id, arguments, max_cycles)
    assert len(caught.value.problems) == 1


def test_observations_of_another_number_of_agents_are_an_error_of_the_environment() -> None:
    env = parallel_env(ID)
    env.reset(seed=0)
    env._env.unwrapped._seen = lambda: (np.zeros(2, np.float32),)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="expected observations of 3 agents, got 1"):
        env.step(actions(env))


def test_a_run_plays_it_with_a_policy_for_each_space(tmp_path: Path) -> None:
    """The example of docs/environments.md; the common state is made by joint_state."""
    policies = {
        f"p{number}": mf.Policy(mf.PPO(batch_agent_steps=40, epochs=1, minibatch_agent_steps=20), mf.MLP((4,)))
        for number in range(3)
    }
    experiment = mf.Experiment(
        env=mf.Env("gymnasium_team", {"id": ID}, num_envs=4),
        policies=policies,
        mapping=[mf.Rule(f"agent_{number}", f"p{number}") for number in range(3)],
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=40),
        runtime=mf.RuntimeConfig("inline"),
        stop=mf.Stop(80),
        evaluation=mf.Evaluation(episodes=0),
        log=mf.Log(every_env_steps=80, console="none", tensorboard=False),
    )
    metrics = mf.train(experiment, tmp_path).metrics
    # Paid (number + 1) * step for 2 and for 5 steps.
    assert [metrics["agents"][agent]["return_mean"] for agent in AGENTS] == [3.0, 30.0, 45.0]


@pytest.mark.parametrize(("module", "name", "cycles"), [("lbforaging", "lbf", 50), ("rware", "rware", 500)])
def test_shipped_environments_end_by_truncation(module: str, name: str, cycles: int) -> None:
    pytest.importorskip(module)
    env = make_environment(f"marlflow.env.simulators.{name}.parallel_env", {})
    parallel_api_test(env, num_cycles=20)
    env.reset(seed=0)
    for _ in range(cycles):
        assert env.agents == AGENTS[:2]
        _, _, terminated, truncated, _ = env.step(dict.fromkeys(env.agents, 0))  # type: ignore[misc]
    assert (set(terminated.values()), set(truncated.values()), env.agents) == ({False}, {True}, [])


@pytest.mark.parametrize(("module", "name", "size"), [("lbforaging", "lbf", (8, 8)), ("rware", "rware", (11, 10))])
def test_grids_are_drawn_without_a_window(module: str, name: str, size: tuple[int, int]) -> None:
    pytest.importorskip(module)
    env = make_environment(f"marlflow.env.simulators.{name}.parallel_env", {"render_mode": "rgb_array"})
    pictures = []
    for seed in (0, 1, 0):
        env.reset(seed=seed)
        pictures.append(env.render())
    assert (pictures[0].dtype, pictures[0].shape) == (np.uint8, (32 * size[0] + 1, 32 * size[1] + 1, 3))
    assert [np.array_equal(pictures[0], other) for other in pictures] == [True, False, True]


@pytest.mark.parametrize(("module", "name"), [("lbforaging", "lbf"), ("rware", "rware")])
def test_the_state_of_a_grid_is_that_of_its_compiled_form(module: str, name: str) -> None:
    pytest.importorskip(module)
    functional = pytest.importorskip(f"marlflow.env.functional.{name}")
    env = make_environment(f"marlflow.env.simulators.{name}.parallel_env", {"max_cycles": 3})
    # A wrapper widens what agents see, and not the state.
    for compiled in (functional.batched_env(2), functional.batched_env(2).with_wrappers([last_action])):
        compiled.reset(np.arange(2), np.arange(2))
        assert env.state_space == compiled.state_space
        assert compiled.state().shape == (2, *env.state_space.shape)
    seen, _ = env.reset(seed=0)
    for _ in range(3):
        state = env.state()  # type: ignore[attr-defined]
        np.testing.assert_array_equal(state, np.concatenate([seen[agent] for agent in AGENTS[:2]]))
        assert env.state_space.contains(state)
        seen, *_ = env.step(dict.fromkeys(env.agents, 0))
    # Values of the last step are bootstrapped from it.
    np.testing.assert_array_equal(env.state(), np.concatenate([seen[agent] for agent in AGENTS[:2]]))  # type: ignore[attr-defined]
