"""Replicas that each have a shard of the rows learn what one learner does that has all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.errors import InvalidInput
from marlflow.base.spaces import Spaces
from marlflow.learner.compiled_updates import AUTO_AFTER, Compile
from marlflow.learner.distributed.replicas import no_rows, sharded
from marlflow.learner.learner import LearnsOn
from marlflow.learner.minibatches import ShardDivision, share_sizes
from marlflow.policy.actor_critic import ActorCritic
from tests.learner.experience import ACTIONS, FEATURES, estimated, ragged

SEEN = Spaces(spaces.Box(-1.0, 1.0, (FEATURES,)), spaces.Discrete(ACTIONS))


class Recording:
    """A loss that notes which rows it was given."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        self.seen.append(minibatch["mark"].tolist())
        return mf.LossTerms(module.critic(minibatch["obs"]).mean(), {"size": float(len(minibatch["mark"]))})

    def set_schedule(self, values: Mapping[str, float]) -> None:
        pass


class Asking(PPOLoss):
    """A loss that cannot be compiled."""

    def __init__(self) -> None:
        super().__init__(Coefficients())

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        terms = super().__call__(module, target_module, minibatch)
        return terms if terms.total.detach().item() < 1e9 else terms._replace(total=2.0 * terms.total)


def made(
    learns_on: LearnsOn = "workers",
    loss: mf.LossFunction | None = None,
    seed: int = 0,
    model: int = 0,
    compile: Compile = False,
) -> mf.TorchLearner:
    ppo = mf.PPOLoss(mf.Coefficients())
    module = ActorCritic(SEEN, mf.MLP((8,)), mf.MLP((8,)), model)
    return mf.TorchLearner(
        "team",
        module,
        loss or ppo,
        trains_on=mf.EstimatedBatch,
        learning_rate=1e-3,
        max_grad_norm=0.5,
        seed=seed,
        learns_on=learns_on,
        compile=compile,
    )


def shard(rows: int, seed: int) -> mf.Batch:
    return estimated(rows, seed) if rows else no_rows()


