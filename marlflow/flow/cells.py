"""A compiled plan at run time.

A cell is a stage, or adjacent stages at one place fused into one call. An edge is the bounded buffer between two cells.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlflow.flow.flow import Full, Kind
from marlflow.flow.meters import Clock, Meter, StageId, rows_of
from marlflow.flow.pace import UNLIMITED, PaceLedger
from marlflow.flow.protocols import HoldsItems, StageCall


class Edge:
    """A bounded buffer of items, oldest first; queues and fork branches have a `stage`."""

    __slots__ = (
        "capacity",
        "closed",
        "discarding",
        "dropped",
        "full",
        "gates",
        "is_exhausted",
        "items",
        "passed",
        "rows",
        "rows_dropped",
        "stage",
    )

    def __init__(self, capacity: int = 1, full: Full = "wait", stage: StageId | None = None) -> None:
        self.capacity, self.full, self.stage = capacity, full, stage
        self.items: deque[Any] = deque()
        self.gates: list[Gate] = []
        # The producer has ended.
        self.closed = False
        # The producer has ended because there are no more items, and not because it was asked to.
        self.is_exhausted = False
        # The consumer has ended: further items are counted and dropped.
        self.discarding = False
        self.dropped = self.rows_dropped = 0
        self.passed = self.rows = 0

    def room(self) -> int:
        """Return how many items fit now."""
        # Never blocks the producer: items are dropped instead.
        if self.closed or self.full != "wait":
            return self.capacity
        return self.capacity - len(self.items)

    def put(self, item: Any) -> None:
        """Add an item; if full, drop the oldest."""
        if self.closed:
            self._drop(item)
            return
        if len(self.items) >= self.capacity and self.full == "drop_oldest":
            self._drop(self.items.popleft())
        self.items.append(item)
        self.passed += 1
        self.rows += rows_of(item)

    def _drop(self, item: Any) -> None:
        self.dropped += 1
        self.rows_dropped += rows_of(item)

    def empty(self) -> int:
        """Drop all items; return their agent steps."""
        before = self.rows_dropped
        for item in self.items:
            self._drop(item)
        self.items.clear()
        return self.rows_dropped - before

    def discard(self) -> None:
        """Drop all items and close."""
        self.empty()
        self.discarding = self.closed = True

    @property
    def ended(self) -> bool:
        """Whether no item will follow."""
        return self.closed and not self.items


@dataclass(slots=True, eq=False)
class Gate:
    """Admits items to one side of a pace."""

    ledger: PaceLedger
    side: str
    peers: list[Gate]
    """The gates of all sides of the pace, including this one."""
    heads: list[Edge] = field(default_factory=list)
    """Edges whose items wait here to enter the side."""
    cells: list[Cell] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def under_way(self) -> int:
        """Return how many items the side holds."""
        return sum([len(edge.items) for edge in self.edges]) + sum([c.in_flight + len(c.pending) for c in self.cells])

    def available(self) -> int:
        """Return how many more items may enter now."""
        permitted = self.ledger.permits(self.side)
        return max(0, permitted - self.under_way()) if permitted else 0

    def may_stop(self) -> bool:
        """Return whether a source may stop without breaking the ratio."""
        idle = all(peer.under_way() == 0 and all(edge.ended for edge in peer.heads) for peer in self.peers)
        return self.ledger.may_stop(self.side, idle)


@dataclass(slots=True, eq=False)
class Cell:
    """A running stage, or a fused chain of stages; its kind is None at the end of a plan."""

    kind: Kind | None
    stages: list[StageId]
    calls: list[StageCall] = field(default_factory=list)
    """The calls of all `stages` that have an operator."""
    call: Callable[[Sequence[Any]], Any] | None = None
    inboxes: list[Edge] = field(default_factory=list)
    outs: dict[Hashable, Edge] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    """Sources: the paces that hold it, innermost first. Other cells are held at their inboxes' gates."""
    sides: list[tuple[PaceLedger | None, str]] = field(default_factory=list)
    """Merges and ends of plans: for each inbox, the ledger and the side that count its items."""
    emitted_side: str | None = None
    """Merges: the one side whose items are emitted; None: all."""
    meters: list[Meter] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    in_flight: int = 0
    pending: deque[tuple[Edge, Any]] = field(default_factory=deque)
    exhausted: bool = False
    ended: bool = False
    is_flushed: bool = False
    """Gathers: whether their operator has given its rest."""
    lost: int = 0
    """Items lost with their process, or dropped from a gather or before delivery; `rows_lost` are their rows."""
    rows_lost: int = 0
    next_inbox: int = 0

    @property
    def is_plumbing(self) -> bool:
        """Whether this is a plan's end or a carrier between two buffers."""
        return self.kind is None or self.kind is Kind.QUEUE

    @property
    def is_abandoned(self) -> bool:
        """Whether all consumers have ended."""
        return bool(self.outs) and all(edge.discarding for edge in self.outs.values())

    def held(self) -> int:
        """Return how many items wait at, run in or leave this cell."""
        return sum(len(edge.items) for edge in self.inboxes) + self.in_flight + len(self.pending)

    def room(self) -> int:
        """Return how many items fit at every consumer."""
        return min([edge.room() for edge in self.outs.values()], default=UNLIMITED)

    def emits(self, index: int) -> bool:
        """Return whether an inbox's items are emitted."""
        return self.emitted_side in (None, self.sides[index][1])

    def leave(self) -> bool:
        """Leave ended sides' paces and discard unusable input; return whether anything changed."""
        news = False
        for (ledger, side), edge in zip(self.sides, self.inboxes, strict=False):
            if edge.ended and ledger is not None and not ledger.is_over(side):
                ledger.leave(side)
                news = True
        abandoned = self.is_abandoned
        for edge in self.inboxes:
            if edge.discarding:
                continue
            if abandoned or (edge.gates and any(gate.ledger.is_over(gate.side) for gate in edge.gates)):
                edge.discard()
                news = True
        return news

    def drop_pending(self, edges: Collection[int]) -> int:
        """Drop undelivered items for `edges`, by identity; return their agent steps."""
        dropped = [item for edge, item in self.pending if id(edge) in edges]
        self.pending = deque((edge, item) for edge, item in self.pending if id(edge) not in edges)
        return self._count_dropped(dropped)

    def drop_held(self) -> int:
        """Drop the items that a gather holds; return their agent steps."""
        dropped = []
        for call in self.calls:
            if self.kind is Kind.GATHER and isinstance(call.operator, HoldsItems):
                dropped += call.operator.held
                call.operator.held.clear()
        return self._count_dropped(dropped)

    def _count_dropped(self, items: Sequence[Any]) -> int:
        rows = sum(map(rows_of, items))
        self.lost += len(items)
        self.rows_lost += rows
        return rows

    def deliver(self) -> bool:
        """Move pending items on where there is room; return whether any moved."""
        waiting: deque[tuple[Edge, Any]] = deque()
        for edge, item in self.pending:
            # Nothing empties an edge during this loop, so a full edge stays full and order is kept.
            if edge.room() > 0:
                edge.put(item)
            else:
                waiting.append((edge, item))
        moved = len(waiting) < len(self.pending)
        self.pending = waiting
        return moved

    def takeable(self, index: int = 0) -> int:
        """Return how many items an inbox's gates release."""
        edge = self.inboxes[index]
        waiting = len(edge.items)
        if waiting and edge.gates:
            return min(waiting, *[gate.available() for gate in edge.gates])
        return waiting

    def take(self, count: int, index: int = 0) -> list[Any]:
        """Remove and return an inbox's next `count` items."""
        items = self.inboxes[index].items
        return [items.popleft() for _ in range(count)]

    def one_by_one(self) -> Iterator[Any]:
        """Remove and yield the first inbox's items, one at a time."""
        items = self.inboxes[0].items
        while items:
            yield items.popleft()

    def waits_for(self) -> str | None:
        """Describe what blocks this cell, if its edges or gates do."""
        full = {str(edge.stage) if edge.stage else "the next stage" for edge in self.outs.values() if edge.room() < 1}
        has_input = any(edge.items for edge in self.inboxes)
        if self.pending:
            return "room at " + ", ".join(
                sorted({str(e.stage) if e.stage else "the next stage" for e, _ in self.pending})
            )
        if full and (has_input or not self.inboxes):
            return "room at " + ", ".join(sorted(full))
        gates = self.gates + [gate for edge in self.inboxes if edge.items for gate in edge.gates]
        if held := [f"its turn as {gate.side!r}" for gate in gates if gate.available() < 1]:
            return " and ".join(dict.fromkeys(held))
        return "input" if self.inboxes and not has_input else None
