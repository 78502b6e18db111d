"""Paces synchronize flows: freely, in an exact ratio, or within a limit.

A *ledger* per pace grants turns to each side at run time. A turn is used when an item leaves the side, so filtered-out
items use none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Protocol

UNLIMITED = 1 << 30


@dataclass(frozen=True, slots=True)
class AgentSteps:
    """Counts a side in agent steps: after the first `starts`, every `per` rows earn the other sides one turn."""

    per: int
    starts: int = 0


class PaceLedger(Protocol):
    """A pace's run-time state; sides are names."""

    def permits(self, side: str) -> int:
        """Return how many items the side may hold, including items that wait at its end."""

    def took(self, side: str, rows: int) -> None:
        """Count one item of `rows` agent steps that left the side."""

    def leave(self, side: str) -> None:
        """Remove an ended side; idempotent."""

    def is_over(self, side: str) -> bool:
        """Return whether the side can never get another turn."""

    def may_stop(self, side: str, idle: bool) -> bool:
        """Return whether a source may end on request; `idle` means that no side has items, or can still get any."""

    def reapply_starts(self) -> None:
        """Apply `starts` again after the leading side's store was emptied."""

    def restart(self) -> None:
        """Begin as a new ledger: earned turns are forfeited, `starts` is applied again; sides that left stay away."""

    def rejoin(self) -> None:
        """Readmit sides that have left."""

    def state(self) -> Mapping[str, Any]:
        """Return the state as plain data."""

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""


@dataclass(frozen=True, slots=True)
class Freely:
    """No synchronization: each side runs as fast as its input and consumer allow."""

    def ledger(self) -> PaceLedger | None:
        """Return None: nothing is counted."""
        return None

    def __str__(self) -> str:
        return "freely"


@dataclass(frozen=True, slots=True, init=False)
class InTurn:
    """An exact ratio between sides, in items, or in agent steps of one of them.

    `InTurn(a=2, b=1)`: two items of a, then one of b. `InTurn(store=AgentSteps(4, starts=1000), output=1)`: at rest,
    output has taken floor((rows stored - 1000) / 4) turns (a training ratio).
    """

    shares: tuple[tuple[str, int | AgentSteps], ...]

    def __init__(self, **shares: int | AgentSteps) -> None:
        object.__setattr__(self, "shares", tuple(shares.items()))

    def sides(self) -> frozenset[str]:
        """Return the expected sides' names."""
        return frozenset(name for name, _ in self.shares)

    def problems(self) -> list[str]:
        """Return why this ratio could never be kept."""
        sentences = []
        for name, share in self.shares:
            # Any: the user may have written something else.
            unit: Any = share.per if isinstance(share, AgentSteps) else share
            starts: Any = share.starts if isinstance(share, AgentSteps) else 0
            if not isinstance(unit, Integral) or not isinstance(starts, Integral):
                sentences.append(f"{type(self).__name__} gives {name!r} a share of {share}, which is no whole number")
            elif unit < 1:
                sentences.append(f"InTurn gives {name!r} a share of {unit}: it would block for ever; give at least 1")
            elif starts < 0:
                sentences.append(f"InTurn starts {name!r} after {starts} agent steps; give 0 or more")
        if len(self.shares) < 2:
            sentences.append("InTurn needs two sides or more")
        if sum(isinstance(share, AgentSteps) for _, share in self.shares) > 1:
            sentences.append("InTurn can measure one side in agent steps, not several")
        return sentences

    def ledger(self) -> PaceLedger:
        """Return a new ledger."""
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
    """A limit instead of a ratio: the side in agent steps never waits, and the others may fall behind.

    `AtMost(store=AgentSteps(4, starts=1000), output=1)`: output takes at most floor((rows stored - 1000) / 4) turns.
    Turns unused on shutdown are forfeited.
    """

    def problems(self) -> list[str]:
        # Not super(): slots=True recreates the class, which breaks the zero-argument form.
        sentences = InTurn.problems(self)
        if not any(isinstance(share, AgentSteps) for _, share in self.shares):
            sentences.append("AtMost needs one side in agent steps, which earns the others their turns")
        return sentences

    def ledger(self) -> PaceLedger:
        (leader,) = [(name, share) for name, share in self.shares if isinstance(share, AgentSteps)]
        return _LimitLedger(
            *leader, [(name, share) for name, share in self.shares if not isinstance(share, AgentSteps)]
        )

    def __str__(self) -> str:
        return InTurn.__str__(self).replace("in turn", "at most", 1)


Pace = Freely | InTurn


