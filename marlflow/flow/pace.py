"""How flows share time: freely, in an exact ratio, or within a limit.

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
        """How many items may be under way on the side, or waiting at its end, now."""

    def took(self, side: str, rows: int) -> None:
        """One item of `rows` agent steps left the side."""

    def leave(self, side: str) -> None:
        """The side has ended and takes no further part; once it has left, leaving again changes nothing."""

    def is_over(self, side: str) -> bool:
        """Whether the side can never again be given a turn."""

    def may_stop(self, side: str, idle: bool) -> bool:
        """Whether a source may end because the run is to stop; `idle`: all sides are, and none is fed by others."""

    def starts_again(self) -> None:
        """What a leading side had stored is gone: as many rows as at first have to come before they earn turns again.

        Turns that were earned and not yet taken stay earned.
        """

    def rejoin(self) -> None:
        """Sides that had left take part again."""

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
        rows = [(name, share) for name, share in self.shares if isinstance(share, AgentSteps)]
        items = ", ".join(f"{name} {share}" for name, share in self.shares if not isinstance(share, AgentSteps))
        if not rows:
            return f"in turn: {items}"
        name, share = rows[0]
        starts = f", after the first {share.starts}" if share.starts else ""
        return f"in turn: {items} for every {share.per} agent steps of {name}{starts}"


@dataclass(frozen=True, slots=True, init=False)
class AtMost(InTurn):
    """A limit instead of a ratio: the side measured in agent steps never waits, and those that follow may fall behind.

    `AtMost(store=AgentSteps(4, starts=1000), output=1)`: output never takes more than floor((rows stored - 1000) / 4)
    turns. So what follows neither begins too early nor runs for ever; when the run is to stop, turns that it has not
    taken are forgone.
    """

    def problems(self) -> list[str]:
        """What makes this limit impossible, whatever comes."""
        found = InTurn.problems(self)  # slots give this class a cell that super() does not know
        if not any(isinstance(share, AgentSteps) for _, share in self.shares):
            found.append("AtMost needs one side in agent steps, which earns the others their turns")
        return found

    def ledger(self) -> Ledger:
        """A new ledger, at the beginning."""
        (leader,) = [(name, share) for name, share in self.shares if isinstance(share, AgentSteps)]
        return _LimitLedger(*leader, [(name, share) for name, share in self.shares if isinstance(share, int)])

    def __str__(self) -> str:
        return InTurn.__str__(self).replace("in turn", "at most", 1)


Pace = Freely | InTurn


class _ItemLedger:
    """Whole turns in a fixed order: each side its share, then the next side.

    When a side leaves in the middle of its share, the sides after it still have theirs if a side before it has had
    its own; else the turn counts as not begun.
    """

    def __init__(self, shares: list[tuple[str, int]]) -> None:
        self._shares, self._all = shares, tuple(shares)
        self._current = 0
        self._left = shares[0][1]
        self._begun = False
        self.turns = 0

    @property
    def sides(self) -> list[tuple[str, int]]:
        """Who still takes part, with their shares."""
        return self._shares

    def permits(self, side: str) -> int:
        return self._left if self._shares and self._shares[self._current][0] == side else 0

    def took(self, side: str, rows: int) -> None:
        self._begun = True
        self._left -= 1
        if self._left == 0:
            self._go_to(self._current + 1)

    def leave(self, side: str) -> None:
        index = next((i for i, (name, _) in enumerate(self._shares) if name == side), None)
        if index is None:
            return
        del self._shares[index]
        if index < self._current:
            self._current -= 1
        elif index == self._current:
            self._begun = self._begun and index > 0
            self._go_to(index)

    def is_over(self, side: str) -> bool:
        return all(name != side for name, _ in self._shares)

    def may_stop(self, side: str, idle: bool) -> bool:
        return idle and not self._begun

    def starts_again(self) -> None:
        return

    def rejoin(self) -> None:
        if len(self._shares) < len(self._all):
            self._shares = list(self._all)
            self._current, self._left, self._begun = 0, self._all[0][1], False

    def state(self) -> Mapping[str, Any]:
        return {
            "shares": [list(share) for share in self._shares],
            "current": self._current,
            "left": self._left,
            "begun": self._begun,
            "turns": self.turns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._shares = [(name, share) for name, share in state["shares"]]
        self._current, self._left = state["current"], state["left"]
        self._begun, self.turns = state["begun"], state["turns"]

    def _go_to(self, index: int) -> None:
        if index >= len(self._shares):
            self.turns += self._begun
            self._begun, index = False, 0
        self._current = index
        self._left = self._shares[index][1] if self._shares else 0


class _RowLedger:
    """The leading side earns turns by its rows; the others spend them before it may go on."""

    def __init__(self, leader: str, share: AgentSteps, followers: list[tuple[str, int]]) -> None:
        self._leader, self._share = leader, share
        self._followers = _ItemLedger(followers)
        self._leader_left = False
        self._to_start = share.starts  # rows that have to come before any earns a turn
        self._counted = 0
        self.rows = 0

    def permits(self, side: str) -> int:
        due = self._due()
        if side == self._leader:
            return UNLIMITED if due == 0 else 0
        if due == 0:
            return 0
        sides = self._followers.sides
        ahead = (due - 1) * sides[0][1] if len(sides) == 1 else 0  # one alone may have all its turns under way
        return self._followers.permits(side) + ahead

    def took(self, side: str, rows: int) -> None:
        if side == self._leader:
            self.rows += rows
            for_start = min(rows, self._to_start)
            self._to_start -= for_start
            self._counted += rows - for_start
        else:
            self._followers.took(side, rows)

    def leave(self, side: str) -> None:
        if side == self._leader:
            self._leader_left = True
        else:
            self._followers.leave(side)

    def is_over(self, side: str) -> bool:
        if side == self._leader:
            return self._leader_left
        return self._followers.is_over(side) or (self._leader_left and self._due() == 0)

    def may_stop(self, side: str, idle: bool) -> bool:
        return side == self._leader  # then it leaves, and the others are over when they have spent what it earned

    def starts_again(self) -> None:
        self._to_start = max(1, self._share.starts)

    def rejoin(self) -> None:
        self._leader_left = False
        self._followers.rejoin()

    def state(self) -> Mapping[str, Any]:
        earned, rest = divmod(self._counted, self._share.per)
        return {
            "rows": self.rows,
            "to_start": self._to_start,
            "owed": earned - self._followers.turns,
            "rest": rest,
            "leader_left": self._leader_left,
            "followers": self._followers.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rows, self._leader_left = state["rows"], state["leader_left"]
        self._followers.load_state(state["followers"])
        self._to_start, per = state["to_start"], self._share.per
        # With another `per` than before, what was earned and not yet taken stays earned.
        self._counted = (state["owed"] + self._followers.turns) * per + min(state["rest"], per - 1)

    def _due(self) -> int:
        if not self._followers.sides or self._to_start:  # nobody is left to spend what the leader earns, or may yet
            return 0
        return self._counted // self._share.per - self._followers.turns


class _LimitLedger(_RowLedger):
    """The leading side earns turns and never waits for them to be spent."""

    def permits(self, side: str) -> int:
        return UNLIMITED if side == self._leader else super().permits(side)

    def may_stop(self, side: str, idle: bool) -> bool:
        return True
