"""Frozen versions with an inference actor: one call for all of a worker's rows, which act as in the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode, RecurrentActor
from marlflow.policy.stacked import RowGroups, members_of
from marlflow.runtime.ray.inference_members import (
    ByReference,
    CohortInput,
    CohortKey,
    HostedMembers,
    InferenceInput,
    MemberKey,
    RemoteMembers,
)
from tests.policy.test_stacked import ACTORS

SCHEDULED = {"epsilon": 0.3, "exploration_noise": 0.1}


class Inference:
    """The inference actor without Ray: `calls` and `loads` record its inputs."""

    def __init__(self, make: Callable[[], Any], worker_members: int) -> None:
        self.hosted = HostedMembers(make, stacked=True, with_critic=False, num_workers=2, worker_members=worker_members)
        self.calls: list[CohortKey] = []
        self.loads: list[MemberKey] = []

    def call(self, key: CohortKey, inputs: CohortInput) -> Acted | list[MemberKey]:
        self.calls.append(key)
        return self.hosted.missing(inputs.members) or self.hosted.act([inputs], key.mode)

    def send(self, policy: str, member: MemberKey, weights: ByReference) -> None:
        self.loads.append(member)
        self.hosted.load(member, weights.flat[0])

    def members(self) -> RemoteMembers:
        return RemoteMembers("main", self.call, self.send)


class Rows:
    """Random rows of members in `slots`, and what a worker's own cohort makes of them."""

    def __init__(self, name: str, slots: Sequence[int], seed: int) -> None:
        (spaces, make), drawn = ACTORS[name], np.random.default_rng(seed)
        count, actor = len(slots), make()
        self.groups = RowGroups.of(np.array(slots))
        self.obs = drawn.standard_normal((count, *spaces.observation.shape)).astype(np.float32)
        self.mask = np.ones((count, 4), bool) if spaces.masked else None
        has_memory = isinstance(actor, RecurrentActor)
        self.memory = drawn.standard_normal((count, *actor.memory_shape)).astype(np.float32) if has_memory else None
        self.random = RowRandom(drawn.integers(0, 99, count).astype(np.uint64), np.full(count, 3), np.arange(count))

    def acted(self, members: Any, mode: Mode) -> Acted:
        acted: Acted = members.act(self.groups, self.obs, self.mask, self.memory, mode, self.random)
        return acted


def assert_same(one: Acted, other: Acted) -> None:
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_allclose(one.behavior_logp, other.behavior_logp, rtol=2e-5, atol=1e-5)
    if one.memory is not None:
        np.testing.assert_allclose(one.memory, other.memory, rtol=2e-5, atol=1e-5)


def weights_of(make: Callable[[], Any], version: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    flat = make().flat()
    return (flat + 0.1 * np.random.default_rng(version).standard_normal(flat.shape)).astype(np.float32)


@pytest.mark.parametrize("mode", ["explore", "sampled", "greedy"])
@pytest.mark.parametrize("name", ["mlp", "q", "gru"])
def test_rows_of_all_versions_are_one_call_and_are_acted_on_as_by_the_worker(name: str, mode: Any) -> None:
    torch.manual_seed(0)
    _, make = ACTORS[name]
    inference, own = Inference(make, worker_members=8), members_of(make, make())
    remote = inference.members()
    for slot, version in enumerate([5, 3, 9, 1, 7, 2]):
        flat = weights_of(make, version)
        own.load(slot, flat, SCHEDULED)
        remote.load(slot, ByReference(version, [flat]), SCHEDULED)
    for seed, slots in enumerate([[0, 0, 1, 2, 3, 3, 4, 5], [5, 1, 1], [4, 0, 2]]):
        rows = Rows(name, slots, seed)
        assert_same(rows.acted(remote, mode), rows.acted(own, mode))
    # The first is asked again, with the weights.
    assert len(inference.calls) == 4
    assert len(inference.loads) == 6


def test_rows_of_two_workers_are_one_batch_and_come_back_in_order() -> None:
    _, make = ACTORS["mlp"]
    inference, own = Inference(make, worker_members=8), members_of(make, make())
    keys = []
    for slot, version in enumerate([5, 3, 9]):
        flat = weights_of(make, version)
        own.load(slot, flat, SCHEDULED)
        keys.append(MemberKey(version, "", tuple(sorted(SCHEDULED.items()))))
        inference.send("main", keys[-1], ByReference(version, [flat]))
    parts, expected = [], []
    for seed, slots in enumerate([[2, 0, 0], [0, 1, 1, 2]]):
        rows = Rows("mlp", slots, seed)
        members = tuple(keys[slot] for slot in rows.groups.slots.tolist())
        of_worker = InferenceInput(rows.obs, rows.mask, rows.memory, rows.random)
        parts.append(CohortInput(members, tuple(rows.groups.counts.tolist()), of_worker))
        expected.append(rows.acted(own, "sampled"))
    found = inference.hosted.act(parts, "sampled")
    np.testing.assert_array_equal(found.action, np.concatenate([one.action for one in expected]))


def test_the_least_recently_used_versions_make_room_and_come_back() -> None:
    _, make = ACTORS["mlp"]
    inference, own = Inference(make, worker_members=1), members_of(make, make())
    remote = inference.members()
    for slot in range(6):
        flat = weights_of(make, slot)
        own.load(slot, flat, SCHEDULED)
        remote.load(slot, ByReference(slot, [flat]), SCHEDULED)
    for seed in range(12):
        rows = Rows("mlp", [seed % 6, (seed + 1) % 6], seed)
        assert_same(rows.acted(remote, "sampled"), rows.acted(own, "sampled"))
    assert len(inference.hosted._slots) == 4, "room for a call of each worker"
    assert len(inference.loads) == 13