class _ItemLedger:
    def __init__(self, shares: list[tuple[str, int]]) -> None:
        self._shares, self._all = shares, tuple(shares)
        self._current = 0
        self._left = shares[0][1]
        self._has_started = False
        self.turns = 0

    @property
    def sides(self) -> list[tuple[str, int]]:
        return self._shares

    def permits(self, side: str) -> int:
        return self._left if self._shares and self._shares[self._current][0] == side else 0

    def took(self, side: str, rows: int) -> None:
        self._has_started = True
        self._left -= 1
        if self._left == 0:
            self._advance_to(self._current + 1)

    def leave(self, side: str) -> None:
        index = next((i for i, (name, _) in enumerate(self._shares) if name == side), None)
        if index is None:
            return
        del self._shares[index]
        if index < self._current:
            self._current -= 1
        elif index == self._current:
            # Later sides still take their shares if an earlier side has completed its own.
            self._has_started = self._has_started and index > 0
            self._advance_to(index)

    def is_over(self, side: str) -> bool:
        return all(name != side for name, _ in self._shares)

    def may_stop(self, side: str, idle: bool) -> bool:
        return idle and not self._has_started

    def reapply_starts(self) -> None:
        return

    def restart(self) -> None:
        self._current, self._has_started = 0, False
        self._left = self._shares[0][1] if self._shares else 0

    def rejoin(self) -> None:
        if len(self._shares) < len(self._all):
            self._shares = list(self._all)
            self._current, self._left, self._has_started = 0, self._all[0][1], False

    def state(self) -> Mapping[str, Any]:
        return {
            "shares": [list(share) for share in self._shares],
            "current": self._current,
            "left": self._left,
            "begun": self._has_started,
            "turns": self.turns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        saved = dict(state["shares"])
        # Shares may differ from when the state was saved; sides that had left stay away.
        self._shares = [(name, share) for name, share in self._all if name in saved]
        self._current, self._left = state["current"], state["left"]
        self._has_started, self.turns = state["begun"], state["turns"]
        if self._shares:
            name, share = self._shares[self._current]
            self._left += share - saved[name]
            if self._left <= 0:
                self._advance_to(self._current + 1)

    def _advance_to(self, index: int) -> None:
        if index >= len(self._shares):
            self.turns += self._has_started
            self._has_started, index = False, 0
        self._current = index
        self._left = self._shares[index][1] if self._shares else 0


class _RowLedger:
    # The followers must spend all turns that the leader's rows earn before it continues.
    def __init__(self, leader: str, share: AgentSteps, followers: list[tuple[str, int]]) -> None:
        self._leader, self._share = leader, share
        self._followers = _ItemLedger(followers)
        self._leader_left = False
        # Rows still needed before rows earn turns.
        self._to_start = share.starts
        self._counted = 0
        self.rows = 0

    def permits(self, side: str) -> int:
        due = self._turns_due()
        if side == self._leader:
            return UNLIMITED if due == 0 else 0
        if due == 0:
            return 0
        sides = self._followers.sides
        # A single follower cannot get out of order, so all its due turns may run at once.
        ahead = (due - 1) * sides[0][1] if len(sides) == 1 else 0
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
        return self._followers.is_over(side) or (self._leader_left and self._turns_due() == 0)

    def may_stop(self, side: str, idle: bool) -> bool:
        # Once the leader has left, the followers are over when they have spent the turns it earned.
        return side == self._leader

    def reapply_starts(self) -> None:
        # At least 1, so that no follower runs on an empty store even with starts=0.
        self._to_start = max(1, self._share.starts)

    def restart(self) -> None:
        self._followers.restart()
        self._to_start = self._share.starts
        self._counted = self._followers.turns * self._share.per

    def rejoin(self) -> None:
        self._leader_left = False
        self._followers.rejoin()

    def state(self) -> Mapping[str, Any]:
        earned, remainder = divmod(self._counted, self._share.per)
        return {
            "rows": self.rows,
            "to_start": self._to_start,
            "owed": earned - self._followers.turns,
            "rest": remainder,
            "leader_left": self._leader_left,
            "followers": self._followers.state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.rows, self._leader_left = state["rows"], state["leader_left"]
        self._followers.load_state(state["followers"])
        self._to_start, per = state["to_start"], self._share.per
        # `per` may differ from when the state was saved; earned but unused turns are preserved.
        self._counted = (state["owed"] + state["followers"]["turns"]) * per + min(state["rest"], per - 1)

    def _turns_due(self) -> int:
        # There is no follower to take turns, or `starts` is not reached yet.
        if not self._followers.sides or self._to_start:
            return 0
        return self._counted // self._share.per - self._followers.turns


class _LimitLedger(_RowLedger):
    # The leader never waits.
    def permits(self, side: str) -> int:
        return UNLIMITED if side == self._leader else super().permits(side)

    def may_stop(self, side: str, idle: bool) -> bool:
        return True
