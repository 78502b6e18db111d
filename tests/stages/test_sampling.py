"""The driver's stages: rounds are divided by policy, and gathered until there is enough at the end of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.items import Fragment, Packed
from marlflow.flow import Executor, Plan, source
from marlflow.sampling.protocol import EvaluationRequest, Request, Round
from marlflow.sampling.receipts import EpisodeResult
from marlflow.stages import ByPolicy, Collect, Concat


def fragment(rows: int, round: int = 0, closes: bool = True, policy: str = "hunter", worker: int = 0) -> Fragment:
    name = f"{policy} {round}.{worker}"
    return Fragment(policy, worker, round, closes, rows, 0, (name,))


def given_by(concat: Concat, item: Fragment) -> list[Any]:
    """What it gives for an item: packed rows, which stand for the batch that a place will open."""
    return list(concat.add(item))


# The rows of each worker in each round.
rounds_of_workers = st.integers(1, 4).flatmap(
    lambda workers: st.lists(st.lists(st.integers(0, 30), min_size=workers, max_size=workers), min_size=1, max_size=15)
)


@given(rounds=rounds_of_workers, wanted=st.integers(0, 100))
def test_all_that_is_held_leaves_at_the_end_of_the_first_round_with_enough(
    rounds: list[list[int]], wanted: int
) -> None:
    concat = Concat(agent_steps=wanted)
    held: list[str] = []
    rows = 0
    for number, workers in enumerate(rounds):
        for worker, count in enumerate(workers):
            last = worker == len(workers) - 1
            made = given_by(concat, fragment(count, number, last, worker=worker))
            rows += count
            held += [f"hunter {number}.{worker}"] * (count > 0)
            if not last:
                assert not made, "it gave a batch in the middle of a round"
        if rows >= max(1, wanted):
            assert made == [Packed(rows, tuple(held))]
            held, rows = [], 0
        else:
            assert not made
    assert sum(one.rows for one in concat.held) == rows


def test_fragments_without_rows_are_never_kept_nor_handed_on() -> None:
    concat = Concat(agent_steps=0)
    assert given_by(concat, fragment(0)) == []
    assert concat.held == []
    given_by(concat, fragment(0, closes=False))
    assert given_by(concat, fragment(3)) == [Packed(3, ("hunter 0.0",))]
    given_by(concat, fragment(4, closes=False))
    assert given_by(concat, fragment(0, worker=1)) == [Packed(4, ("hunter 0.0",))]


def test_rows_that_were_dropped_from_outside_do_not_count() -> None:
    concat = Concat(agent_steps=5)
    given_by(concat, fragment(4, closes=False))
    concat.held.clear()
    assert given_by(concat, fragment(4)) == []
    assert given_by(concat, fragment(1, round=1)) == [Packed(5, ("hunter 0.0", "hunter 1.0"))]


def test_an_emitted_batch_does_not_change_afterwards() -> None:
    concat = Concat(agent_steps=1)
    (first,) = given_by(concat, fragment(2))
    given_by(concat, fragment(5, round=1, closes=False))
    assert first == Packed(2, ("hunter 0.0",))


def test_two_gathers_share_nothing() -> None:
    one, other = Concat(agent_steps=5), Concat(agent_steps=5)
    given_by(one, fragment(4))
    assert given_by(other, fragment(4)) == []
    assert other.held == [fragment(4)]


def test_each_fragment_goes_to_its_policy_in_order() -> None:
    fragments = [fragment(1, worker=worker, policy=policy) for worker in (0, 1) for policy in ("hunter", "prey")]
    routed = list(ByPolicy()(Round(0, (), fragments)))
    assert [policy for policy, _ in routed] == ["hunter", "prey", "hunter", "prey"]
    assert [found for _, found in routed] == fragments
    assert list(ByPolicy()(Round(0, (), ()))) == []


class Rounds:
    """Workers that keep what they were asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.under_way = 0

    async def collect(self, request: Request) -> Round:
        self.asked.append(request)
        return Round(request.round, (), [fragment(request.round + 1, request.round)])

    async def evaluate(self, request: EvaluationRequest) -> Sequence[EpisodeResult]:
        raise AssertionError("nobody asked for an evaluation")


def test_collect_makes_a_round_for_each_request_and_ends_with_none() -> None:
    requests = [Request(number, {}, {"hunter": {"epsilon": 0.1 * number}}) for number in range(3)]
    workers, waiting = Rounds(), [*requests, None]
    seen: list[Round] = []
    plan = Plan("rounds", output=source(Collect(workers, lambda: waiting.pop(0))))
    Executor(plan, lambda _, item: seen.append(item)).run_sync()
    assert workers.asked == requests
    assert [round.number for round in seen] == [0, 1, 2]
    assert [round.rows for round in seen] == [1, 2, 3]


def test_collect_ends_before_it_asks_the_workers() -> None:
    workers = Rounds()
    with pytest.raises(StopIteration):
        Collect(workers, lambda: None)()
    assert workers.asked == []
