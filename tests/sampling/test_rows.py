"""Rows of the vector runner equal the rows of a slow recorder with plain lists, for any environment."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, parallel_api_test

from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import episode_seed
from marlflow.env.games import cartpole_team
from tests.sampling.built_environments import BuiltAEC, BuiltParallel
from tests.sampling.row_comparison import (
    SEED,
    Collect,
    Side,
    assert_same,
    built_seats,
    built_spaces,
    collects,
    seats,
    worker_of,
)
from tests.sampling.scripts import Break, Course, Kind, Script, scripts

either = st.sampled_from([BuiltParallel, BuiltAEC])


def passes(pettingzoos_test, env):
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")  # about taste, not about the contract
        pettingzoos_test(env, num_cycles=20)


@given(scripts(lawful=True))
def test_built_aec_environments_pass_pettingzoos_own_test(script):
    passes(api_test, BuiltAEC(script))


@given(scripts(lawful=True))
def test_built_parallel_environments_pass_pettingzoos_own_test(script):
    # It looks for masks in observations only.
    kinds = tuple(replace(kind, masks="alone") if kind.masks == "info" else kind for kind in script.kinds)
    passes(parallel_api_test, BuiltParallel(replace(script, kinds=kinds)))


@given(st.data(), scripts(), collects)
def test_parallel_rows_equal_the_reference(data, script, collects):
    assert_same(lambda: BuiltParallel(script), data.draw(built_seats(script)), collects, spaces=built_spaces(script))


@given(st.data(), scripts(), collects)
def test_aec_rows_equal_the_reference(data, script, collects):
    assert_same(lambda: BuiltAEC(script), data.draw(built_seats(script)), collects, spaces=built_spaces(script))


@given(st.data(), scripts(breaks=True), collects, either, st.integers(0, 4))
def test_rows_beside_broken_episodes_equal_the_reference(data, script, collects, make, tolerated):
    seats, spaces = data.draw(built_seats(script)), built_spaces(script)
    assert_same(lambda: make(script), seats, collects, spaces=spaces, tolerated=tolerated)


def drifting(breaks):
    """One agent that plays 40 steps, in an environment that breaks."""
    return Script((Kind("vector", "three"),), (0,), (Course((True,), 40),), breaks=breaks)


def test_a_broken_episode_costs_its_undelivered_rows_and_no_others():
    script = drifting(Break("step raises", 7, 1))
    side = Side(lambda: BuiltParallel(script), seats({"built_0": "all"}, script_actions(script)), (4, 9), tolerated=2)
    assert side.collect(Collect(5))
    assert side.collect(Collect(5))
    receipt = side.receipt
    faults = sorted(receipt.faults, key=lambda fault: len(fault.where.split("env 4")))
    assert [(fault.kind, fault.rows_lost) for fault in faults] == [("env_errors", 3)] * 2
    for env_index, fault in zip((9, 4), faults, strict=True):
        seed = episode_seed(SEED, env_index, 0)
        assert fault.where == f"environment built_v0, env {env_index}, episode seed {seed}, env step 8"
        assert fault.reason == "step() raised RuntimeError: a wheel came off"
        assert "a wheel came off" in fault.user_traceback
    assert receipt.next_episodes == {4: 2, 9: 2}
    assert receipt.policies["all"].rows == 2 * 2  # what the second episodes have complete


def test_beyond_its_budget_a_broken_episode_is_the_end():
    script = drifting(Break("step raises", 4, 1))
    worker = worker_of(lambda: BuiltAEC(script), seats({"built_0": "all"}, script_actions(script)), (0,), tolerated=1)
    worker.collect(5)
    with pytest.raises(EnvironmentFailed, match=r"env step 5, .*: step\(\) raised RuntimeError: a wheel"):
        worker.collect(5)


def script_actions(script):
    return lambda agent: script.kind(agent).action_space()


def test_cartpole_team_rows_equal_the_reference():
    mapping = {"cart_0": "left", "cart_1": "left", "cart_2": "right", "cart_3": "right"}
    for make_env in (cartpole_team.parallel_env, cartpole_team.env):
        played = seats(mapping, make_env().action_space)
        assert_same(make_env, played, [Collect(ticks) for ticks in (30, 1, 64, 50)])


def test_simple_tag_rows_equal_the_reference():
    simple_tag = pytest.importorskip("mpe2.simple_tag_v3")
    mapping = {"adversary_0": "adversary", "adversary_1": "adversary", "adversary_2": "adversary", "agent_0": "agent"}
    for make_env, cuts in ((simple_tag.parallel_env, [10, 20, 5]), (simple_tag.env, [10, 71, 5, 49])):
        played = seats(mapping, make_env().action_space)
        played.policies["agent"].sees_state = played.policies["adversary"].remembers = True
        assert_same(make_env, played, [Collect(ticks) for ticks in cuts], env_indices=(0, 3))


@pytest.mark.parametrize("name", ["connect_four_v3", "tictactoe_v3"])
def test_board_game_rows_equal_the_reference(name):
    game = pytest.importorskip(f"pettingzoo.classic.{name}")
    env = game.env()
    played = seats(dict.fromkeys(env.possible_agents, "board"), env.action_space)
    assert_same(game.env, played, [Collect(ticks) for ticks in (5, 1, 60, 33)])


@settings(max_examples=25)
@given(st.data(), scripts(), collects, either)
def test_what_the_rows_do_not_have_is_counted(data, script, collects, make):
    script = replace(script, pay="quarters")  # their sums are exact, in whatever order
    seats = data.draw(built_seats(script, plain=True))
    side = Side(lambda: make(script), seats, (0, 1))
    rows = unattributed = finished = 0.0
    for collect in collects:
        side.collect(collect)
        rows += sum(batch["reward"].sum() for batch in side.batches.values())
        unattributed += sum(policy.reward_unattributed for policy in side.receipt.policies.values())
        finished += sum(sum(result.returns.values()) for result in side.receipt.episodes)
    running = sum(sum(reference.issued.values()) for reference in side.references)
    still_open = sum(row.reward for r in side.references for t in r.trajectories for row in t.rows if not row.complete)
    assert rows + unattributed + still_open == finished + running


@settings(max_examples=25)
@given(st.data(), scripts(), collects, either)
def test_where_fragments_are_cut_does_not_change_the_rows(data, script, collects, make):
    seats = data.draw(built_seats(script, plain=True))
    whole = Collect(sum(collect.ticks for collect in collects))
    cut = rows_by_lane(worker_of(lambda: make(script), seats, (0, 1)), collects)
    assert cut == rows_by_lane(worker_of(lambda: make(script), seats, (0, 1)), [whole])


@settings(max_examples=25)
@given(st.data(), scripts(), collects, either)
def test_rows_do_not_depend_on_the_number_of_workers(data, script, collects, make):
    seats = data.draw(built_seats(script, plain=True))
    alone, even, odd = (
        rows_by_lane(worker_of(lambda: make(script), seats, env_indices), collects)
        for env_indices in ((0, 1, 2, 3), (0, 2), (1, 3))
    )
    assert even | odd == alone


def rows_by_lane(worker, collects):
    """All rows of each policy and lane, as plain tuples."""
    rows = defaultdict(list)
    names = ["lane", "agent", "env", "episode", "t_env", "t_agent", "action", "reward", "behavior_logp", "obs"]
    for collect in collects:
        for policy, batch in worker.collect(collect.ticks)[1].items():
            for row in zip(*(batch[name].tolist() for name in names), strict=True):
                rows[policy, row[0]].append(row)
    worker.close()
    return rows