def group(world_size: int, compile: Compile = False, loss: mf.LossFunction | None = None) -> list[mf.TorchLearner]:
    """Replicas that have met; each in a thread of its own, as they would be in processes."""
    replicas = [made(loss=loss, compile=compile) for _ in range(world_size)]
    address = replicas[0].lead(world_size)
    others = [lambda rank=rank: replicas[rank].follow(address, rank, world_size) for rank in range(1, world_size)]
    at_once([replicas[0].meet, *others])
    return replicas


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    """The result of each call, or its exception."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.exception() or future.result() for future in futures]


def assert_same(found: mf.TorchLearner, expected: mf.TorchLearner) -> None:
    torch.testing.assert_close(found.parameters.flat.vector, expected.parameters.flat.vector, rtol=0, atol=1e-6)


def assert_same_reports(found: mf.Update, expected: mf.Update) -> None:
    assert found.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    for name in ("rows", "updates", "updates_skipped", "version", "stale_rows_dropped", "rows_carried"):
        assert getattr(found, name) == getattr(expected, name), name
    assert found.staleness_mean == pytest.approx(expected.staleness_mean)


# -- which rows are in which minibatch --------------------------------------------------------------------------------

DIVISIONS = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(any)


@given(DIVISIONS, st.data())
def test_minibatches_are_as_large_as_if_all_rows_were_in_one_place(rows: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, sum(rows)))
    sizes = ShardDivision(rows, range(len(rows)), parts).sizes()
    assert [sum(part) for part in sizes] == share_sizes(sum(rows), parts)
    assert [sum(column) for column in zip(*sizes, strict=True)] == rows
    for number, held in enumerate(rows):
        assert {part[number] for part in sizes} <= {held // parts, held // parts + 1}


@given(DIVISIONS, st.data(), st.integers(0, 2**62))
def test_every_replica_chooses_the_rows_that_one_learner_would(rows: list[int], data: st.DataObject, seed: int) -> None:
    parts = data.draw(st.integers(1, sum(rows)))
    whole = ShardDivision(rows, range(len(rows)), parts)
    order = whole.seeded_order(seed).tolist()
    assert sorted(order) == list(range(sum(rows)))
    minibatches = np.split(order, np.cumsum([sum(part) for part in whole.sizes()])[:-1])
    for number in range(len(rows)):
        own, first = ShardDivision(rows, range(number, number + 1), parts), sum(rows[:number])
        cuts = np.cumsum([part[number] for part in own.sizes()])[:-1]
        for minibatch, mine in zip(minibatches, np.split(own.seeded_order(seed).numpy(), cuts), strict=True):
            assert set(mine + first) == {row for row in minibatch if first <= row < first + rows[number]}


def test_rows_are_shuffled_anew_in_each_epoch_and_each_shard_by_itself() -> None:
    loss = Recording()
    learner, batch = made(loss=loss), estimated(32)
    shards = [mf.EstimatedBatch({**batch.columns, "mark": np.arange(32) + 100 * n}, batch.segments) for n in range(2)]
    learner.update(sharded(shards), 2, 16)
    assert [len(rows) for rows in loss.seen] == [16] * 8
    first, second = ([row for rows in epoch for row in rows] for epoch in (loss.seen[:4], loss.seen[4:]))
    assert sorted(first) == sorted(second) == [*range(32), *range(100, 132)]
    assert first != second
    own, other = ([row % 100 for row in first if row // 100 == number] for number in range(2))
    assert own != other


# -- what is learned --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(40,), (13, 27), (1, 0, 39), (0, 0)])
def test_one_that_stands_for_all_learns_what_any_learner_does_from_all_rows_at_once(sizes: Sequence[int]) -> None:
    batches = [shard(rows, number) for number, rows in enumerate(sizes)]
    found, expected = made(), made("learner")
    for _ in range(3):
        reports = [found.update(sharded(batches), 2), expected.update(sharded(batches), 2)]
        assert_same_reports(*reports)
        torch.testing.assert_close(found.parameters.flat.vector, expected.parameters.flat.vector, rtol=0, atol=1e-7)


# Rows of each replica, epochs, and the least rows of a minibatch: uneven; none for one; none for the first; for nobody.
UPDATES = [((20, 30), 3, 8), ((5, 0), 2, 2), ((0, 7), 2, 3), ((1, 1), 2, 1), ((0, 0), 2, 4), ((40, 9), 1, None)]


def test_replicas_learn_what_one_that_stands_for_all_does() -> None:
    replicas, alone = group(2), made()
    for number, (sizes, epochs, minibatch) in enumerate(UPDATES):
        batches = [shard(rows, 10 * number + rank) for rank, rows in enumerate(sizes)]
        expected = alone.update(sharded(batches), epochs, minibatch)
        calls = [partial(r.update, b, epochs, minibatch) for r, b in zip(replicas, batches, strict=True)]
        for replica, found in zip(replicas, at_once(calls), strict=True):
            assert_same_reports(found, expected)
            assert_same(replica, alone)
            replica.publish()
        alone.publish()
    one, other = (replica.state() for replica in replicas)
    for name in one:  # bit for bit, also what decides which rows come next
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_array_equal(one["generator"], alone.state()["generator"])


def test_a_replica_whose_gradients_are_compiled_learns_what_it_does_by_autograd() -> None:
    # Replicas are processes, of which each traces its loss; here they are threads.
    (compiled,), (eager,) = group(1, True), group(1)
    for seed, rows in enumerate((40, 0, 13)):
        reports = [each.update(shard(rows, seed), 2, 8) for each in (compiled, eager)]
        assert reports[0].note == ""
        assert bool(reports[0].compiles) == bool(rows)
        assert reports[0].loss == pytest.approx(reports[1].loss, rel=1e-3, abs=1e-5)
        torch.testing.assert_close(compiled.parameters.flat.vector, eager.parameters.flat.vector, rtol=1e-4, atol=2e-5)


def test_a_replica_computes_by_autograd_what_cannot_be_compiled_and_says_so_once() -> None:
    (replica,), (eager,) = group(1, "auto", Asking()), group(1, loss=Asking())
    replica.parameters.updates = AUTO_AFTER
    notes = [replica.update(shard(8, seed)).note for seed in range(2)]
    for seed in range(2):
        eager.update(shard(8, seed))
    assert notes[0].startswith("updates are not compiled: item() asks for a tensor's numbers")
    assert notes[1] == ""
    assert torch.equal(replica.parameters.flat.vector, eager.parameters.flat.vector)
    (strict,) = group(1, True, Asking())
    with pytest.raises(InvalidInput, match="compile=true, and item"):
        strict.update(shard(8, 0))


def test_a_step_whose_gradient_is_not_finite_for_one_is_skipped_by_all() -> None:
    replicas, alone = group(2), made()
    batches = [estimated(8, 0), estimated(8, 1)]
    advantage = batches[1].columns["advantage"].copy()
    advantage[3] = np.inf
    batches[1] = mf.EstimatedBatch({**batches[1].columns, "advantage": advantage}, batches[1].segments)
    expected = alone.update(sharded(batches), 3, 4)
    assert (expected.updates, expected.updates_skipped) == (9, 3)
    for replica, found in zip(
        replicas,
        at_once([lambda r=r, b=b: r.update(b, 3, 4) for r, b in zip(replicas, batches, strict=True)]),
        strict=True,
    ):
        assert_same_reports(found, expected)
        assert_same(replica, alone)


def test_what_replicas_dropped_as_stale_is_reported_of_all() -> None:
    replicas, alone = group(2), made()
    batches = [ragged([3, 4], 0), ragged([5], 1)]
    for each in (*replicas, alone):
        each.parameters.version = 2
    for batch in batches:
        batch.columns["version"][:3] = 1

    def prepared(learner: mf.TorchLearner, batch: mf.Batch) -> mf.Batch:
        return mf.Normalize()(mf.Advantages(0.9, 0.9)(mf.DropStale(0)(batch, learner), learner))

    expected = alone.update(sharded([prepared(alone, batch) for batch in batches]), 1, 2)
    assert (expected.stale_rows_dropped, expected.rows) == (12, 0)
    found = at_once([lambda r=r, b=b: r.update(prepared(r, b), 1, 2) for r, b in zip(replicas, batches, strict=True)])
    for report in found:
        assert_same_reports(report, expected)


def test_a_replica_that_leaves_is_missed_by_all() -> None:
    replicas = group(3)
    batches = [estimated(6, rank) for rank in range(3)]
    replicas[1].disband()
    calls = [lambda r=r: replicas[r].update(batches[r], 1, 2) for r in (0, 2)]
    for error in at_once(calls):
        assert isinstance(error, mf.ActorLost)
        assert "policy 'team'" in str(error)


def test_losses_with_noise_and_running_statistics_are_refused() -> None:
    noisy = Recording()
    noisy.noise_per_row = 2  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="learns on the workers, where no learner sees all rows"):
        made(loss=noisy)
