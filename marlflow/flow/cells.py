"""Cells and edges: a plan as it runs.

A cell is one stage at work, or several neighbours of one place fused into one call. An edge holds the items on their
way from one cell to the next, and knows its capacity. Cells know their edges and nothing else; the executor decides
which moves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from marlflow.flow.flow import Full, Kind
from marlflow.flow.meters import Clock, Meter, StageId, rows_of
from marlflow.flow.operators import StageCall
from marlflow.flow.pace import UNLIMITED, Ledger


class Edge:
    """Items between two cells, oldest first. `stage` names it where it is a buffer that the plan states."""

    __slots__ = (
        "capacity",
        "closed",
        "discarding",
        "dropped",
        "full",
        "gates",
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
        self.closed = False  # the producer has ended: nothing more will come
        self.discarding = False  # the consumer has ended: what comes is counted and dropped
        self.dropped = self.rows_dropped = 0
        self.passed = self.rows = 0

    def room(self) -> int:
        """How many items it takes at a time without waiting."""
        if self.closed or self.full != "wait":
            return self.capacity
        return self.capacity - len(self.items)

    def put(self, item: Any) -> None:
        """Takes an item; what does not fit is dropped, oldest first, and counted."""
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

    def discard(self) -> None:
        """From now on nobody takes from here."""
        for item in self.items:
            self._drop(item)
        self.items.clear()
        self.discarding = self.closed = True

    @property
    def ended(self) -> bool:
        """Nothing is here and nothing will come."""
        return self.closed and not self.items


@dataclass(slots=True, eq=False)
class Gate:
    """One side of a pace at work: the ledger that grants turns, and what is under way between gate and end."""

    ledger: Ledger
    side: str
    peers: list[Gate]
    """The gates of all sides of the pace, this one too."""
    heads: list[Edge] = field(default_factory=list)
    """Where items that came from elsewhere wait to be let into the side."""
    cells: list[Cell] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)

    def under_way(self) -> int:
        """How many items are between the gate and the side's end."""
        return sum([len(edge.items) for edge in self.edges]) + sum([c.in_flight + len(c.pending) for c in self.cells])

    def available(self) -> int:
        """How many more items may enter the side now."""
        permitted = self.ledger.permits(self.side)
        return max(0, permitted - self.under_way()) if permitted else 0

    def may_stop(self) -> bool:
        """Whether a source on this side may end, now that the run is to stop, without harm to the ratio."""
        idle = all(peer.under_way() == 0 and all(edge.ended for edge in peer.heads) for peer in self.peers)
        return self.ledger.may_stop(self.side, idle)


@dataclass(slots=True, eq=False)
class Cell:
    """A stage at work. `stages` has one entry, or those of a fused call, in order. A plan's ends have no kind."""

    kind: Kind | None
    stages: list[StageId]
    calls: list[StageCall] = field(default_factory=list)
    """Of each of `stages` that has an operator."""
    call: Callable[[Sequence[Any]], Any] | None = None
    inboxes: list[Edge] = field(default_factory=list)
    outs: dict[Hashable, Edge] = field(default_factory=dict)
    gates: list[Gate] = field(default_factory=list)
    """Of a source: the paces that hold it, the innermost first. Other cells are held at their inbox's gates."""
    sides: list[tuple[Ledger | None, str]] = field(default_factory=list)
    """Of a merge or a plan's end: whom to tell, and under which name, of what came by each inbox."""
    handed_on: str | None = None
    """Of a merge: the side whose items it hands on; None: all."""
    meters: list[Meter] = field(default_factory=list)
    clock: Clock = field(default_factory=Clock)
    in_flight: int = 0
    pending: deque[tuple[Edge, Any]] = field(default_factory=deque)
    exhausted: bool = False
    ended: bool = False
    lost: int = 0
    """Items that went down with the process that they were at."""
    next_inbox: int = 0

    @property
    def is_plumbing(self) -> bool:
        """Whether no stage of the plan's author stands here: a plan's end, or a carrier between two buffers."""
        return self.kind is None or self.kind is Kind.QUEUE

    @property
    def is_idle(self) -> bool:
        """Nothing is in flight, and nothing made is still undelivered."""
        return self.in_flight == 0 and not self.pending

    @property
    def is_abandoned(self) -> bool:
        """Nobody will take what it makes: all its consumers have ended."""
        return bool(self.outs) and all(edge.discarding for edge in self.outs.values())

    def held(self) -> int:
        """How many items are here, or on their way to here."""
        return sum(len(edge.items) for edge in self.inboxes) + self.in_flight + len(self.pending)

    def room(self) -> int:
        """How many items its consumers have room for."""
        return min([edge.room() for edge in self.outs.values()], default=UNLIMITED)

    def hands_on(self, index: int) -> bool:
        """Whether what comes by an inbox goes to its consumers."""
        return self.handed_on in (None, self.sides[index][1])

    def leave(self) -> bool:
        """Ended sides leave their pace, and what nobody will take any more is discarded; whether there was any."""
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

    def deliver(self) -> bool:
        """Hands on what is pending as far as there is room, in order on each edge; whether anything moved."""
        waiting: deque[tuple[Edge, Any]] = deque()
        for edge, item in self.pending:
            if edge.room() > 0:  # an edge that is full stays so meanwhile, so each keeps its order
                edge.put(item)
            else:
                waiting.append((edge, item))
        moved = len(waiting) < len(self.pending)
        self.pending = waiting
        return moved

    def takeable(self, index: int = 0) -> int:
        """How many items may be taken from an inbox now, by what is there and what its gates grant."""
        edge = self.inboxes[index]
        waiting = len(edge.items)
        if waiting and edge.gates:
            return min(waiting, *[gate.available() for gate in edge.gates])
        return waiting

    def take(self, count: int, index: int = 0) -> list[Any]:
        """The next `count` items of an inbox."""
        items = self.inboxes[index].items
        return [items.popleft() for _ in range(count)]

    def waits_for(self) -> str | None:
        """What keeps it from moving, in words; None where its own edges and gates do not."""
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
