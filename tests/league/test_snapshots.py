"""When snapshots are taken."""

import pytest

from marlflow.league.league import SnapshotRules
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.sides import default_sides

NEVER = SnapshotRules(at_start=False, every_agent_steps=None)
WINNING = SnapshotRules(at_start=False, every_agent_steps=None, win_rate=0.7, min_games=10)


def won(wins: int, losses: int, rival: str = "main@1", payoffs: Payoffs | None = None) -> Payoffs:
    payoffs = payoffs or Payoffs(default_sides(["player_0", "player_1"]), ["main"], decay=1.0, prior_games=0.0)
    for difference in [1.0] * wins + [-1.0] * losses:
        payoffs.add(Game(("main", rival), (difference, -difference), 1))
    return payoffs


def holds(rules: SnapshotRules, agent_steps: int = 0, is_first: bool = False, payoffs: Payoffs | None = None) -> bool:
    rivals = ["main@1", "main@2"] if payoffs else []
    return rules.holds("main", agent_steps, is_first, rivals, payoffs or won(0, 0))


def test_the_first_is_taken_at_the_start() -> None:
    assert holds(SnapshotRules(), agent_steps=0, is_first=True)
    assert not holds(SnapshotRules(), agent_steps=0, is_first=False)
    assert not holds(NEVER, agent_steps=10**9, is_first=True)


@pytest.mark.parametrize("rule", ["every_agent_steps", "timeout_agent_steps"])
def test_one_is_taken_after_agent_steps(rule: str) -> None:
    rules = SnapshotRules(**{"at_start": False, "every_agent_steps": None, rule: 1000})
    assert [holds(rules, agent_steps) for agent_steps in (0, 999, 1000, 5000)] == [False, False, True, True]


def test_one_is_taken_when_every_rival_is_beaten() -> None:
    payoffs = won(8, 2)
    assert not holds(WINNING, payoffs=payoffs), "main@2 was not met"
    won(9, 0, "main@2", payoffs)
    assert not holds(WINNING, payoffs=payoffs), "main@2 was met in 9 games only"
    won(1, 0, "main@2", payoffs)
    assert holds(WINNING, payoffs=payoffs)
    won(0, 5, "main@2", payoffs)
    assert not holds(WINNING, payoffs=payoffs), "main@2 is beaten in 10 of 15 games only"


def test_a_win_rate_has_to_be_exceeded() -> None:
    assert not WINNING.holds("main", 0, False, ["main@1"], won(7, 3))
    assert WINNING.holds("main", 0, False, ["main@1"], won(71, 29))


def test_nobody_to_beat_is_no_win() -> None:
    assert not holds(WINNING)
