"""Managers choose when they are due, and what they and their workers get is what the environment issued."""

from __future__ import annotations

import itertools
from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo.classic import rps_v2
from pettingzoo.test import api_test

import marlflow as mf
from marlflow.env import open_adapter
from marlflow.env.games import cartpole_team, cliff, relay, sacrifice, sign
from marlflow.env.wrappers.managed import managed
from marlflow.env.wrappers.shield import shield
from tests.env.test_conservation import Played, assert_exact


def turns(env: Any, seed: int = 0, choose: Any = None) -> list[tuple[str, Any]]:
    """One episode of random play: who acted, and what each saw."""
    env.reset(seed=seed)
    random, log = np.random.default_rng(seed), []
    for agent in env.agent_iter():
        seen, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            log.append((f"end of {agent}", (terminated, truncated)))
            env.step(None)
            continue
        space = env.action_space(agent)
        action = choose(agent, seen) if choose else int(space.start + random.integers(space.n))
        log.append((agent, seen))
        env.step(action)
    return log


@pytest.mark.parametrize("every", [1, 3, 8, 50])
def test_managers_come_first_at_reset_and_every_so_many_env_steps(every: int) -> None:
    """Held against the schedule: the worker stands still in time, the manager is asked at 0, k, 2k, ..."""
    log = turns(managed(sign.parallel_env(), 2, every=every), choose=lambda agent, _: agent != "walker_0")
    steps = [name for name, _ in log if not name.startswith("end")]
    expected: list[str] = []
    for t in range(8):
        expected += ["manager_walker_0"] * (t % every == 0) + ["walker_0"]
    assert steps == expected
    left = [float(seen["left"][0]) for name, seen in log if name == "walker_0"]
    assert left == pytest.approx([1 - t % every / every for t in range(8)])
    assert [seen["option"] for name, seen in log if name == "walker_0"] == [1] * 8
    assert {name: value for name, value in log if name.startswith("end")} == {
        "end of walker_0": (True, False),
        "end of manager_walker_0": (True, False),
    }


def test_an_option_may_end_early() -> None:
    def is_at_two(seen: Any, option: Any) -> bool:
        return bool(round(float(seen[0]) * sign.ENDS) % 2 == 0)

    log = turns(managed(sign.parallel_env(), 2, every=5, terminate=is_at_two), choose=lambda agent, _: 1)
    asked = [number for number, (name, _) in enumerate(log) if name == "manager_walker_0"]
    assert asked == [0, 3, 6, 9], "at positions 0, 2, 4 and 6"


def test_one_manager_for_all_sees_all_of_its_workers() -> None:
    env = managed(relay.parallel_env(), 3, every=4, manager="boss")
    assert env.possible_agents == ["boss", "member_0", "member_1", "member_2"]
    joined = 0
    for seed in range(8):
        log = turns(env, seed)
        first = next(seen for name, seen in log if name == "boss")
        assert first.shape == (3 * 13,)
        assert first[[12, 25, 38]].tolist() == [1, 0, 0], "who waits is not there yet"
        options: dict[str, set[int]] = defaultdict(set)
        now = None
        for name, seen in log:
            now = None if name == "boss" else now
            if not name.startswith("end") and name != "boss":
                assert now is None or seen["option"] == now, "all workers have the option of their manager"
                now = seen["option"]
                options[name].add(int(now))
        joined += len(options) - 1
        names = [name for name, _ in log]
        assert max(number for number, name in enumerate(names) if name == "boss") < names.index("end of boss")
        assert names.count("end of boss") == 1
    assert joined > 3, "some joined later"


def test_a_manager_is_truncated_if_one_of_its_workers_was() -> None:
    """One walker reaches its goal, the other one runs out of time."""

    def choose(agent: str, seen: Any) -> int:
        if not agent.startswith("walker"):
            return 0
        row, column = divmod(int(seen["observation"]), cliff.COLUMNS)
        if agent == "walker_1":
            return 0
        return 0 if row == 3 and column == 0 else 1 if column < 11 else 2

    parallel = cliff.parallel_env(max_cycles=20)
    ends = dict(entry for entry in turns(managed(parallel, 2), choose=choose) if entry[0].startswith("end"))
    assert ends == {
        "end of walker_0": (True, False),
        "end of walker_1": (False, True),
        "end of manager_walker_0": (True, False),
        "end of manager_walker_1": (False, True),
    }
    shared = turns(managed(parallel, 2, manager="boss"), choose=choose)
    assert dict(shared)["end of boss"] == (False, True)


