"""The state of a worker: a new worker with it makes the same rows, bit for bit, as the one that continues."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, reject, settings
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.episodes import RESTARTED_EPISODE
from marlflow.sampling.protocol import Request
from marlflow.sampling.saved_state import ResumeReport, merged, share
from tests.sampling.built_environments import BuiltAEC, BuiltParallel
from tests.sampling.row_comparison import Collect, Policy, Seats, built_seats, built_spaces, collects, worker_of
from tests.sampling.scripts import Course, Kind, Script, scripts
from tests.sampling.test_broken_environments import Counter
from tests.sampling.workers import lone_worker

ENV_INDICES = (0, 1, 2, 5)
EVER = 10**6
FAULTS = 300  # of a worker; with more, no episode may ever begin
either = st.sampled_from([BuiltParallel, BuiltAEC])


def through_a_file(tree):
    return from_bytes(to_bytes(tree))


class Played:
    """Workers of some environments each, all given the same weights and matchups."""

    def __init__(self, workers, seats):
        self.workers, self.seats, self.following = workers, seats, dict.fromkeys(ENV_INDICES, 0)

    def collect(self, ticks, weights, matchups=3):
        """The receipts, and for each environment and policy its part of the batches."""
        dealt = None
        if self.seats.dealt:
            dealt = {c: [self.seats.matchup(c, e + i) for i in range(matchups)] for c, e in self.following.items()}
        made = [worker.collect(ticks, Request(weights=weights, matchups=dealt)) for worker in self.workers]
        for receipt, _ in made:
            self.following.update(receipt.next_episodes)
        parts = {
            (number, policy): batch.only(batch.segments["env"] == number)
            for _, batches in made
            for policy, batch in batches.items()
            for number in set(batch.segments["env"].tolist())
        }
        return [receipt for receipt, _ in made], parts

    def state(self):
        return merged([worker.state() for worker in self.workers])

    def close(self):
        for worker in self.workers:
            worker.close()


def weights_of(seats, number, collect):
    """Every policy's weights; some are new."""
    for place, policy in enumerate(seats.policies.values()):
        if number == 0 or collect.publishes(place):
            policy.publish(number * 3 + place)
    policies = seats.policies.items()
    return {name: Weights(policy.version, np.array([policy.parameter], np.float32)) for name, policy in policies}


def assert_equal_trees(found, expected, path="state"):
    assert type(found) is type(expected), path
    if isinstance(expected, dict):
        assert list(found) == list(expected), path
        for name, value in expected.items():
            assert_equal_trees(found[name], value, f"{path}.{name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), path
        for number, value in enumerate(expected):
            assert_equal_trees(found[number], value, f"{path}[{number}]")
    elif isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected, err_msg=path, strict=True)
    else:
        assert found == expected, path


def by_env(tree):
    """The same, one environment after the other, without tables that have no rows."""
    shares = {str(number): share(tree, [number]) for number in ENV_INDICES}
    for one in shares.values():
        one["tables"] = {name: table for name, table in sorted(one["tables"].items()) if len(table["env"])}
    return shares


def assert_same_parts(found, expected):
    assert set(found) == set(expected)
    for key, batch in expected.items():
        other = found[key]
        assert_equal_trees(dict(other.columns), dict(batch.columns), f"rows of {key}")
        assert_equal_trees(dict(other.segments), dict(batch.segments), f"segments of {key}")


def told(receipts):
    """All that receipts say, whichever worker says it, but the sums of floats."""
    policies = {}
    for receipt in receipts:
        for name, one in receipt.policies.items():
            rows, carried, unattributed, _ = policies.get(name, (0, 0, 0.0, 0))
            unattributed += one.reward_unattributed
            policies[name] = rows + one.rows, carried + one.rows_carried, unattributed, one.version
    episodes = sorted((e for r in receipts for e in r.episodes), key=lambda e: (e.tick, e.env, e.episode))
    faults = sorted((fault for r in receipts for fault in r.faults), key=lambda fault: fault.where)
    sums = [sum(getattr(r, name) for r in receipts) for name in ("env_steps", "agent_steps", "agents_vanished")]
    following = {c: e for r in receipts for c, e in r.next_episodes.items()}
    said = {name: (rows, carried, version) for name, (rows, carried, _, version) in policies.items()}
    unattributed = [amount for _, _, amount, _ in policies.values()]
    return (episodes, faults, sums, dict(sorted(following.items())), said), unattributed


def collect_or_reject(played, collect, weights):
    """The result; another example is drawn if hardly an episode begins."""
    try:
        return played.collect(collect.ticks, weights, collect.matchups)
    except mf.EnvironmentFailed:
        reject()


