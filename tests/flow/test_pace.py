"""Ledgers: turns that are granted, taken, and left in the middle."""

import pytest

from marlflow.flow import AgentSteps, Freely, InTurn
from marlflow.flow.pace import PaceLedger


def _turns(ledger: PaceLedger, sides: str, times: int) -> str:
    """Which side goes, each time the first one that may."""
    taken = ""
    for _ in range(times):
        side = next((side for side in sides if ledger.permits(side) > 0), None)
        if side is None:
            return taken + "."
        ledger.took(side, 0)
        taken += side
    return taken


def test_items_come_in_the_order_of_the_shares() -> None:
    ledger = InTurn(a=2, b=1, c=3).ledger()
    assert _turns(ledger, "abc", 12) == "aabcccaabccc"


@pytest.mark.parametrize(
    ("taken", "leaves", "then"),
    [
        (0, "a", "bccbcc"),
        (1, "a", "bccbcc"),  # a had not finished its share, so the turn counts as not begun
        (2, "a", "bccbcc"),
        (3, "a", "ccbccb"),
        (2, "b", "ccaacc"),
        (3, "b", "ccaacc"),
        (4, "b", "caacca"),
        (4, "c", "aabaab"),
        (1, "c", "abaaba"),
    ],
)
def test_a_side_leaves_in_the_middle_of_a_turn(taken: int, leaves: str, then: str) -> None:
    ledger = InTurn(a=2, b=1, c=2).ledger()
    _turns(ledger, "abc", taken)
    ledger.leave(leaves)
    ledger.leave(leaves)
    assert ledger.is_over(leaves)
    assert _turns(ledger, "abc", 6) == then


def test_the_last_side_to_leave_leaves_nothing_to_grant() -> None:
    ledger = InTurn(a=1, b=1).ledger()
    ledger.leave("b")
    ledger.leave("a")
    assert _turns(ledger, "ab", 1) == "."


def test_a_ratio_may_stop_only_when_all_had_their_share_and_nothing_is_under_way() -> None:
    ledger = InTurn(a=2, b=1).ledger()
    assert ledger.may_stop("a", idle=True)
    assert not ledger.may_stop("a", idle=False)
    ledger.took("a", 0)
    assert not ledger.may_stop("a", idle=True)
    ledger.took("a", 0)
    ledger.took("b", 0)
    assert ledger.may_stop("b", idle=True)


def test_several_followers_share_each_turn() -> None:
    ledger = InTurn(store=AgentSteps(10), a=1, b=2).ledger()
    ledger.took("store", 25)
    assert _turns(ledger, "ab", 9) == "abbabb."


def test_a_follower_that_leaves_mid_turn_does_not_cost_the_others_theirs() -> None:
    ledger = InTurn(store=AgentSteps(10), a=2, b=1).ledger()
    ledger.took("store", 20)
    ledger.took("a", 0)
    ledger.leave("a")
    assert _turns(ledger, "b", 9) == "bb."


def test_a_follower_that_leaves_as_the_last_of_a_turn_completes_it() -> None:
    ledger = InTurn(store=AgentSteps(10), a=1, b=1).ledger()
    ledger.took("store", 20)
    ledger.took("a", 0)
    ledger.leave("b")
    assert _turns(ledger, "a", 9) == "a."


def test_followers_are_over_when_they_have_spent_what_the_leader_earned() -> None:
    ledger = InTurn(store=AgentSteps(10), output=1).ledger()
    ledger.took("store", 15)
    ledger.leave("store")
    assert not ledger.is_over("output")
    ledger.took("output", 0)
    assert ledger.is_over("output")


def test_a_leader_goes_on_alone() -> None:
    ledger = InTurn(store=AgentSteps(10), output=1).ledger()
    ledger.took("store", 15)
    ledger.leave("output")
    assert ledger.permits("store") > 0
    assert not ledger.is_over("store")


@pytest.mark.parametrize("pace", [InTurn(a=2, b=1, c=3), InTurn(a=AgentSteps(3, 5), b=1, c=2)])
def test_state_is_plain_and_goes_on_where_it_was(pace: InTurn) -> None:
    for steps in range(12):
        one, other = pace.ledger(), pace.ledger()
        for _ in range(steps):
            one.took(next(side for side in "cba" if one.permits(side) > 0), 4)
        other.load_state(one.state())
        assert other.state() == one.state()
        assert [other.permits(side) for side in "abc"] == [one.permits(side) for side in "abc"]


def test_paces_print_as_a_sentence() -> None:
    assert str(Freely()) == "freely"
    assert str(InTurn(a=2, b=1)) == "in turn: a 2, b 1"
    assert str(InTurn(store=AgentSteps(4, 1000), output=1)) == (
        "in turn: output 1 for every 4 agent steps of store, after the first 1000"
    )
