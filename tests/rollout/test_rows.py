"""What the vectoriser records is what a slow recorder with plain lists records, whatever the environment does."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marlflow.base.items import Weights
from marlflow.env import cartpole_team
from marlflow.policy.actor import Acted
from marlflow.rollout import RolloutWorker, Rule
from tests.rollout.reference_recorder import Reference
from tests.rollout.toy_environments import Toy, ToyAEC, ToyParallel

SEED = 5


def choose(obs, mask, uniform, num_actions):
    """One row's action: the legal action at the quantile `uniform`, shifted by what is seen."""
    legal = np.flatnonzero(np.ones(num_actions, bool) if mask is None else mask)
    return int(legal[(int(uniform * 1000) + int(abs(float(obs.sum())) * 7)) % len(legal)])


class RowActor:
    """Chooses row by row; its log-probability names the row by what it saw."""

    def __init__(self, num_actions):
        self.num_actions = num_actions

    def act(self, obs, action_mask, memory, mode, generator):
        uniform = generator.uniform() if mode == "explore" else np.zeros(len(obs))
        masks = [None] * len(obs) if action_mask is None else action_mask
        action = [choose(*row, self.num_actions) for row in zip(obs, masks, uniform, strict=True)]
        return Acted(np.array(action, np.int64), np.array([row.sum() for row in obs], np.float32), memory)

    def set_schedule(self, values):
        raise AssertionError("nothing is scheduled")


def play(make_env, rules, num_actions, cuts, copies=(0, 1, 2)):
    """Batches of each policy, one per cut, with versions that count the cuts; and the receipts."""
    actors = {rule.policy: RowActor(num_actions) for rule in rules}
    worker = RolloutWorker(make_env, copies, rules, actors, SEED)
    policies = worker.policies
    batches, receipts = {policy: [] for policy in policies}, []
    for version, ticks in enumerate(cuts):
        weights = {policy: Weights(version, None) for policy in policies}
        receipt, made = worker.collect(ticks, weights)
        receipts.append(receipt)
        for policy in policies:
            batches[policy].append(made[policy])
    worker.close()
    return batches, receipts


def expected_segments(reference, slots, cuts):
    """For each cut the segments of a policy's agents in one copy: (slot, rows, bootstrap, ...), by the definition."""
    boundaries = np.cumsum(cuts)
    fragments = []
    for begin, end in zip([0, *boundaries[:-1]], boundaries, strict=True):
        fragment = []
        for trajectory in reference.trajectories:
            if trajectory.slot not in slots:
                continue
            done = [r for r in trajectory.rows if r.complete is not None and begin < r.complete <= end]
            if not done:
                continue
            after = trajectory.rows[trajectory.rows.index(done[-1]) + 1 :]
            if after:
                bootstrap, ended = (after[0].obs, after[0].mask), False
            elif trajectory.final_obs is not None:
                bootstrap, ended = (trajectory.final_obs, trajectory.final_mask), True
            else:
                bootstrap, ended = trajectory.pending, False
            fragment.append((trajectory, done, bootstrap, ended, done[0].decided < begin))
        fragments.append(sorted(fragment, key=lambda s: (s[0].slot, s[1][0].decided)))
    return fragments


def segments_of(batch, copy):
    """The segments of one copy: (index, first row, last row + 1)."""
    ends = np.cumsum(batch.segments["length"])
    starts = ends - batch.segments["length"]
    return [(s, int(starts[s]), int(ends[s])) for s in np.flatnonzero(batch.segments["copy"] == copy)]