@pytest.mark.parametrize("every", [1, 3, 7])
@pytest.mark.parametrize("shared", [False, True])
def test_rewards_are_those_of_the_environment(every: int, shared: bool) -> None:
    """Held against the environment by itself, with the same actions."""

    def intrinsic(seen: Any, option: Any, following: Any) -> float:
        return float(option) + 0.25 * (int(following) - int(seen))

    name = "boss" if shared else "manager_{agent}"
    env = managed(
        cliff.parallel_env(max_cycles=12), 4, every=every, manager=name, worker_share=0.5, intrinsic=intrinsic
    )
    bare = cliff.parallel_env(max_cycles=12)
    random = np.random.default_rng(0)
    env.reset(seed=0)
    seen, _ = bare.reset(seed=0)
    got: dict[str, float] = defaultdict(float)
    expected: dict[str, float] = defaultdict(float)
    option: dict[str, int] = {}
    while env.agents:
        agent = env.agent_selection
        if env.terminations[agent] or env.truncations[agent]:
            env.step(None)
            continue
        action = int(random.integers(4))
        env.step(action)
        if agent.startswith("walker"):
            option[f"did {agent}"] = action
        else:
            for worker in bare.agents:
                if shared or agent.endswith(worker):
                    option[worker] = action
        for each, reward in env.rewards.items():
            got[each] += reward
        if all(f"did {worker}" in option for worker in bare.agents):
            before = seen
            seen, rewards, *_ = bare.step({worker: option.pop(f"did {worker}") for worker in bare.agents})
            for worker, reward in rewards.items():
                expected[worker] += 0.5 * reward + intrinsic(before[worker], option[worker], seen[worker])
                expected[name.replace("{agent}", worker)] += reward
    assert not bare.agents
    assert got == pytest.approx(expected)


def test_relative_goals_move_along() -> None:
    """The goal of HIRO: where it lies does not change while the worker walks."""
    goals = []

    def moved(seen: Any, option: Any, following: Any) -> Any:
        return seen[:1] + option - following[:1]

    space = spaces.Box(-2.0, 2.0, (1,), np.float32)
    env = managed(sign.parallel_env(), space, every=20, moved=moved)
    start = np.array([0.5], np.float32)
    for name, seen in turns(env, choose=lambda agent, _: start if agent.startswith("manager") else 1):
        if name == "walker_0":
            goals.append(float(seen["observation"][0] + seen["option"][0]))
    assert len(goals) == 8
    assert goals == pytest.approx([0.5] * 8)


def test_a_manager_may_see_the_state() -> None:
    env = managed(sign.parallel_env(), 2, every=20, manager_sees="state")
    assert env.observation_space("manager_walker_0") == env.env.state_space
    signs = [turns(env, seed)[0][1][0] for seed in range(20)]
    assert set(signs) == {-1.0, 1.0}


def test_masks_of_workers_pass_through_in_either_place() -> None:
    wrapped = managed(shield(cliff.parallel_env(), cliff.stays_up), 2)
    adapter = open_adapter(wrapped)
    assert [adapter.masked(agent) for agent in adapter.agents] == [True] * 4, "as far as infos say"
    result = adapter.reset(0)
    for _ in range(40):
        agent, mask = adapter.agents[result.deciding[0]], result.masks[0]
        if agent.startswith("walker"):
            cell = int(result.observations[0]["observation"])
            assert mask.astype(bool).tolist() == cliff.stays_up(cell, agent).tolist()
        else:
            assert mask is None or all(mask)
        result = adapter.act([0 if mask is None else int(np.flatnonzero(mask)[-1])])


GAMES = {
    "deaths": lambda **s: managed(cartpole_team.parallel_env(max_cycles=30), 3, **s),
    "joins": lambda **s: managed(relay.parallel_env(), 3, **s),
    "one_ends_first": lambda **s: managed(sacrifice.parallel_env(), 2, **s),
    "some_are_not_managed": lambda **s: managed(cliff.parallel_env(max_cycles=25), 2, agents="walker_1", **s),
}


