"""A round names every fragment by its worker, and closes with its last worker, for each policy."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marlflow.runtime.protocol import make_round
from marlflow.sampling.receipts import PolicyReceipt, Receipt

POLICIES = ("hunters", "prey")


def receipt(worker: int, rows: tuple[int, int]) -> Receipt:
    made = {name: PolicyReceipt(count, count // 3, 0.5, 4) for name, count in zip(POLICIES, rows, strict=True)}
    return Receipt(worker, 10 + worker, sum(rows), (), made, 0, 0.1, 0.1, 0.1)


@given(
    made=st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), min_size=1, max_size=5), number=st.integers(0, 9)
)
def test_a_fragment_for_each_worker_and_policy(made: list[tuple[int, int]], number: int) -> None:
    receipts = [receipt(worker, rows) for worker, rows in enumerate(made)]
    payloads = [{name: f"{name} of {worker}" for name in POLICIES} for worker in range(len(made))]
    round = make_round(number, receipts, payloads)
    assert round.number == number
    assert list(round.receipts) == receipts
    assert round.rows == sum(sum(rows) for rows in made)
    assert round.env_steps == sum(10 + worker for worker in range(len(made)))
    for place, name in enumerate(POLICIES):
        own = [fragment for fragment in round.fragments if fragment.policy == name]
        assert [fragment.worker for fragment in own] == list(range(len(made)))
        assert [fragment.rows for fragment in own] == [rows[place] for rows in made]
        assert [fragment.rows_carried for fragment in own] == [rows[place] // 3 for rows in made]
        assert [fragment.payloads for fragment in own] == [(f"{name} of {worker}",) for worker in range(len(made))]
        assert [fragment.closes_round for fragment in own] == [False] * (len(made) - 1) + [True]
        assert {fragment.round for fragment in own} == {number}


def test_policies_without_a_plan_leave_no_fragment() -> None:
    round = make_round(0, [receipt(0, (5, 7))], [{"prey": "rows"}])
    assert [fragment.policy for fragment in round.fragments] == ["prey"]
    assert make_round(0, [receipt(0, (5, 7))], [{}]).fragments == []