def assert_same_segment(batch, found, expected, boundaries):
    trajectory, rows, (boot_obs, boot_mask), ended, carried = expected
    s, start, stop = found
    columns, segments = batch.columns, {name: column[s] for name, column in batch.segments.items()}
    assert segments["length"] == len(rows)
    assert segments["agent"] == trajectory.slot
    assert segments["episode"] == trajectory.episode
    assert segments["terminated"] == (ended and trajectory.terminated)
    assert segments["truncated"] == (ended and trajectory.truncated)
    assert segments["carried"] == carried
    np.testing.assert_array_equal(segments["bootstrap_obs"], boot_obs)
    np.testing.assert_array_equal(columns["obs"][start:stop], [row.obs for row in rows])
    assert columns["action"][start:stop].tolist() == [row.action for row in rows]
    assert columns["reward"][start:stop].tolist() == [row.reward for row in rows]
    assert columns["t_env"][start:stop].tolist() == [row.t_env for row in rows]
    assert columns["t_agent"][start:stop].tolist() == [row.t_agent for row in rows]
    np.testing.assert_array_equal(columns["behaviour_logp"][start:stop], [row.obs.sum() for row in rows])
    versions = np.searchsorted(boundaries, [row.decided for row in rows], side="right")
    assert columns["version"][start:stop].tolist() == versions.tolist()
    if "action_mask" in columns:
        np.testing.assert_array_equal(columns["action_mask"][start:stop], [row.mask for row in rows])
        says_nothing = boot_mask is None or not boot_mask.any()  # as board games show to whom it is not the turn
        legal = np.ones_like(segments["bootstrap_mask"]) if says_nothing else boot_mask
        np.testing.assert_array_equal(segments["bootstrap_mask"], legal)


def assert_same(make_env, rules, num_actions, cuts, copies=(0, 1, 2)):
    batches, receipts = play(make_env, rules, num_actions, cuts, copies)
    names = make_env().possible_agents
    boundaries = np.cumsum(cuts)
    references = [
        Reference(make_env(), SEED, copy, lambda o, m, u: choose(o, m, u, num_actions), sum(cuts)) for copy in copies
    ]
    for policy, cut_batches in batches.items():
        slots = {i for i, name in enumerate(names) if policy_for(name, rules) == policy}
        for reference in references:
            expected = expected_segments(reference, slots, cuts)
            for batch, segments in zip(cut_batches, expected, strict=True):
                found = segments_of(batch, reference.copy)
                assert len(found) == len(segments)
                for one, other in zip(found, segments, strict=True):
                    assert_same_segment(batch, one, other, boundaries)
        for number, batch in enumerate(cut_batches):
            assert batch.rows == batch.segments["length"].sum() == receipts[number].policies[policy].rows
            assert batch.segments["carried"].sum() == receipts[number].policies[policy].rows_carried
            assert (batch.segments["lane"] == batch.segments["copy"] * len(names) + batch.segments["agent"]).all()
        unattributed = sum(receipt.policies[policy].reward_unattributed for receipt in receipts)
        expected = sum(
            sum(r.unattributed.get(name, 0.0) for i, name in enumerate(names) if i in slots) for r in references
        )
        assert unattributed == pytest.approx(expected, abs=1e-12)
    results = [result for receipt in receipts for result in receipt.episodes]
    for reference in references:
        played = [result.returns for result in results if result.copy == reference.copy]
        for returns, issued in zip(played, reference.returns, strict=True):
            assert {agent: issued[agent] for agent in returns} == pytest.approx(returns)
            assert all(issued[agent] == 0 for agent in issued if agent not in returns)
    assert sum(receipt.env_steps for receipt in receipts) == sum(cuts) * len(copies)


def policy_for(name, rules):
    return next(rule.policy for rule in rules if fnmatchcase(name, rule.match))


RULES = [Rule("toy_0", "first"), Rule("*", "rest")]
chance = st.sampled_from([0.0, 0.05, 0.3])
toys = st.builds(
    Toy,
    num_agents=st.integers(2, 4),
    max_steps=st.integers(1, 12),
    terminate=chance,
    truncate=chance,
    vanish=chance,
    join=chance,
    masks=st.sampled_from(["none", "observation", "info"]),
    start=st.sampled_from([0, 2, -1]),
)
cuts = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@settings(max_examples=150)
@given(toys, cuts)
def test_parallel_rows_equal_the_reference(toy, cuts):
    assert_same(lambda: ToyParallel(toy), RULES, 3, cuts)