# Options of 50 env steps are longer than each collect, so managers' rows are carried over several of them.
@pytest.mark.parametrize(("every", "manager"), [(1, "manager_{agent}"), (3, "boss"), (50, "manager_{agent}")])
@pytest.mark.parametrize("game", GAMES)
def test_each_reward_is_in_one_row_also_over_fragments(game: str, every: int, manager: str) -> None:
    played = Played(collects=(30, 1, 45, 7, 60, 25, 90), episodes=2)
    assert_exact(lambda: GAMES[game](every=every, manager=manager), played)


@pytest.mark.parametrize("manager", ["manager_{agent}", "boss"])
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_it_passes_pettingzoos_test(manager: str) -> None:
    api_test(managed(cartpole_team.parallel_env(), 3, every=3, manager=manager), num_cycles=100)


def test_check_env_finds_one_whose_managers_act_at_every_env_step_ready() -> None:
    wrapper = partial(managed, options=3, every=3, manager_acts="every_env_step")
    trial = mf.check_environment(mf.Env(cartpole_team.parallel_env, {"max_cycles": 12}, (wrapper,), num_envs=1), 3)
    assert trial.ready, str(trial)
    assert any("4 + 4 / 1 = 8 of them on average" in note for note in trial.notes)


@pytest.mark.parametrize("every", [1, 3, 50])
@pytest.mark.parametrize("game", GAMES)
def test_managers_that_act_at_every_env_step_are_exact_too(game: str, every: int) -> None:
    played = Played(collects=(30, 1, 45, 7, 60, 25, 90), episodes=2)
    assert_exact(lambda: GAMES[game](every=every, manager_acts="every_env_step"), played)


def is_third(seen: Any, option: Any) -> bool:
    return option == 1 and int(seen) % 3 == 0


@pytest.mark.parametrize("manager", ["manager_{agent}", "boss"])
@pytest.mark.parametrize("terminate", [None, is_third])
def test_rows_per_env_step_add_up_to_those_per_option(manager: str, terminate: Any) -> None:
    """The same choices, told in both forms: rewards of each option's env steps are the reward of its one row."""

    def played(acts: Any) -> tuple[dict[str, list[list[float]]], dict[str, list[Any]]]:
        env = managed(
            cliff.parallel_env(max_cycles=25), 3, every=4, manager=manager, terminate=terminate, manager_acts=acts
        )
        chooses = {agent: np.random.default_rng([number]) for number, agent in enumerate(env.possible_agents)}
        env.reset(seed=0)
        options: dict[str, list[list[float]]] = defaultdict(list)
        seen: dict[str, list[Any]] = defaultdict(list)
        ends = {}
        for agent in env.agent_iter():
            shown, reward, terminated, truncated, _ = env.last()
            if options[agent]:
                options[agent][-1].append(reward)
            if terminated or truncated:
                ends[agent] = (terminated, truncated, [str(shown)])
                env.step(None)
                continue
            is_manager = not agent.startswith("walker")
            going_on = False
            if is_manager and acts == "every_env_step":
                mask = env.infos[agent]["action_mask"]
                going_on = bool(mask[-1])
                # Nothing but going on, or anything but that.
                assert mask.tolist() == [1 - going_on] * 3 + [going_on]
                assert (shown["left"][0] > 0) == going_on
                assert going_on or shown["option"] == 0
                shown = shown["observation"]
            if going_on:
                env.step(3)
                continue
            options[agent].append([])
            seen[agent].append(str(shown))
            env.step(int(chooses[agent].integers(3 if is_manager else 4)))
        workers = {agent: end for agent, end in ends.items() if agent.startswith("walker")}
        return options, {**seen, "ends": [workers, {agent: end[:2] for agent, end in ends.items()}]}

    (per_option, seen), (per_step, also_seen) = played("when_due"), played("every_env_step")
    assert seen == also_seen
    managers = [agent for agent in per_option if not agent.startswith("walker")]
    for agent in per_option:
        assert [sum(rewards) for rewards in per_step[agent]] == [sum(rewards) for rewards in per_option[agent]]
        assert {len(rewards) for rewards in per_option[agent]} == {1}
    # The last option may be cut by the end.
    lengths = [len(rewards) for agent in managers for rewards in per_step[agent][:-1]]
    assert max(lengths) == 4
    assert (min(lengths) < 4) == (terminate is not None)


