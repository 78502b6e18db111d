"""A group of learners in several processes learns what one learner does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.compiled import xla
from marlflow.learner.compiled_updates import AUTO_AFTER
from marlflow.learner.distributed import collective
from marlflow.learner.minibatches import EqualDivision, share_sizes
from marlflow.learner.update_job import merge_priorities, merge_steps
from tests.learner.group import KINDS, Process, processes


@pytest.fixture(scope="module")
def others() -> Iterator[Sequence[Process]]:
    with processes(2) as started:
        yield started


def led(kind: str, others: Sequence[Process]) -> mf.TorchLearner:
    """A learner that `others` follow."""
    learner, world_size = KINDS[kind].learner(0), 1 + len(others)
    address = learner.lead(world_size)
    for rank, other in enumerate(others, 1):
        other.follow(kind, address, rank, world_size)
    learner.meet()
    return learner


def assert_same(learner: mf.TorchLearner, alone: mf.TorchLearner) -> None:
    torch.testing.assert_close(learner.parameters.flat.vector, alone.parameters.flat.vector, rtol=1e-5, atol=1e-7)
    assert torch.equal(learner.loop.generator.get_state(), alone.loop.generator.get_state())


def assert_followed(learner: mf.TorchLearner, others: Sequence[Process]) -> None:
    """Ends the group: each follower has the leader's parameters, bit for bit."""
    learner.disband()
    for other in others:
        np.testing.assert_array_equal(other.answer()["vector"], learner.parameters.flat.vector.numpy())


def assert_same_reports(found: mf.Update, expected: mf.Update) -> None:
    assert found.loss == pytest.approx(expected.loss, rel=1e-4, abs=1e-6)
    assert (found.rows, found.updates, found.updates_skipped) == (
        expected.rows,
        expected.updates,
        expected.updates_skipped,
    )
    if expected.priorities is None:
        assert found.priorities is None
    else:
        np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-4, atol=1e-6)


def test_followers_get_what_a_stage_has_changed_in_the_leader(others: Sequence[Process]) -> None:
    learner, alone = led("ppo", others[:1]), KINDS["ppo"].learner(0)
    for seed in range(3):
        batch = KINDS["ppo"].batch(30, seed)
        found, expected = (each.update(batch, 2, 8) for each in (learner, alone))
        assert_same_reports(found, expected)
        for each in (learner, alone):
            with torch.no_grad():
                for parameter in each.module.parameters():
                    parameter.mul_(0.9)
    for each in (learner, alone):
        each.update(KINDS["ppo"].batch(30, 9), 1, 8)
    assert_same(learner, alone)
    assert_followed(learner, others[:1])


# Rows, epochs and the least rows of a minibatch: many steps; uneven shares; shares of one row and of none; no rows.
UPDATES = [(50, 3, 8), (7, 2, None), (4, 2, 1), (1, 1, None), (0, 2, 4), (23, 1, 5)]