@settings(max_examples=150)
@given(toys, cuts)
def test_aec_rows_equal_the_reference(toy, cuts):
    assert_same(lambda: ToyAEC(toy), RULES, 3, cuts)


def test_cartpole_team_rows_equal_the_reference():
    rules = [Rule("cart_[01]", "left"), Rule("cart_*", "right")]
    assert_same(cartpole_team.parallel_env, rules, 2, [30, 1, 64, 25])
    assert_same(cartpole_team.env, rules, 2, [30, 1, 64, 125])


def test_simple_tag_rows_equal_the_reference():
    simple_tag = pytest.importorskip("mpe2.simple_tag_v3")
    rules = [Rule("adversary_*", "adversary"), Rule("agent_*", "agent")]
    assert_same(simple_tag.parallel_env, rules, 5, [10, 20, 5], copies=(0, 3))
    assert_same(simple_tag.env, rules, 5, [10, 71, 5, 49], copies=(0, 3))


@pytest.mark.parametrize(("name", "num_actions"), [("connect_four_v3", 7), ("tictactoe_v3", 9)])
def test_board_game_rows_equal_the_reference(name, num_actions):
    game = pytest.importorskip(f"pettingzoo.classic.{name}")
    assert_same(game.env, [Rule("*", "board")], num_actions, [5, 1, 60, 33])


@settings(max_examples=30)
@given(toys, cuts, st.sampled_from([ToyParallel, ToyAEC]))
def test_rows_and_unattributed_add_up_to_what_was_issued(toy, cuts, make):
    # Bounded by max_steps, every episode is over when the copy's last begins; the running one is made to end too.
    batches, receipts = play(lambda: make(toy), RULES, 3, [*cuts, 200])
    rows = sum(batch["reward"].sum() for made in batches.values() for batch in made)
    unattributed = sum(p.reward_unattributed for receipt in receipts for p in receipt.policies.values())
    returns = sum(sum(result.returns.values()) for receipt in receipts for result in receipt.episodes)
    running = sum(reference_rest(lambda: make(toy), sum(cuts) + 200, copy) for copy in (0, 1, 2))
    assert rows + unattributed == returns + running


def reference_rest(make_env, ticks, copy):
    """What the episode that still runs has paid into complete rows, or into none."""
    reference = Reference(make_env(), SEED, copy, lambda o, m, u: choose(o, m, u, 3), ticks)
    held = sum(row.reward for t in reference.trajectories for row in t.rows if row.complete is None)
    return sum(reference.issued.values()) - held


@settings(max_examples=30)
@given(toys, st.integers(1, 40), cuts, st.sampled_from([ToyParallel, ToyAEC]))
def test_where_fragments_are_cut_does_not_change_the_rows(toy, ticks, cuts, make):
    cuts = [*cuts, ticks]
    whole = rows_by_lane(play(lambda: make(toy), RULES, 3, [sum(cuts)])[0])
    assert rows_by_lane(play(lambda: make(toy), RULES, 3, cuts)[0]) == whole


@settings(max_examples=30)
@given(toys, cuts, st.sampled_from([ToyParallel, ToyAEC]))
def test_rows_do_not_depend_on_the_number_of_workers(toy, cuts, make):
    alone = rows_by_lane(play(lambda: make(toy), RULES, 3, cuts, copies=(0, 1, 2, 3))[0])
    even = rows_by_lane(play(lambda: make(toy), RULES, 3, cuts, copies=(0, 2))[0])
    odd = rows_by_lane(play(lambda: make(toy), RULES, 3, cuts, copies=(1, 3))[0])
    assert even | odd == alone


def rows_by_lane(batches):
    """All rows of each policy and lane, as plain tuples."""
    rows = {}
    for policy, made in batches.items():
        for batch in made:
            columns = ["lane", "agent", "copy", "episode", "t_env", "t_agent", "action", "reward", "behaviour_logp"]
            for row in zip(*(batch[name].tolist() for name in columns), batch["obs"].tolist(), strict=True):
                rows.setdefault((policy, row[0]), []).append(row)
    return rows
