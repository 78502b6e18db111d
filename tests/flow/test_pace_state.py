"""A pace in agent steps when its store was lost, when its ratio changes, and when sides return."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marlflow.flow import AgentSteps, AtMost, InTurn


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(1, 5), st.integers(0, 15), st.integers(0, 12))
def test_a_lost_replay_keeps_its_credit_and_starts_again(rows: list[int], per: int, starts: int, at: int) -> None:
    ledger = InTurn(store=AgentSteps(per, starts), output=1).ledger()
    counted, to_start, taken = 0, starts, 0
    for number, amount in enumerate(rows):
        if number == at:
            ledger.reapply_starts()
            to_start = max(1, starts)  # what is gone cannot be drawn from
        ledger.took("store", amount)
        for _ in range(amount):
            to_start, counted = (to_start - 1, counted) if to_start else (0, counted + 1)
        while number % 2 and ledger.permits("output"):
            ledger.took("output", 0)
            taken += 1
        expected = 0 if to_start else counted // per - taken
        assert ledger.permits("output") == expected
        assert (ledger.permits("store") > 0) == (expected == 0)


@given(st.integers(0, 200), st.integers(0, 20), st.integers(1, 9), st.integers(1, 9), st.integers(0, 60), st.booleans())
def test_another_ratio_counts_from_where_it_begins(
    rows: int, starts: int, per: int, then_per: int, more: int, takes: bool
) -> None:
    ledger = InTurn(store=AgentSteps(per, starts), output=1).ledger()
    ledger.took("store", rows)
    owed = ledger.permits("output")
    if takes:
        for _ in range(owed):
            ledger.took("output", 0)
        owed = 0
    rest = max(0, rows - starts) % per
    then = InTurn(store=AgentSteps(then_per, starts), output=1).ledger()
    then.load_state(ledger.state())
    assert then.permits("output") == owed
    then.took("store", more)
    counted = max(0, more - max(0, starts - rows))
    assert then.permits("output") == owed + (min(rest, then_per - 1) + counted) // then_per


def test_sides_that_had_left_take_part_again_from_where_they_were() -> None:
    ledger = InTurn(store=AgentSteps(4, 3), output=1).ledger()
    ledger.took("store", 13)
    for _ in range(ledger.permits("output")):
        ledger.took("output", 0)
    for side in ("store", "output"):
        ledger.leave(side)
    other = InTurn(store=AgentSteps(4, 3), output=1).ledger()
    other.load_state(ledger.state())
    assert other.is_over("output")
    other.rejoin()
    assert not other.is_over("store")
    assert not other.is_over("output")
    other.took("store", 2)
    assert other.permits("output") == 1


@given(
    shares=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    then=st.lists(st.integers(1, 4), min_size=3, max_size=3),
    turns=st.integers(0, 25),
)
def test_other_shares_hold_from_where_they_begin(shares: list[int], then: list[int], turns: int) -> None:
    one, other = (InTurn(**dict(zip("abc", given, strict=True))).ledger() for given in (shares, then))
    for _ in range(turns):
        one.took(next(side for side in "abc" if one.permits(side)), 0)
    position, taken = 0, turns % sum(shares)  # the side whose turn it is, and what it has taken
    while taken >= shares[position]:
        taken -= shares[position]
        position += 1
    expected = "".join(side * share for side, share in zip("abc", then, strict=True))
    begins = sum(then[:position]) + min(taken, then[position])
    other.load_state(one.state())
    order = ""
    for _ in range(2 * len(expected)):
        order += next(side for side in "abc" if other.permits(side))
        other.took(order[-1], 0)
    assert order == (3 * expected)[begins : begins + 2 * len(expected)]


def test_a_side_that_had_left_stays_away_from_other_shares() -> None:
    ledger, other = InTurn(a=2, b=1, c=3).ledger(), InTurn(a=4, b=5, c=6).ledger()
    ledger.leave("b")
    other.load_state(ledger.state())
    assert other.is_over("b")
    assert [other.permits(side) for side in "abc"] == [4, 0, 0]


def test_a_turn_that_fewer_shares_complete_is_paid_once() -> None:
    ledger, then = AtMost(store=AgentSteps(4), draw=4).ledger(), AtMost(store=AgentSteps(4), draw=2).ledger()
    ledger.took("store", 4)
    for _ in range(3):
        ledger.took("draw", 0)
    then.load_state(ledger.state())
    assert then.permits("draw") == 0, "the one turn that was earned is over"
    then.took("store", 4)
    assert then.permits("draw") == 2
