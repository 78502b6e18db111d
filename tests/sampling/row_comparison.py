"""Plays a worker and the reference side by side, and compares everything that the worker hands over."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from math import fsum

import numpy as np
from gymnasium.spaces import Discrete
from hypothesis import strategies as st

from marlflow.base.errors import EnvironmentFailed
from marlflow.base.random import key
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Weights
from marlflow.sampling.episodes import EVALUATION
from marlflow.sampling.protocol import EvaluationRequest, Request
from tests.sampling.reference_recorder import Reference, TooManyFaults
from tests.sampling.row_actors import Policy
from tests.sampling.workers import rollout_worker

SEED = 5


@dataclass(frozen=True)
class Collect:
    """One call of `collect`: which policies have new weights, and how many matchups each environment is dealt."""

    ticks: int
    published: tuple[bool, ...] = (True,)
    matchups: int = 3

    def publishes(self, number):
        return self.published[number % len(self.published)]


@dataclass(frozen=True)
class Seats:
    """Which policies can play each agent, and what those see and do; `dealt`: it changes from episode to episode."""

    able: dict[str, list[str]]
    policies: dict[str, Policy]
    dealt: bool = False

    def matchup(self, env_index, episode):
        number = {agent: key(env_index, episode, i) if self.dealt else i for i, agent in enumerate(self.able)}
        return {agent: able[number[agent] % len(able)] for agent, able in self.able.items()}


def seats(mapping, action_spaces):
    """One policy per agent, in every episode."""
    policies = {policy: Policy(action_spaces(agent)) for agent, policy in mapping.items()}
    return Seats({agent: [policy] for agent, policy in mapping.items()}, policies)


collects = st.lists(
    st.builds(Collect, st.integers(1, 9), st.tuples(st.booleans(), st.booleans()), st.integers(0, 4)),
    min_size=1,
    max_size=8,
)


def worker_of(make_env, seats, env_indices, spaces=None, tolerated=0):
    """A worker whose policies have never been published."""
    for policy in seats.policies.values():
        policy.version, policy.parameter = -1, 0.0
    return rollout_worker(
        make_env,
        env_indices,
        None if seats.dealt else seats.matchup(0, 0),
        {name: policy.actor() for name, policy in seats.policies.items()},
        SEED,
        spaces=spaces if seats.dealt else None,
        recorded=[name for name, policy in seats.policies.items() if policy.recorded],
        with_state=[name for name, policy in seats.policies.items() if policy.sees_state],
        tolerated_faults=tolerated,
    )


class Side:
    """A worker and the references of its environments, collect after collect."""

    def __init__(self, make_env, seats, env_indices, spaces=None, tolerated=0):
        self.make_env, self.seats, self.number, self.tolerated = make_env, seats, 0, tolerated
        self.evaluation_faults = 0
        self.policies = seats.policies
        self.worker = worker_of(make_env, seats, env_indices, spaces, tolerated)
        self.references = [self.reference(env_index) for env_index in env_indices]
        self.next_episodes = dict.fromkeys(env_indices, 0)

    def reference(self, env_index, greedy=False):
        matchup = partial(self.seats.matchup, env_index)
        return Reference(self.make_env, SEED, env_index, self.policies, matchup, greedy, self.tolerated)

    def evaluate(self, episodes):
        """Both play greedy episodes, which leave what is collected afterwards as it would have been."""
        matchups = [self.seats.matchup(EVALUATION, episode) for episode in episodes] if self.seats.dealt else None
        references = [self.played_greedily(episode) for episode in episodes]
        self.evaluation_faults += sum(reference.faults for reference in references)
        try:
            found = self.worker.evaluate(EvaluationRequest(episodes, matchups=matchups))
        except EnvironmentFailed:
            assert self.faults > self.tolerated
            return False
        assert self.faults <= self.tolerated
        compare_results(found.episodes, [result for reference in references for result in reference.results])
        assert [fault.rows_lost for fault in found.faults] == [0 for r in references for _ in range(r.faults)]
        return True

    def played_greedily(self, episode):
        """A reference that has played one episode, or given it up."""
        reference = self.reference(EVALUATION, greedy=True)
        reference.episode = episode - 1
        with suppress(TooManyFaults):
            reference.collect(1, matchups=1)
            while reference.playing:
                reference.collect(1, matchups=0)
        return reference

    @property
    def faults(self):
        return self.evaluation_faults + sum(reference.faults for reference in self.references)

    def collect(self, collect):
        """Both collect, and the results are compared. Returns whether they can continue."""
        weights = self.publish(collect)
        matchups = None
        if self.seats.dealt:
            following = self.next_episodes.items()
            matchups = {c: [self.seats.matchup(c, e + i) for i in range(collect.matchups)] for c, e in following}
        before = sum(reference.env_steps for reference in self.references)
        try:
            receipt, batches = self.worker.collect(collect.ticks, Request(weights=weights, matchups=matchups))
        except EnvironmentFailed:
            self.collect_reference(collect)
            assert self.faults > self.tolerated
            return False
        self.collect_reference(collect)
        assert self.faults <= self.tolerated
        self.next_episodes = {reference.env_index: reference.episode + 1 for reference in self.references}
        assert receipt.next_episodes == self.next_episodes
        assert receipt.env_steps == sum(reference.env_steps for reference in self.references) - before
        assert set(batches) == {name for name, policy in self.policies.items() if policy.recorded}
        for policy, batch in batches.items():
            self.compare(policy, batch, receipt.policies[policy])
        self.compare_episodes(receipt)
        self.receipt, self.batches = receipt, batches
        self.number += 1
        return True

    def collect_reference(self, collect):
        for reference in self.references:
            with suppress(TooManyFaults):
                reference.collect(collect.ticks, collect.matchups if self.seats.dealt else None)

    def publish(self, collect):
        weights = {}
        for number, (name, policy) in enumerate(self.policies.items()):
            if self.number == 0 or collect.publishes(number):
                policy.publish(self.number * 3 + number)
                weights[name] = Weights(policy.version, np.array([policy.parameter], np.float32))
        return weights

    def compare(self, policy, batch, receipt):
        found = {}
        for number, (start, stop) in enumerate(pairwise([0, *np.cumsum(batch.segments["length"]).tolist()])):
            lane = int(batch.segments["env"][number]), int(batch.segments["agent"][number])
            found.setdefault(lane, []).append((number, start, stop))
        expected = {}
        for reference in self.references:
            for segment in reference.fragment(self.number, policy):
                expected.setdefault((reference.env_index, segment.trajectory.slot), []).append(segment)
        assert set(found) == set(expected)
        for lane, segments in expected.items():
            assert len(found[lane]) == len(segments), f"segments of environment and agent {lane}"
            for one, segment in zip(found[lane], segments, strict=True):
                compare_segment(batch, *one, segment, self.policies[policy])
        carried = int(batch.segments["carried"].sum())
        assert (receipt.rows, receipt.rows_carried, receipt.version) == (
            batch.rows,
            carried,
            self.policies[policy].version,
        )
        stride = (batch.segments["lane"] - batch.segments["agent"]) // np.maximum(batch.segments["env"], 1)
        assert len(set(stride[batch.segments["env"] > 0].tolist())) <= 1
        if not any(reference.lost[-1] for reference in self.references):
            unattributed = [amount for r in self.references for amount in r.unattributed[-1].get(policy, [])]
            np.testing.assert_allclose(receipt.reward_unattributed, fsum(unattributed), rtol=1e-12, atol=1e-12)

    def compare_episodes(self, receipt):
        for reference in self.references:
            compare_results([one for one in receipt.episodes if one.env == reference.env_index], reference.results)
            reference.results = []
        lost = sorted((r.env_index, rows) for r in self.references for rows in r.lost[-1])
        assert sorted((env_of(fault), fault.rows_lost) for fault in receipt.faults) == lost
        if not lost:  # how much of a broken step still counts does not matter
            assert receipt.agents_vanished == sum(reference.vanished for reference in self.references)
        for reference in self.references:
            reference.vanished = 0


def compare_results(found, expected):
    played = [(result.episode, result.env_steps, dict(result.returns)) for result in found]
    assert played == [(episode, steps, returns) for episode, steps, returns, _ in expected]
    for result, (_, _, returns, matchup) in zip(found, expected, strict=True):
        assert {agent: result.matchup[agent] for agent in returns} == {agent: matchup[agent] for agent in returns}


def env_of(fault):
    return int(fault.where.split(", env ")[1].split(",")[0])


def compare_segment(batch, number, start, stop, segment, policy):
    table = {name: column[number] for name, column in batch.segments.items()}
    trajectory, rows, bootstrap = segment.trajectory, segment.rows, segment.bootstrap
    expected = {
        "length": len(rows),
        "episode": trajectory.episode,
        "terminated": segment.ended and trajectory.terminated,
        "truncated": segment.ended and trajectory.truncated,
        "carried": segment.carried,
        "bootstrap_obs": bootstrap.obs,
    }
    columns = {
        "obs": [row.seen.obs for row in rows],
        "action": [row.action for row in rows],
        "reward": [row.reward for row in rows],
        "behavior_logp": [row.logp for row in rows],
        "version": [row.version for row in rows],
        "t_env": [row.t_env for row in rows],
        "t_agent": [row.t_agent for row in rows],
    }
    if "action_mask" in batch.columns or any(row.seen.mask is not None for row in rows):
        width = int(policy.action_space.n)
        columns["action_mask"] = [np.ones(width, bool) if row.seen.mask is None else row.seen.mask for row in rows]
        # A mask that allows nothing says nothing: board games show it to whom it is not the turn. At an end, what was
        # legal at the last decision counts then.
        says_nothing = bootstrap.mask is None or not bootstrap.mask.any()
        otherwise = columns["action_mask"][-1] if segment.ended else np.ones(width, bool)
        expected["bootstrap_mask"] = otherwise if says_nothing else bootstrap.mask
    if policy.sees_state:
        columns["state"] = [row.seen.state for row in rows]
        expected["bootstrap_state"] = bootstrap.state
    if policy.remembers:
        columns["memory"] = [row.seen.memory for row in rows]
        expected["memory"], expected["memory_version"] = rows[0].seen.memory, rows[0].seen.version
        expected["bootstrap_memory"] = bootstrap.memory
    assert set(batch.columns) == set(columns)
    assert set(table) == {*expected, "agent", "env", "lane"}
    for name, values in columns.items():
        same(name, batch.columns[name][start:stop], np.stack(values))
    for name, value in expected.items():
        same(name, table[name], value)


def same(name, found, expected):
    """Bit for bit, and of the same dtype where the reference has one of its own."""
    strict = name in ("obs", "bootstrap_obs", "state", "bootstrap_state", "memory", "bootstrap_memory")
    if not np.array_equal(found, expected) or (strict and found.dtype != expected.dtype):
        np.testing.assert_array_equal(found, expected, err_msg=name, strict=strict)


def assert_same(make_env, seats, collects, env_indices=(0, 1, 2), **arguments):
    side = Side(make_env, seats, env_indices, **arguments)
    for number, collect in enumerate(collects):
        if not side.collect(collect) or (number == 0 and not side.evaluate([3, 0, 5])):
            break
    side.worker.close()


@st.composite
def built_seats(draw, script, plain=False):
    """The policies of a built environment; unless `plain`, dealt, with memory and state, and recorded, or not."""
    dealt = not plain and draw(st.booleans())
    able = script.candidates() if dealt else {agent: [policy] for agent, policy in script.mapping().items()}
    policies = {name: Policy(script.kind(agent).action_space()) for agent, names in able.items() for name in names}
    for policy in () if plain else policies.values():
        policy.remembers, policy.sees_state = draw(st.booleans()), draw(st.booleans())
        policy.recorded = draw(st.integers(0, 3)) < 3
    return Seats(able, policies, dealt)


def built_spaces(script):
    """The spaces of each policy's agents, if matchups are dealt."""
    any_info = any(script.kind(agent).masks == "info" for agent in script.agents)
    found = {}
    for agent, names in script.candidates().items():
        kind = script.kind(agent)
        space = kind.observation_space()
        if kind.masks == "alone":
            space = space["observation"]
        if kind.masks == "beside":
            space = type(space)({"seen": space["seen"]})
        masked = kind.masks != "none" or (any_info and isinstance(kind.action_space(), Discrete))
        found |= dict.fromkeys(names, Spaces(space, kind.action_space(), masked))
    return found
