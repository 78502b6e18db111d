"""Neighboring stages run one after the other, each timed and named by its place in the row."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.batch import Batch
from marlflow.flow.protocols import EndOfFlow, OperatorRaised, stage_call
from marlflow.runtime.stage_chain import merge_payloads, run_chain


class Rows:
    """An item that stands for rows."""

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


def test_one_payload_is_taken_as_it_is_and_several_become_one_batch() -> None:
    one = batch_of(0, 3)
    assert merge_payloads([one]) is one
    both = merge_payloads([one, batch_of(3, 2)])
    assert both.columns["reward"].tolist() == [0, 1, 2, 3, 4]
    assert both.segments["length"].tolist() == [3, 2]