@settings(max_examples=20)
@given(
    st.data(),
    scripts(breaks=True),
    collects,
    collects,
    either,
    st.sampled_from([[ENV_INDICES], [(0, 2), (1, 5)], [(5, 1), (2, 0)], [(2,), (0, 5, 1)]]),
)
def test_a_fresh_worker_goes_on_as_if_nothing_were(data, script, before, after, make, split):
    assert_it_goes_on(data.draw(built_seats(script)), script, before, after, make, split)


def test_agents_nobody_declared_keep_the_order_in_which_they_came_also_between_episodes():
    # In the first course an agent is missing, so that in an environment it may be the last that was seen. Each
    # episode has one env step: none is running when the worker is saved.
    courses = (Course((True, False, True), 1, (), (0,)), Course((True, True, True), 1, (), (0,)))
    kind = Kind("vector", "three", policies=1)
    script = Script((kind,), (0, 0, 0), courses, frozenset(["undeclared", "reorders"]))
    policies = {"kind0_0": Policy(spaces.Discrete(3))}
    seats = Seats({f"built_{number}": ["kind0_0"] for number in range(3)}, policies, dealt=True)
    ticks = Collect(4)
    assert_it_goes_on(seats, script, [ticks, ticks], [ticks, ticks], BuiltParallel, [(0, 1), (2, 5)])


def assert_it_goes_on(seats, script, before, after, make, split):
    seen = built_spaces(script)

    def fresh(env_indices):
        return worker_of(lambda: make(script), seats, env_indices, seen, tolerated=FAULTS)

    alone = Played([fresh(ENV_INDICES)], seats)
    for number, collect in enumerate(before):
        collect_or_reject(alone, collect, weights_of(seats, number, collect))
    versions = {name: (policy.version, policy.parameter) for name, policy in seats.policies.items()}
    tree = through_a_file(alone.state())
    halves = Played([fresh(env_indices) for env_indices in split], seats)
    halves.following = dict(alone.following)
    for worker, env_indices in zip(halves.workers, split, strict=True):
        assert worker.load_state(share(tree, env_indices), EVER) == ResumeReport(0, 0, 0)
    assert_equal_trees(by_env(halves.state()), by_env(tree))
    for name, policy in seats.policies.items():
        policy.version, policy.parameter = versions[name]
    for number, collect in enumerate(after, len(before)):
        weights = weights_of(seats, number, collect)
        (said, amounts), parts = whole(collect_or_reject(alone, collect, weights))
        (found, others), theirs = whole(halves.collect(collect.ticks, weights, collect.matchups))
        assert found == said
        np.testing.assert_allclose(others, amounts, rtol=1e-12, atol=1e-12)
        assert_same_parts(theirs, parts)
        assert_equal_trees(by_env(halves.state()), by_env(alone.state()))
    alone.close()
    halves.close()


def whole(made):
    receipts, parts = made
    return told(receipts), parts


# -- what does not come out the same ---------------------------------------------------------------------------------


class Turns(BuiltAEC):
    """Two agents in turn, for ten turns; observations depend on `mood`, which no seed determines."""

    mood = 0

    def number(self, *what):
        return super().number(*what, self.mood) if self.moves >= 3 else super().number(*what)


def script_of_turns():
    return Script((Kind("vector", "three"),), (0, 0), (Course((True, True), 10),))


def turning(environment=Turns, env_indices=(0, 1), **arguments):
    actor = RandomActor(spaces.Discrete(3))
    return lone_worker(lambda: environment(script_of_turns()), actor, env_indices, seed=4, **arguments)


def moody(mood):
    return type("Turns", (Turns,), {"mood": mood})


def test_an_episode_that_is_not_reproducible_is_abandoned_and_counted():
    worker = turning()
    worker.collect(7)
    fresh = turning(moody(1))
    assert fresh.load_state(worker.state(), EVER) == ResumeReport(2, 0, rows_lost=2)
    assert {one["running"] for one in fresh.state()["envs"]} == {None}
    after, batches = fresh.collect(10)
    assert after.faults == ()
    assert [(one.env, one.episode) for one in after.episodes] == [(0, 1), (1, 1)]
    assert not batches["all"].segments["carried"].any()
    assert after.agent_steps == batches["all"].rows == 20


def test_what_nobody_has_seen_yet_is_no_reason_to_abandon_an_episode():
    worker = turning()
    worker.collect(2)
    assert turning(moody(1)).load_state(worker.state(), EVER) == ResumeReport(0, 0, 0)


def test_what_agents_see_next_counts_although_they_have_not_decided():
    worker = turning()
    worker.collect(3)
    assert turning(moody(1)).load_state(worker.state(), EVER).episodes_abandoned == 2