@pytest.mark.parametrize("world_size", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_group_learns_what_one_learner_does(kind: str, world_size: int, others: Sequence[Process]) -> None:
    present = others[: world_size - 1]
    learner, alone = led(kind, present), KINDS[kind].learner(0)
    for seed, (rows, epochs, minibatch) in enumerate(UPDATES):
        batch = KINDS[kind].batch(rows, seed)
        found, expected = (each.update(batch, epochs, minibatch) for each in (learner, alone))
        assert_same_reports(found, expected)
        assert_same(learner, alone)
        for each in (learner, alone):
            each.set_schedule({"learning_rate": 1e-3 / (seed + 2), "extra_losses.floor.coefficient": 0.1 * seed})
            if each.parameters.target_module is not None:
                each.sync_target()
    learner.disband()
    states = [learner.state(), *(other.answer() for other in present)]
    parts = {
        name
        for name in states[0]
        if name in ("vector", "target", "reference", "generator") or name.startswith("optimizer/")
    }
    assert len(parts) >= 5
    for name in parts:
        for state in states[1:]:
            np.testing.assert_array_equal(state[name], states[0][name])
    learner.update(KINDS[kind].batch(5, 0))  # alone again


@pytest.mark.parametrize("kind", ["ppo", "recurrent ppo", "r2d2", "td3", "sac"])
def test_a_group_whose_gradients_are_compiled_learns_what_one_learner_does(
    kind: str, others: Sequence[Process]
) -> None:
    learner, alone = led(kind, others[:1]), KINDS[kind].learner(0)
    # Enough for compile=auto, here and in the follower, which the leader tells.
    learner.parameters.updates = AUTO_AFTER
    compiles = 0
    for seed, (rows, epochs, minibatch) in enumerate([(50, 2, 16), (7, 2, None), (1, 1, None), (23, 1, 8)]):
        batch = KINDS[kind].batch(rows, seed)
        found, expected = (each.update(batch, epochs, minibatch) for each in (learner, alone))
        assert found.note == ""
        compiles += found.compiles
        assert found.loss == pytest.approx(expected.loss, rel=1e-3, abs=1e-5)
        counts = ("rows", "updates", "updates_skipped")
        assert [getattr(found, name) for name in counts] == [getattr(expected, name) for name in counts]
        if expected.priorities is not None:
            np.testing.assert_allclose(found.priorities, expected.priorities, rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(learner.parameters.flat.vector, alone.parameters.flat.vector, rtol=1e-4, atol=2e-5)
        assert torch.equal(learner.loop.generator.get_state(), alone.loop.generator.get_state())
    assert compiles
    assert_followed(learner, others[:1])


def test_a_process_that_cannot_compile_learns_with_one_that_does_and_says_so_once(
    others: Sequence[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(xla, "problem", lambda: "jax cannot be imported")
    learner = led("sac", others[:1])
    learner.parameters.updates = AUTO_AFTER
    notes = [learner.update(KINDS["sac"].batch(9, seed), 1, 4).note for seed in range(2)]
    # The steps of its three loss groups.
    assert notes == ["updates are not compiled: jax cannot be imported", ""]
    assert_followed(learner, others[:1])


def test_followers_train_the_groups_that_the_leader_trains(others: Sequence[Process]) -> None:
    learner, alone = led("sac", others), KINDS["sac"].learner(0)
    for seed, groups in enumerate([("critics",), ("critics",), ("actor", "temperature"), ("critics",), None]):
        batch = KINDS["sac"].batch(11, seed)
        found, expected = (each.update(batch, 2, 4, groups=groups) for each in (learner, alone))
        assert_same_reports(found, expected)
        assert_same(learner, alone)
    steps = {name: learner.state()[f"optimizer/{name}/steps"] for name in ("critics", "actor", "temperature")}
    assert {name: int(count) for name, count in steps.items()} == {"critics": 16, "actor": 8, "temperature": 8}
    assert_followed(learner, others)


def test_a_state_loaded_later_reaches_the_followers(others: Sequence[Process]) -> None:
    learner, alone, batch = led("dqn", others), KINDS["dqn"].learner(0), KINDS["dqn"].batch(20, 0)
    kept = learner.state()
    learner.update(batch, 2, 4)
    learner.load_state(kept)
    for each in (learner, alone):
        each.resume_above(6)
        each.update(batch, 2, 4)
    assert_same(learner, alone)
    assert (learner.version, alone.version) == (7, 7)
    assert_followed(learner, others)


def test_a_reset_reaches_the_followers(others: Sequence[Process]) -> None:
    learner, alone, batch = led("dqn", others), KINDS["dqn"].learner(3), KINDS["dqn"].batch(20, 0)
    learner.update(batch, 2, 4)
    learner.publish()
    learner.reset(KINDS["dqn"].learner(3))
    for each in (learner, alone):
        each.update(batch, 2, 4)
    assert_same(learner, alone)
    assert learner.version == 2
    assert_followed(learner, others)


def test_a_step_whose_gradient_is_not_finite_is_skipped_by_all(others: Sequence[Process]) -> None:
    kind = "ppo by autograd"
    learner, alone, batch = led(kind, others), KINDS[kind].learner(0), KINDS[kind].batch(12, 0)
    advantage = batch.columns["advantage"].copy()
    advantage[-1] = np.inf  # of one row, and so in one process
    poisoned = mf.EstimatedBatch({**batch.columns, "advantage": advantage}, batch.segments)
    found, expected = (each.update(poisoned, 2, 4) for each in (learner, alone))
    assert found.updates_skipped == 2
    assert_same_reports(found, expected)
    assert_same(learner, alone)
    assert_followed(learner, others)


def test_two_groups_at_once(others: Sequence[Process]) -> None:
    groups = [led(kind, [other]) for kind, other in zip(("ppo", "dqn"), others, strict=True)]
    lone = [KINDS[kind].learner(0) for kind in ("ppo", "dqn")]
    for seed in range(3):
        for kind, learner, alone in zip(("ppo", "dqn"), groups, lone, strict=True):
            for each in (learner, alone):
                each.update(KINDS[kind].batch(9, seed), 2, 3)
            assert_same(learner, alone)
    for learner, other in zip(groups, others, strict=True):
        assert_followed(learner, [other])


def test_a_process_that_dies_is_an_error_to_all_others() -> None:
    with processes(2) as (first, second):
        learner, batch = led("ppo", [first, second]), KINDS["ppo"].batch(12, 0)
        learner.update(batch, 1, 4)
        first.kill()
        with pytest.raises(mf.ActorLost, match=r"policy 'hunter' work as a group of 3, and one of them was lost"):
            learner.update(batch, 1, 4)
        with pytest.raises(mf.ActorLost, match="this one has left"):
            learner.update(batch, 1, 4)
        assert "seen by the one of rank 2" in second.answer()
        learner.disband()
        # The leader's turn to die, in the process that is left.
        second.connection.send(("lead", "dqn"))
        follower = KINDS["dqn"].learner(0)
        with pytest.raises(mf.ActorLost, match="policy 'prey'"):
            follower.follow(second.answer(), 1, 2)
        assert follower.parameters.groups[0].optimizer.steps == 1


def test_a_leader_that_fails_leaves_nobody_waiting(others: Sequence[Process]) -> None:
    learner, batch = led("ppo", others), KINDS["ppo"].batch(12, 0)

    def broken(*_: object) -> None:
        raise ZeroDivisionError

    learner.parameters.groups[0].loss = broken
    with pytest.raises(ZeroDivisionError):
        learner.update(batch, 1, 4)
    for rank, other in enumerate(others, 1):
        assert f"seen by the one of rank {rank}" in other.answer()


def test_followers_that_stay_away_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "MEETING_TIMEOUT_S", 0.1)
    learner = KINDS["ppo"].learner(0)
    learner.lead(2)
    with pytest.raises(mf.ActorLost, match="policy 'hunter'"):
        learner.update(KINDS["ppo"].batch(3, 0))


# -- shares ---------------------------------------------------------------------------------------------------------


@given(rows=st.integers(0, 40), count=st.integers(1, 6))
def test_shares_are_those_of_tensor_split(rows: int, count: int) -> None:
    every = torch.arange(rows)
    assert [share.tolist() for share in every.split(share_sizes(rows, count))] == [
        share.tolist() for share in every.tensor_split(count)
    ]


@given(rows=st.integers(1, 40), parts=st.integers(1, 6), count=st.integers(1, 5), seed=st.integers(0, 99))
def test_what_all_found_is_what_one_would_have_found(rows: int, parts: int, count: int, seed: int) -> None:
    parts = min(parts, rows)
    values = torch.rand(rows, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    by_rank: list[list[torch.Tensor]] = [[] for _ in range(count)]
    for minibatch in values.tensor_split(parts):
        for rank, own in enumerate(minibatch.tensor_split(count)):
            by_rank[rank].append(own)
    sizes = EqualDivision(rows, parts, 0, count).sizes()
    for rank, own in enumerate(by_rank):
        division = EqualDivision(rows, parts, rank, count)
        for mine, expected in zip(division.split(values), own, strict=True):
            assert torch.equal(mine, expected)
        assert division.fractions() == [share[rank] / sum(share) for share in sizes]
    steps = [[[own.mean().item(), 1.0] for own in owned if len(own)] for owned in by_rank]
    for found, minibatch in zip(merge_steps(steps, sizes), values.tensor_split(parts), strict=True):
        assert found == pytest.approx([minibatch.mean().item(), 1.0])
    together = merge_priorities([torch.cat(owned) for owned in by_rank], sizes)
    assert [found.tolist() for found in together] == [part.tolist() for part in values.tensor_split(parts)]


def test_gradients_that_were_found_apart_are_applied_by_all(others: Sequence[Process]) -> None:
    kind = "ppo by autograd"
    learner, alone, batch = led(kind, others), KINDS[kind].learner(0), KINDS[kind].batch(12, 0)
    for each in (learner, alone):
        each.apply(alone.gradients(batch))
        each.update(batch, 1, 4)
    assert_same(learner, alone)
    assert_followed(learner, others)
