"""The stages that belong to a learner: what is too old goes whole, and versions and targets come when they are due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import marlflow as mf
from marlflow.flow.protocols import StageCall, stage_call
from marlflow.runtime.stage_chain import run_chain


class Tiny(nn.Module):
    """One parameter that acts, and one that values: V(obs) = weight * obs."""

    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(1, 1, bias=False)
        self.value = nn.Parameter(torch.tensor([2.0]))

    def critic(self, obs: Tensor) -> Tensor:
        return obs.float().reshape(-1) * self.value


class Downhill:
    """Each step lowers the acting parameter; a minibatch with `poison` in it has no finite gradient."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        poison = minibatch["poison"].mean() if "poison" in minibatch else torch.tensor(0.0)
        total = module.actor.weight.sum() * torch.exp(poison)
        return mf.LossTerms(total, {"weight": total.detach()})

    def set_schedule(self, values: Mapping[str, float]) -> None: ...


def make_learner(target: bool = False) -> mf.TorchLearner:
    torch.manual_seed(0)
    return mf.TorchLearner("hunter", Tiny(), Downhill(), trains_on=mf.EstimatedBatch, learning_rate=0.1, target=target)


def make_batch(segments: Sequence[tuple[Sequence[int], bool]], terminated: Sequence[bool] = ()) -> mf.Batch:
    """Segments given by the versions of their rows and whether the first was carried; obs and rewards count up."""
    length = np.array([len(versions) for versions, _ in segments], np.int64)
    rows = int(length.sum())
    obs = np.arange(rows, dtype=np.float32)[:, None]
    return mf.Batch(
        {
            "obs": obs,
            "reward": np.arange(rows, dtype=np.float64) + 1.0,
            "version": np.array([version for versions, _ in segments for version in versions], np.int64),
        },
        {
            "length": length,
            "carried": np.array([carried for _, carried in segments], bool),
            "terminated": np.array(terminated or [False] * len(segments), bool),
            "bootstrap_obs": np.full((len(segments), 1), 100.0, np.float32),
        },
    )


def chain(learner: mf.TorchLearner, *operators: Any) -> list[StageCall]:
    """The calls of these operators at the learner."""
    return [stage_call(operator, learner) for operator in operators]


def at_version(version: int) -> mf.TorchLearner:
    learner = make_learner()
    for _ in range(version):
        learner.publish()
    return learner


# -- DropStale ------------------------------------------------------------------------------------------------------


def test_a_segment_with_a_row_too_old_goes_whole_and_the_next_update_counts_its_rows() -> None:
    learner = at_version(3)
    batch = make_batch([([3, 3], False), ([2, 3, 3], False), ([3], False)])
    kept = mf.DropStale(max_staleness=0)(batch, learner)
    assert kept.columns["obs"][:, 0].tolist() == [0, 1, 5]
    assert kept.segments["length"].tolist() == [2, 1]
    learn = stage_call(mf.Learn(), learner)
    assert learn(kept).stale_rows_dropped == 3
    assert learn(kept).stale_rows_dropped == 0


def test_what_several_batches_lost_is_reported_together() -> None:
    learner = at_version(2)
    drop = stage_call(mf.DropStale(max_staleness=0), learner)
    drop(make_batch([([1, 1], False)]))
    kept = drop(make_batch([([0], False), ([2], False)]))
    assert mf.Learn()(kept, learner).stale_rows_dropped == 3


def test_a_carried_row_is_exempt_and_only_it() -> None:
    drop = stage_call(mf.DropStale(max_staleness=0), at_version(5))
    fresh = make_batch([([1, 5, 5], True)])
    assert drop(fresh) is fresh
    assert drop(make_batch([([1, 4, 5], True), ([5], False)])).rows == 1
    assert drop(make_batch([([4, 5, 5], False), ([5], True)])).rows == 1


segment = st.tuples(st.lists(st.integers(0, 6), min_size=1, max_size=5), st.booleans())


@given(segments=st.lists(segment, max_size=6), now=st.integers(0, 6), allowed=st.integers(0, 3))
def test_what_is_kept_is_what_a_plain_loop_keeps(
    segments: list[tuple[list[int], bool]], now: int, allowed: int
) -> None:
    learner = at_version(now)
    kept = mf.DropStale(allowed)(make_batch(segments), learner)
    expected, first = [], 0
    for versions, carried in segments:
        own = range(first, first + len(versions))
        first += len(versions)
        if all(now - version <= allowed for version in versions[carried:]):
            expected += list(own)
    assert kept.columns["obs"][:, 0].tolist() == expected
    assert kept.rows + learner.stale_rows_dropped == first


def test_a_batch_that_becomes_empty_passes_and_publishes_nothing() -> None:
    learner = at_version(2)
    estimate = mf.DropStale(0), mf.Advantages(0.9, 0.8), mf.Normalize()
    stages = chain(learner, *estimate, mf.Learn(epochs=3, minibatch=2), mf.Publish())
    (update,), times = run_chain(stages, [make_batch([([0, 1], False), ([1], False)])])
    assert isinstance(update, mf.Update)
    assert (update.rows, update.updates, update.stale_rows_dropped, update.version) == (0, 0, 3, 2)
    assert learner.version == 2
    assert [spent.rows for spent in times] == [0, 0, 0, 0, 0]
    (update,), _ = run_chain(stages, [make_batch([([2, 2], False)])])
    assert (update.rows, update.updates, update.stale_rows_dropped) == (6, 3, 0)
    assert learner.version == 3


