"""Plays a worker and the reference side by side, and compares everything that the worker hands over."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import fsum

import numpy as np
from gymnasium.spaces import Discrete
from hypothesis import strategies as st

from marlflow.base.items import Weights
from marlflow.base.random import key
from marlflow.base.spaces import Spaces
from marlflow.rollout import RolloutWorker
from tests.rollout.reference_recorder import Reference
from tests.rollout.row_actors import Policy

SEED = 5


@dataclass(frozen=True)
class Collect:
    """One call of `collect`: which policies have new weights, and how many matchups each copy is dealt."""

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

    def matchup(self, copy, episode):
        number = {agent: key(copy, episode, i) if self.dealt else i for i, agent in enumerate(self.able)}
        return {agent: able[number[agent] % len(able)] for agent, able in self.able.items()}


def seats(mapping, action_spaces):
    """One policy per agent, in every episode."""
    policies = {policy: Policy(action_spaces(agent)) for agent, policy in mapping.items()}
    return Seats({agent: [policy] for agent, policy in mapping.items()}, policies)


collects = st.lists(
    st.builds(Collect, st.integers(1, 9), st.tuples(st.booleans(), st.booleans()), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)


class Side:
    """A worker and the references of its copies, collect after collect."""

    def __init__(self, make_env, seats, copies, spaces=None, **arguments):
        self.seats, self.copies, self.number = seats, copies, 0
        self.policies = seats.policies
        for policy in self.policies.values():
            policy.version, policy.parameter = -1, 0.0
        self.worker = RolloutWorker(
            make_env,
            copies,
            None if seats.dealt else seats.matchup(0, 0),
            {name: policy.actor() for name, policy in self.policies.items()},
            SEED,
            spaces=spaces if seats.dealt else None,
            with_state=[name for name, policy in self.policies.items() if policy.sees_state],
            **arguments,
        )
        self.references = [self.reference(make_env, copy) for copy in copies]
        self.next_episodes = dict.fromkeys(copies, 0)

    def reference(self, make_env, copy):
        return Reference(make_env, SEED, copy, self.policies, lambda episode: self.seats.matchup(copy, episode))

    def collect(self, collect):
        """Both collect; what comes of it is compared."""
        weights = self.publish(collect)
        matchups = None
        if self.seats.dealt:
            following = self.next_episodes.items()
            matchups = {c: [self.seats.matchup(c, e + i) for i in range(collect.matchups)] for c, e in following}
        receipt, batches = self.worker.collect(collect.ticks, weights, matchups=matchups)
        before = sum(reference.env_steps for reference in self.references)
        for reference in self.references:
            reference.collect(collect.ticks, collect.matchups if self.seats.dealt else None)
        self.next_episodes = {reference.copy: reference.episode + 1 for reference in self.references}
        assert receipt.next_episodes == self.next_episodes
        assert receipt.env_steps == sum(reference.env_steps for reference in self.references) - before
        for policy, batch in batches.items():
            self.compare(policy, batch, receipt.policies[policy])
        self.compare_episodes(receipt)
        self.number += 1
        return receipt, batches

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
            lane = int(batch.segments["copy"][number]), int(batch.segments["agent"][number])
            found.setdefault(lane, []).append((number, start, stop))
        expected = {}
        for reference in self.references:
            for segment in reference.fragment(self.number, policy):
                expected.setdefault((reference.copy, segment.trajectory.slot), []).append(segment)
        assert set(found) == set(expected)
        for lane, segments in expected.items():
            assert len(found[lane]) == len(segments), f"segments of copy and agent {lane}"
            for one, segment in zip(found[lane], segments, strict=True):
                compare_segment(batch, *one, segment, self.policies[policy])
        carried = int(batch.segments["carried"].sum())
        assert (receipt.rows, receipt.rows_carried, receipt.version) == (batch.rows, carried, self.policies[policy].version)
        stride = (batch.segments["lane"] - batch.segments["agent"]) // np.maximum(batch.segments["copy"], 1)
        assert len(set(stride[batch.segments["copy"] > 0].tolist())) <= 1
        unattributed = [amount for r in self.references for amount in r.unattributed[-1].get(policy, [])]
        np.testing.assert_allclose(receipt.reward_unattributed, fsum(unattributed), rtol=1e-12, atol=1e-12)

    def compare_episodes(self, receipt):
        for reference in self.references:
            found = [result for result in receipt.episodes if result.copy == reference.copy]
            results, reference.results = reference.results, []
            played = [(result.episode, result.env_steps, dict(result.returns)) for result in found]
            assert played == [(episode, steps, returns) for episode, steps, returns, _ in results]
            for result, (_, _, returns, matchup) in zip(found, results, strict=True):
                assert {agent: result.matchup[agent] for agent in returns} == {a: matchup[a] for a in returns}
        lost = sorted((r.copy, rows) for r in self.references for rows in r.lost[-1])
        assert sorted((copy_of(fault), fault.rows_lost) for fault in receipt.faults) == lost
        vanished = sum(reference.vanished for reference in self.references)
        for reference in self.references:
            reference.vanished = 0
        assert receipt.agents_vanished == vanished


def copy_of(fault):
    return int(fault.where.split(", copy ")[1].split(",")[0])


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
        "behaviour_logp": [row.logp for row in rows],
        "version": [row.version for row in rows],
        "t_env": [row.t_env for row in rows],
        "t_agent": [row.t_agent for row in rows],
    }
    if "action_mask" in batch.columns or any(row.seen.mask is not None for row in rows):
        width = int(policy.action_space.n)
        columns["action_mask"] = [np.ones(width, bool) if row.seen.mask is None else row.seen.mask for row in rows]
        # A mask that allows nothing says nothing: board games show it to whom it is not the turn.
        says_nothing = bootstrap.mask is None or not bootstrap.mask.any()
        expected["bootstrap_mask"] = np.ones(width, bool) if says_nothing else bootstrap.mask
    if policy.sees_state:
        columns["state"] = [row.seen.state for row in rows]
        expected["bootstrap_state"] = bootstrap.state
    if policy.remembers:
        expected["memory"], expected["memory_version"] = rows[0].seen.memory, rows[0].seen.version
        expected["bootstrap_memory"] = bootstrap.memory
    assert set(batch.columns) == set(columns)
    assert set(table) == {*expected, "agent", "copy", "lane"}
    for name, values in columns.items():
        same(name, batch.columns[name][start:stop], np.stack(values))
    for name, value in expected.items():
        same(name, table[name], value)


def same(name, found, expected):
    """Bit for bit, and of the same dtype where the reference has one of its own."""
    np.testing.assert_array_equal(found, expected, err_msg=name, strict=name in ("obs", "bootstrap_obs", "behaviour_logp"))


def assert_same(make_env, seats, collects, copies=(0, 1, 2), **arguments):
    side = Side(make_env, seats, copies, **arguments)
    for collect in collects:
        side.collect(collect)
    side.worker.close()


def built_seats(script, dealt=False, remembering=(), seeing=()):
    """The seats of a built environment; `remembering` and `seeing`: which of its policies have memory, and the state."""
    policies, able = {}, script.candidates()
    for agent, names in able.items():
        for name in names:
            policies[name] = Policy(script.kind(agent).action_space())
    if not dealt:
        able = {agent: [policy] for agent, policy in script.mapping().items()}
        policies = {policy: policies[policy] for [policy] in able.values()}
    for number, policy in enumerate(policies.values()):
        policy.remembers, policy.sees_state = number in remembering, number in seeing
    return Seats(able, policies, dealt)


def built_spaces(script):
    """What the agents of each policy see and do, where matchups are dealt."""
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
