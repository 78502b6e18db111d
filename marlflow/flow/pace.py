"""How flows share time: freely, or in an exact ratio.

A pace is data. While a plan runs, each pace has a *ledger* in the executor: it says how many turns a side may take now
and is told of each turn that came to its end. A turn is counted where it leaves the side, not where it enters, so an
item that was dropped or filtered out on the way has used none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """A side measured in the agent steps that come out of it: each `per` of them after `starts` earn one turn."""

    per: int
    starts: int = 0


class Ledger(Protocol):
    """A pace at work. Sides are known by name."""

    def permits(self, side: str) -> int:
        """How many turns the side may have under way or waiting now."""

    def took(self, side: str, rows: int) -> None:
        """One item of `rows` agent steps left the side."""

    def leave(self, side: str) -> None:
        """The side has ended and takes no further part."""

    def is_over(self, side: str, stopping: bool) -> bool:
        """Whether the side can never again be given a turn, or should take none while stopping."""

    def state(self) -> Mapping[str, Any]:
        """All it knows, as plain data."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes up where `state` left off."""


@dataclass(frozen=True, slots=True)
class Freely:
    """Each side runs as fast as its input and its consumer allow."""

    def sides(self) -> None:
        """None: it fits any sides."""
        return

    def problems(self) -> list[str]:
        """Never wrong."""
        return []

    def ledger(self) -> Ledger | None:
        """Keeps no books."""
        return None

    def __str__(self) -> str:
        return "freely"


@dataclass(frozen=True, slots=True, init=False)
class InTurn:
    """An exact ratio between sides, in items, or in agent steps that came out of one of them.

    `InTurn(a=2, b=1)`: two items of a, then one of b, and again. `InTurn(store=AgentSteps(4, starts=1000), output=1)`:
    whenever the pace is at rest, output has taken floor((rows stored - 1000) / 4) turns.
    """

    shares: tuple[tuple[str, int | AgentSteps], ...]

    def __init__(self, **shares: int | AgentSteps) -> None:
        object.__setattr__(self, "shares", tuple(shares.items()))

    def sides(self) -> frozenset[str]:
        """The names of the sides it expects."""
        return frozenset(name for name, _ in self.shares)

    def problems(self) -> list[str]:
        """What makes this ratio impossible, whatever comes."""
        found = []
        for name, share in self.shares:
            unit = share.per if isinstance(share, AgentSteps) else share
            if unit < 1:
                found.append(f"InTurn gives {name!r} a share of {unit}: it would block for ever; give at least 1")
            if isinstance(share, AgentSteps) and share.starts < 0:
                found.append(f"InTurn starts {name!r} after {share.starts} agent steps; give 0 or more")
        if len(self.shares) < 2:
            found.append("InTurn needs two sides or more")
        if sum(isinstance(share, AgentSteps) for _, share in self.shares) > 1:
            found.append("InTurn can measure one side in agent steps, not several")
        return found

    def ledger(self) -> Ledger:
        """A new ledger, at the beginning."""
        rows = [(name, share) for name, share in self.shares if isinstance(share, AgentSteps)]
        items = [(name, share) for name, share in self.shares if not isinstance(share, AgentSteps)]
        return _RowLedger(*rows[0], items) if rows else _ItemLedger(items)

    def __str__(self) -> str:
        shown = [
            f"{name} {share}"
            if not isinstance(share, AgentSteps)
            else f"{name} {share.per} agent steps" + (f" (after the first {share.starts})" if share.starts else "")
            for name, share in self.shares
        ]
        return "in turn: " + " : ".join(shown)


Pace = Freely | InTurn


class _ItemLedger:
    """Whole turns in a fixed order: each side its share, then the next side."""

    def __init__(self, shares: list[tuple[str, int]]) -> None:
        self._shares = shares
        self._current = 0
        self._left = shares[0][1]

    @property
    def at_rest(self) -> bool:
        """Whether every side has had its share, and none has begun on the next."""
        return bool(self._shares) and self._current == 0 and self._left == self._shares[0][1]

    def permits(self, side: str) -> int:
        return self._left if self._shares and self._shares[self._current][0] == side else 0

    def took(self, side: str, rows: int) -> None:
        self._left -= 1
        if self._left == 0:
            self._next(self._current + 1)

    def leave(self, side: str) -> None:
        index = next((i for i, (name, _) in enumerate(self._shares) if name == side), None)
        if index is None:
            return
        was_current = index == self._current
        del self._shares[index]
        if was_current and self._shares:
            self._next(index)
        elif index < self._current:
            self._current -= 1

    def is_over(self, side: str, stopping: bool) -> bool:
        return (stopping and self.at_rest) or side not in dict(self._shares)

    def state(self) -> Mapping[str, Any]:
        return {"shares": [list(share) for share in self._shares], "current": self._current, "left": self._left}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._shares = [(name, share) for name, share in state["shares"]]
        self._current, self._left = state["current"], state["left"]

    def _next(self, index: int) -> None:
        self._current = index % len(self._shares)
        self._left = self._shares[self._current][1]


class _RowLedger:
    """The leading side earns turns by its rows; the others spend them before it may go on."""

    def __init__(self, leader: str, share: AgentSteps, followers: list[tuple[str, int]]) -> None:
        self._leader, self._share = leader, share
        self._followers = followers
        self._turn = _ItemLedger(list(followers))
        self.rows = 0
        self.turns = 0
        self._leader_left = False

    def _due(self) -> int:
        if not self._followers:  # nobody is left to spend what the leader earns
            return 0
        return max(0, self.rows - self._share.starts) // self._share.per - self.turns

    def permits(self, side: str) -> int:
        due = self._due()
        if side == self._leader:
            return UNLIMITED if due == 0 else 0
        if due == 0:
            return 0
        alone = len(self._followers) == 1
        return self._turn.permits(side) + ((due - 1) * self._followers[0][1] if alone else 0)

    def took(self, side: str, rows: int) -> None:
        if side == self._leader:
            self.rows += rows
            return
        self._turn.took(side, rows)
        self.turns += self._turn.at_rest

    def leave(self, side: str) -> None:
        if side == self._leader:
            self._leader_left = True
            return
        begun = not self._turn.at_rest
        self._followers = [(name, share) for name, share in self._followers if name != side]
        self._turn.leave(side)
        self.turns += begun and self._turn.at_rest

    def is_over(self, side: str, stopping: bool) -> bool:
        if side == self._leader:
            return self._leader_left
        return (self._leader_left and self._due() == 0) or side not in dict(self._followers)

    def state(self) -> Mapping[str, Any]:
        return {"rows": self.rows, "turns": self.turns, "turn": self._turn.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rows, self.turns = state["rows"], state["turns"]
        self._turn.load_state(state["turn"])
