"""Neighboring stages run one after the other, each timed and named by its place in the row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.batch import Batch
from marlflow.flow.protocols import EndOfFlow, OperatorRaised, StageCall, stage_call
from marlflow.runtime.stage_chain import merge_payloads, run_chain


class Rows:
    """An item that represents rows."""

    def __init__(self, rows: int) -> None:
        self.rows = rows


def batch_of(first: int, rows: int) -> Batch:
    return Batch({"reward": np.arange(first, first + rows, dtype=np.float64)}, {"length": np.array([rows])})


@given(items=st.lists(st.integers(0, 50), max_size=8), depth=st.integers(1, 4))
def test_each_item_goes_through_all_operators_in_order(items: list[int], depth: int) -> None:
    calls: list[tuple[int, int]] = []

    def operator(position: int) -> Any:
        def add(item: Rows) -> Rows:
            calls.append((position, item.rows))
            return Rows(item.rows + 1)

        return add

    outputs, times = run_chain([operator(position) for position in range(depth)], [Rows(rows) for rows in items])
    assert [output.rows for output in outputs] == [rows + depth for rows in items]
    assert calls == [(position, rows + position) for rows in items for position in range(depth)]
    assert [spent.rows for spent in times] == [sum(items) + len(items) * (at + 1) for at in range(depth)]
    assert all(spent.ended_s >= spent.began_s for spent in times)
    assert all(before.ended_s == after.began_s for before, after in pairwise(times))


def test_only_the_first_operator_is_a_source() -> None:
    turns = iter([3, 4])

    def passes(item: Any) -> Any:
        return item

    outputs, _ = run_chain([stage_call(lambda: next(turns), is_source=True), passes], [None, None])
    assert outputs == [3, 4]
    # None that an operator returned is an item like any other.
    outputs, _ = run_chain([lambda item: None, lambda item: (item, "seen")], ["x"])
    assert outputs == [(None, "seen")]


@pytest.mark.parametrize("end", [StopIteration, EndOfFlow])
def test_a_source_that_ends_gives_fewer_outputs_than_turns(end: type[Exception]) -> None:
    left = [3, 4]

    def turn() -> int:
        if not left:
            raise end
        return left.pop(0)

    outputs, times = run_chain([stage_call(turn, is_source=True), abs], [None] * 4)
    assert outputs == [3, 4]
    assert len(times) == 2


@pytest.mark.parametrize("end", [StopIteration, EndOfFlow])
def test_only_a_source_may_end_a_flow(end: type[Exception]) -> None:
    def ends(item: int) -> int:
        raise end

    for operators, items, position in (([ends], [1], 0), ([stage_call(lambda: 1, is_source=True), ends], [None], 1)):
        with pytest.raises(OperatorRaised) as caught:
            run_chain(operators, items)
        assert caught.value.position == position


def test_a_stage_that_would_end_the_process_has_failed_but_ray_may_end_it() -> None:
    ends, of_ray = SystemExit("no data"), SystemExit(1)
    of_ray.ray_terminate_msg = "The process receives a SIGTERM."  # type: ignore[attr-defined]

    def fails(error: SystemExit) -> int:
        raise error

    with pytest.raises(OperatorRaised) as caught:
        run_chain([fails], [ends])
    assert caught.value.reason == "SystemExit: no data"
    with pytest.raises(SystemExit):
        run_chain([fails], [of_ray])


@pytest.mark.parametrize("position", [0, 1, 2])
def test_who_raised_is_named_by_position_and_its_own_error_is_the_cause(position: int) -> None:
    def fails(item: int) -> int:
        raise KeyError("mine")

    operators = [fails if at == position else abs for at in range(3)]
    with pytest.raises(OperatorRaised) as caught:
        run_chain(operators, [1])
    assert caught.value.position == position
    assert caught.value.reason == "KeyError: 'mine'"
    cause = caught.value.__cause__
    assert isinstance(cause, KeyError)
    assert cause.__traceback__ is not None


class Doubling:
    """Doubles up to `most` items in one call."""

    def __init__(self, most: int, short: bool = False) -> None:
        self.most, self.short, self.sizes = most, short, list[int]()

    def __call__(self, item: Rows | None) -> Rows:
        self.sizes.append(0)
        return Rows(2 * (1 if item is None else item.rows))

    def ahead(self, at: Any, after: Sequence[StageCall]) -> int:
        return self.most

    def several(self, items: Sequence[Any], at: Any, after: Sequence[StageCall]) -> Sequence[Rows]:
        self.sizes.append(len(items))
        return [Rows(2 * item.rows) for item in items][: len(items) - self.short]


@given(items=st.lists(st.integers(1, 50), max_size=12), first=st.integers(0, 5), second=st.integers(0, 5))
def test_operators_run_ahead_by_what_all_of_them_may(items: list[int], first: int, second: int) -> None:
    leading, seen = [Doubling(first), Doubling(second)], list[int]()

    def note(item: Rows) -> Rows:
        seen.append(item.rows)
        return item

    calls = [*(stage_call(operator) for operator in leading), stage_call(note)]
    outputs, times = run_chain(calls, [Rows(rows) for rows in items])
    assert [output.rows for output in outputs] == [4 * rows for rows in items] == seen
    assert [spent.rows for spent in times] == [2 * sum(items), 4 * sum(items), 4 * sum(items)]
    most = min(first, second)
    # One at a time if one of them may not.
    sizes = [min(most, len(items) - at) for at in range(0, len(items), most)] if most else [0] * len(items)
    assert leading[0].sizes == leading[1].sizes == sizes


def test_an_operator_runs_ahead_only_at_the_start_of_a_chain() -> None:
    later = Doubling(4)
    outputs, _ = run_chain([stage_call(lambda item: item), stage_call(later)], [Rows(1), Rows(2)])
    assert ([output.rows for output in outputs], later.sizes) == ([2, 4], [0, 0])


def test_an_operator_that_loses_items_on_the_way_is_named() -> None:
    with pytest.raises(OperatorRaised, match="it returned 2 outputs for 3 items") as caught:
        run_chain([stage_call(Doubling(3)), stage_call(Doubling(3, short=True))], [Rows(1)] * 3)
    assert caught.value.position == 1


def test_one_payload_is_taken_as_it_is_and_several_become_one_batch() -> None:
    one = batch_of(0, 3)
    assert merge_payloads([one]) is one
    both = merge_payloads([one, batch_of(3, 2)])
    assert both.columns["reward"].tolist() == [0, 1, 2, 3, 4]
    assert both.segments["length"].tolist() == [3, 2]


def test_who_returned_none_is_named_if_the_stage_after_it_breaks_on_it() -> None:
    calls: list[Any] = [abs, lambda _: None, abs]
    with pytest.raises(
        OperatorRaised, match=r"it returned None, which the stage after it cannot take \(TypeError"
    ) as caught:
        run_chain(calls, [1])
    assert caught.value.position == 1
    with pytest.raises(OperatorRaised, match="TypeError: bad operand") as caught:
        run_chain([abs], [None])
    assert caught.value.position == 0