def test_an_action_that_the_mask_excludes_is_an_error() -> None:
    env = managed(sign.parallel_env(), 2, every=4, manager_acts="every_env_step")
    env.reset(seed=0)
    with pytest.raises(ValueError, match="'manager_walker_0' chose 2, which its action mask excludes"):
        env.step(2)
    env.reset(seed=0)
    env.step(1)
    env.step(0)
    with pytest.raises(ValueError, match="chose 0, which its action mask excludes"):
        env.step(0)


def test_what_a_truncated_worker_sees_last_has_what_is_left_of_its_option() -> None:
    """Its value is bootstrapped from there, so it must be what it would have decided on."""
    for max_cycles in (5, 6, 7):
        log = dict(turns_with_ends(managed(cliff.parallel_env(max_cycles=max_cycles), 2, every=8)))
        assert log["walker_0"]["left"][0] == pytest.approx(1 - max_cycles / 8)


def turns_with_ends(env: Any) -> list[tuple[str, Any]]:
    """What each agent sees at its end, if nobody moves away."""
    env.reset(seed=0)
    log = []
    for agent in env.agent_iter():
        seen, _, terminated, truncated, _ = env.last()
        if terminated or truncated:
            log.append((agent, seen))
            env.step(None)
        else:
            env.step(0)
    return log


def test_the_same_seed_plays_the_same_episode() -> None:
    env = managed(relay.parallel_env(), 3, every=2)
    one, other = (str(turns(env, 5)) for _ in range(2))
    assert one == other


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"options": 0}, "options must be a number of at least 1, or a Discrete, MultiDiscrete or Box, not 0"),
        ({"options": spaces.Text(3)}, "options must be"),
        ({"every": 0}, "every must be at least 1 env step, not 0"),
        ({"worker_share": float("nan")}, "worker_share must be a finite number"),
        ({"worker_share": 0.0}, "worker_share=0 without intrinsic leaves workers without rewards"),
        ({"manager_sees": "all"}, "manager_sees must be obs or state, not 'all'"),
        ({"manager_sees": "state"}, "the environment has no state_space; put wrappers=joint_state before it"),
        ({"manager": "walker_0"}, "the environment has an agent 'walker_0' already"),
        ({"agents": "fox_*"}, "matches none of walker_0, walker_1"),
        ({"manager_acts": "always"}, "manager_acts must be when_due or every_env_step, not 'always'"),
        (
            {"manager_acts": "every_env_step", "options": spaces.Box(0.0, 1.0, (2,))},
            "to continue is one more number, and options are Box(0.0, 1.0, (2,), float32); set options to a number",
        ),
        ({"manager_acts": "every_env_step", "moved": lambda *_: 0}, "leave moved out, or set when_due"),
        ({"intrinsic": lambda *_: "much"}, "intrinsic returned 'much'; it must return a finite number"),
        ({"terminate": lambda *_: 1}, "terminate returned 1; it must return a bool"),
        ({"moved": lambda *_: 7}, "moved returned 7, which is not in Discrete(2)"),
    ],
)
def test_what_does_not_fit_is_refused_before_a_run(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        managed(cliff.parallel_env(), **{"options": 2, **settings})
    assert problem in str(caught.value)


def test_it_needs_a_parallel_environment() -> None:
    with pytest.raises(mf.ConfigInvalid, match="name its parallel_env"):
        managed(rps_v2.env(), 2)


def test_numbers_of_turns_are_those_of_the_two_time_scales() -> None:
    """An AEC env step is a turn: n workers and 1/k managers each make n (1 + 1/k) of them per wrapped step."""
    env = managed(cliff.parallel_env(max_cycles=24), 2, every=4)
    log = [name for name, _ in turns(env, choose=lambda agent, _: 0)]
    counts = {name: len(list(group)) for name, group in itertools.groupby(sorted(log))}
    assert counts["walker_0"] == counts["walker_1"] == 24
    assert counts["manager_walker_0"] == counts["manager_walker_1"] == 6