def test_a_batch_without_segments_passes_too() -> None:
    learner = at_version(1)
    stages: list[Any] = [
        stage_call(mf.DropStale(0), learner),
        stage_call(mf.Advantages(0.9, 0.8), learner),
        stage_call(mf.Normalize(), learner),
        stage_call(mf.Learn(), learner),
    ]
    (update,), _ = run_chain(stages, [make_batch([])])
    assert (update.rows, update.updates, update.stale_rows_dropped) == (0, 0, 0)


# -- Advantages -----------------------------------------------------------------------------------------------------


def naive_advantages(batch: mf.Batch, discount: float, gae_lambda: float) -> list[float]:
    """One segment after the other, from its end; V(obs) = 2 obs."""
    found, first = [], 0
    for number, length in enumerate(batch.segments["length"]):
        value_after = 0.0 if batch.segments["terminated"][number] else 200.0
        later, own = 0.0, []
        for row in reversed(range(first, first + length)):
            value = 2.0 * float(batch.columns["obs"][row, 0])
            later = batch.columns["reward"][row] + discount * value_after - value + discount * gae_lambda * later
            own.append(later)
            value_after = value
        found += own[::-1]
        first += length
    return found


@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=5),
    terminated=st.lists(st.booleans(), min_size=5, max_size=5),
    discount=st.sampled_from([0.0, 0.9, 1.0]),
    gae_lambda=st.sampled_from([0.0, 0.7, 1.0]),
)
def test_advantages_are_those_of_a_plain_loop(
    lengths: list[int], terminated: list[bool], discount: float, gae_lambda: float
) -> None:
    batch = make_batch([([0] * length, False) for length in lengths], terminated[: len(lengths)])
    learner = make_learner()
    raw = mf.Advantages(discount, gae_lambda)(batch, learner)
    expected = np.array(naive_advantages(batch, discount, gae_lambda))
    np.testing.assert_allclose(raw.columns["advantage"], expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(raw.columns["value"], 2.0 * batch.columns["obs"][:, 0])
    np.testing.assert_allclose(raw.columns["value_target"], expected + raw.columns["value"], rtol=1e-5, atol=1e-4)
    normal = mf.Normalize()(raw)
    scaled = (expected - expected.mean()) / (expected.std() + 1e-8)
    np.testing.assert_allclose(normal.columns["advantage"], scaled, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(normal.columns["value_target"], raw.columns["value_target"])
    assert batch.columns.keys() == {"obs", "reward", "version"}


# -- SyncTarget and Publish -----------------------------------------------------------------------------------------


def due(steps: Sequence[int], every: int) -> list[bool]:
    """After which items at least `every` optimizer steps were taken since it was last due."""
    since, found = 0, []
    for count in steps:
        since += count
        found.append(since >= every)
        since = 0 if found[-1] else since
    return found


@given(
    steps=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    publish_every=st.integers(1, 7),
    sync_every=st.integers(1, 7),
)
def test_versions_and_targets_come_every_so_many_updates(steps: list[int], publish_every: int, sync_every: int) -> None:
    learner = make_learner(target=True)
    after = chain(learner, mf.SyncTarget(sync_every), mf.Publish(publish_every))
    one, none = make_batch([([0], False)]), make_batch([])
    published, synced, versions = [], [], [learner.published[learner.name].version]
    for count in steps:
        before, learner_was = learner.version, float(learner.parameters.target_module.actor.weight)
        run_chain([stage_call(mf.Learn(epochs=max(1, count)), learner), *after], [one if count else none])
        published.append(learner.version > before)
        synced.append(float(learner.parameters.target_module.actor.weight) != learner_was)
        versions += [learner.published[learner.name].version] * published[-1]
        assert synced[-1] == (learner.updates_when_synced == learner.updates and count > 0)
        if published[-1]:
            np.testing.assert_array_equal(
                learner.published[learner.name].flat, learner.module.actor.weight.detach().numpy().ravel()
            )
    assert published == due(steps, publish_every)
    assert synced == due(steps, sync_every)
    assert learner.updates == sum(steps)
    assert versions == list(range(len(versions)))


def test_a_version_stays_as_it_was_published() -> None:
    learner = make_learner()
    stages = chain(learner, mf.Learn(), mf.Publish())
    handed_out = [learner.published[learner.name]]
    for _ in range(4):
        run_chain(stages, [make_batch([([0], False)])])
        handed_out.append(learner.published[learner.name])
    assert [weights.version for weights in handed_out] == [0, 1, 2, 3, 4]
    acting = [float(weights.flat[0]) for weights in handed_out]
    assert acting == sorted(acting, reverse=True)
    assert len(set(acting)) == 5


def test_steps_that_were_skipped_count_towards_nothing() -> None:
    learner = make_learner(target=True)
    batch = make_batch([([0], False)]).with_columns(poison=np.array([np.inf], np.float32))
    stages: list[Any] = [
        stage_call(mf.Learn(epochs=2), learner),
        stage_call(mf.SyncTarget(1), learner),
        stage_call(mf.Publish(), learner),
    ]
    (update,), _ = run_chain(stages, [batch])
    assert update.updates == 0
    assert update.updates_skipped == 2
    assert (learner.version, learner.updates_when_synced) == (0, 0)


@pytest.mark.parametrize(("max_staleness", "now"), [(0, 4), (2, 6)])
def test_staleness_is_the_learners_version_less_that_of_the_rows(max_staleness: int, now: int) -> None:
    learner = at_version(now)
    batch = make_batch([([4, 4, 4], False), ([now], True)])
    update = mf.Learn()(mf.DropStale(max_staleness)(batch, learner), learner)
    assert update.staleness_mean == pytest.approx((now - 4) * 3 / 4)
    assert update.rows_carried == 1