@pytest.mark.parametrize("what", ["mask", "state"])
def test_masks_and_global_states_count_too(what):
    class Partly(Turns):
        def number(self, *what):
            return BuiltAEC.number(self, *what, self.mood if what[0] == self.changed else 0)

    def worker(mood):
        environment = type("Partly", (Partly,), {"mood": mood, "changed": what})
        script = Script((Kind("vector", "three", "alone"),), (0, 0), (Course((True, True), 10),))
        return lone_worker(lambda: environment(script), First(), seed=4, with_state=["all"])

    one = worker(0)
    one.collect(1)
    assert worker(0).load_state(one.state(), EVER).episodes_abandoned == 0
    assert worker(1).load_state(one.state(), EVER).episodes_abandoned == 1


class First(RandomActor):
    """Takes the first legal action."""

    def __init__(self):
        super().__init__(spaces.Discrete(3))

    def act(self, obs, action_mask, memory, mode, generator):
        return super().act(obs, action_mask, memory, mode, generator)._replace(action=action_mask.argmax(axis=1))


def test_an_environment_that_raises_when_it_is_played_again_is_abandoned_and_no_fault():
    class Broken(Turns):
        opened = 0

        def __init__(self, script):
            super().__init__(script)
            type(self).opened += 1

        def step(self, action):
            if self.moves == 5 and self.opened == 1:
                raise RuntimeError("not again")
            super().step(action)

    worker = turning(env_indices=(0,))
    worker.collect(7)
    fresh = turning(Broken, env_indices=(0,))
    assert fresh.load_state(worker.state(), EVER) == ResumeReport(1, 0, 1)
    receipt, _ = fresh.collect(20)
    assert Broken.opened == 2
    assert receipt.faults == ()
    assert [one.episode for one in receipt.episodes] == [1, 2]


@pytest.mark.parametrize(("cap", "most"), [(6, EVER), (EVER, 6)])
def test_a_longer_episode_begins_anew_with_its_seed_and_choices_as_another(cap, most):
    worker, undisturbed = turning(history_env_steps=cap), turning()
    worker.collect(7)
    first = undisturbed.collect(10)
    fresh = turning()
    assert fresh.load_state(through_a_file(worker.state()), most) == ResumeReport(0, 2, 2)
    again = fresh.collect(10)
    assert [replace(one, episode=one.episode - RESTARTED_EPISODE) for one in again[0].episodes] == list(
        first[0].episodes
    )
    rows = again[1]["all"]
    assert RESTARTED_EPISODE in rows["episode"]
    same = mf.Batch(rows.columns, {**rows.segments, "episode": rows.segments["episode"] % RESTARTED_EPISODE})
    assert_same_parts({0: same}, {0: first[1]["all"]})


def test_the_history_is_kept_to_its_cap_also_for_episodes_that_began_elsewhere():
    worker, fresh = turning(), turning(history_env_steps=7)
    worker.collect(6)
    assert fresh.load_state(worker.state(), EVER) == ResumeReport(0, 0, 0)
    fresh.collect(1)
    assert [one["running"]["whole"] for one in fresh.state()["envs"]] == [True, True]
    assert len(fresh.state()["tables"]["actions.all"]["action"]) == 14
    fresh.collect(1)
    assert [one["running"]["whole"] for one in fresh.state()["envs"]] == [False, False]
    assert "actions.all" not in fresh.state()["tables"]


def test_an_episode_with_a_reward_that_changed_is_abandoned():
    class Paid(Counter):
        pay = 1.0

        def step(self, actions):
            observations, rewards, *rest = super().step(actions)
            return observations, dict.fromkeys(rewards, self.pay), *rest

    def worker(pay):
        return lone_worker(type("Paid", (Paid,), {"pay": pay, "length": 9}), None, [3])

    one = worker(1.0)
    one.collect(4)
    assert worker(1.0).load_state(one.state(), EVER).episodes_abandoned == 0
    assert worker(1.5).load_state(one.state(), EVER).episodes_abandoned == 1


@pytest.mark.parametrize("flipped", [(0,), (0, 1), (0, 1, 2, 3)])
def test_mirrored_observations_are_told_apart(flipped):
    class Mirrored(Counter):
        signs: ClassVar = np.ones(4, np.float32)

        def observation_space(self, agent):
            return spaces.Box(-100, 100, (4,), np.float32)

        def see(self):
            return dict.fromkeys(self.agents, self.signs * (self.t + 1))

    def worker(signs):
        return lone_worker(type("Mirrored", (Mirrored,), {"signs": signs, "length": 9}), None, [3])

    signs = np.ones(4, np.float32)
    signs[list(flipped)] = -1
    one = worker(np.ones(4, np.float32))
    one.collect(4)
    assert worker(signs).load_state(one.state(), EVER).episodes_abandoned == 1
