"""An update ends between two minibatches once its limit has passed, in all of a group before the same one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from marlflow.base.limits import ClockLimit
from marlflow.batches.items import Update
from marlflow.learner import gradient_exchange
from marlflow.learner.distributed.replicas import sharded
from marlflow.learner.gradient_exchange import AgreedLimit
from marlflow.learner.learner import LearnsOn
from tests.learner.group import KINDS
from tests.learner.test_replicas import made, shard

ROWS, EPOCHS, LEAST, MINIBATCHES = 50, 3, 8, 18


class PassesAfter:
    """Has passed from its `asks`-th question on."""

    def __init__(self, asks: int) -> None:
        self.left = asks

    def has_passed(self) -> bool:
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("asks", [0, 1, 7, 17])
@pytest.mark.parametrize("kind", KINDS)
def test_an_update_ends_before_the_minibatch_at_which_its_limit_has_passed(kind: str, asks: int) -> None:
    learner, other = KINDS[kind].learner(0), KINDS[kind].learner(0)
    batch = KINDS[kind].batch(ROWS, 0)
    steps = other.update(batch, EPOCHS, LEAST).updates
    before = learner.parameters.flat.vector.clone()
    learner.loop.limit = PassesAfter(asks)
    # Sequences are not split, so there may be fewer minibatches.
    update = learner.update(batch, EPOCHS, LEAST)
    assert (update.updates, update.minibatches_left) == (min(asks, steps), steps - min(asks, steps))
    assert update.rows == EPOCHS * ROWS - round(EPOCHS * ROWS * update.minibatches_left / steps)
    assert update.priorities is None or not update.minibatches_left
    assert learner.updates == update.updates
    assert bool((learner.parameters.flat.vector != before).any()) == (asks > 0)
    learner.loop.limit = ClockLimit()
    assert learner.update(batch, EPOCHS, LEAST).minibatches_left == 0


def test_a_learner_that_was_ended_early_continues_bit_for_bit_from_its_state() -> None:
    learner, resumed = (KINDS["td3"].learner(0) for _ in range(2))
    learner.loop.limit = PassesAfter(7)
    learner.update(KINDS["td3"].batch(ROWS, 0), EPOCHS, LEAST)
    learner.loop.limit = ClockLimit()
    resumed.load_state(learner.state())
    for each in (learner, resumed):
        each.update(KINDS["td3"].batch(ROWS, 1), EPOCHS, LEAST)
    np.testing.assert_equal(learner.state(), resumed.state())


@pytest.mark.parametrize("passes_at", [0, 1])
@pytest.mark.parametrize("learns_on", ["learner", "workers"])
def test_a_group_ends_an_update_before_the_same_minibatch(learns_on: LearnsOn, passes_at: int) -> None:
    learners = [made(learns_on) for _ in range(2)]
    address = learners[0].lead(2)
    learners[passes_at].loop.limit = PassesAfter(1)
    with ThreadPoolExecutor(2) as pool:
        following = pool.submit(learners[1].follow, address, 1, 2)
        learners[0].meet()
        if learns_on == "workers":
            following.result()
        shards = [shard(20, 0), shard(30, 1)]
        batch = sharded(shards) if learns_on == "learner" else shards[0]
        updates: list[Update] = []
        for _ in range(2):
            other = pool.submit(learners[1].update, shards[1], EPOCHS, LEAST) if learns_on == "workers" else None
            updates.append(learners[0].update(batch, EPOCHS, LEAST))
            if other is not None:
                assert other.result() == updates[-1]
        learners[0].disband()
        following.result()
        learners[1].disband()
    assert 0 < updates[0].updates < MINIBATCHES
    assert updates[0].updates + updates[0].minibatches_left == MINIBATCHES
    assert (updates[1].updates, updates[1].rows, updates[1].minibatches_left) == (0, 0, MINIBATCHES)
    np.testing.assert_array_equal(*(each.parameters.flat.vector.numpy() for each in learners))


@pytest.mark.parametrize(
    ("minibatch_s", "minibatches", "most_asks"), [(0.001, 10_000, 50), (0.1, 100, 40), (5.0, 10, 10), (0.0, 5_000, 30)]
)
def test_a_group_agrees_about_twice_a_second(
    minibatch_s: float, minibatches: int, most_asks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, sums = 0.0, 0

    def sum_over_three(numbers: list[float]) -> list[float]:
        nonlocal sums
        sums += 1
        return [3 * number for number in numbers]

    monkeypatch.setattr(gradient_exchange, "perf_counter", lambda: now_s)
    agreed, late = AgreedLimit(sum_over_three, 3), 0
    for _ in range(minibatches):
        assert not agreed.has_passed(ClockLimit())
        now_s += minibatch_s
    assert 1 < sums <= most_asks
    while not agreed.has_passed(ClockLimit(0.0)):
        late += 1
        now_s += minibatch_s
    assert late * minibatch_s <= 0.6
