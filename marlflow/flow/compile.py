"""Compilation of a plan into cells and edges: fuses adjacent stages and places gates."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from marlflow.flow.cells import Cell, Edge, Gate
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.meters import Meter, StageId
from marlflow.flow.pace import Pace, PaceLedger
from marlflow.flow.plan import AnyPlan, Plan, all_stages, consumers, owners, plans_of

TURNS_PER_CALL = 64
"""The most turns per call of a source whose plan ends directly after it."""


@dataclass(slots=True)
class Network:
    """A compiled plan: cells, sources first, and ledgers by pace name."""

    cells: list[Cell] = field(default_factory=list)
    by_plan: dict[str, list[Cell]] = field(default_factory=dict)
    feeds: dict[str, Edge] = field(default_factory=dict)
    """The queue that connects each plan to the shared stream."""
    edges: list[Edge] = field(default_factory=list)
    ledgers: dict[str, PaceLedger] = field(default_factory=dict)
    paced_at: dict[str, set[str]] = field(default_factory=dict)
    """By ledger, the learners and replays that the last stages of its sides run at."""

    def ledgers_of(self, plan: str, at: str | None = None) -> list[PaceLedger]:
        """Return the ledgers of a plan's pace and merges; if some pace stages `at` a learner or replay, only these."""
        names = [name for name in self.ledgers if name == plan or name.startswith(f"{plan}/")]
        there = [name for name in names if at in self.paced_at[name]]
        return [self.ledgers[name] for name in there or names]


def compile_plan(plan: AnyPlan) -> Network:
    """Compile a plan into cells."""
    return _Compiler(plan).network


class _Compiler:
    def __init__(self, plan: AnyPlan) -> None:
        self.network = Network()
        self._owner = owners(plan)
        self._consumers = consumers(all_stages(plan))
        self._paths = stage_paths(plan)
        self._cells: dict[int, Cell] = {}
        # One flow per inbox, by the cell's identity.
        self._inputs: dict[int, tuple[Flow[Any], ...]] = {}
        # By the ledger's identity.
        self._gates: dict[int, list[Gate]] = {}
        for member in plans_of(plan):
            self._add_ends(member)

    def _add_ends(self, plan: Plan) -> None:
        ledger = self._ledger(plan.pace, plan.name, plan.ends().values())
        for side, end in plan.ends().items():
            edge = self._edge(end)
            cell = self._cells.get(id(end))
            if cell is not None and cell.kind is Kind.SOURCE and cell.call is not None:
                # A plan's end takes all items at once, so a source may make many per call.
                edge.capacity = TURNS_PER_CALL
            self._add(Cell(None, [StageId(plan.name, f"({side})")], inboxes=[edge], sides=[(ledger, side)]))
            self._gate(end, edge, ledger, side)

    def _ledger(self, pace: Pace | None, name: str, sides: Iterable[Flow[Any]]) -> PaceLedger | None:
        ledger = pace.ledger() if pace is not None else None
        if ledger is not None:
            self.network.ledgers[name] = ledger
            self.network.paced_at[name] = {side.at.name for side in sides if hasattr(side.at, "name")}
        return ledger

    def _add(self, cell: Cell) -> Cell:
        cell.meters = [Meter() for _ in cell.stages]
        self.network.cells.append(cell)
        self.network.by_plan.setdefault(cell.stages[0].plan, []).append(cell)
        return cell

    def _id(self, flow: Flow[Any]) -> StageId:
        plan = self._owner[id(flow)]
        return StageId(plan, flow.name, self._paths.get(plan, ""))

    # -- edges --------------------------------------------------------------------------------------------------

    def _edge(self, flow: Flow[Any]) -> Edge:
        if flow.kind is Kind.QUEUE:
            return self._queue(flow)
        if _is_fork_branch(flow):
            return self._wire(flow, Edge(flow.capacity or 1, flow.full, self._id(flow)))
        if flow.kind is Kind.BRANCH:
            return self._wire(flow, Edge())
        cell = self._cell(flow)
        # A call takes all waiting items at once, so the output needs room for all results.
        return self._wire(flow, Edge(cell.inboxes[0].capacity if cell.call is not None and cell.inboxes else 1))

    def _wire(self, flow: Flow[Any], edge: Edge) -> Edge:
        cell = self._cell(flow.inputs[0] if flow.kind is Kind.BRANCH else flow)
        cell.outs[flow.branch] = edge
        self.network.edges.append(edge)
        return edge

    def _queue(self, flow: Flow[Any]) -> Edge:
        before, stage = flow.inputs[0], self._id(flow)
        edge = Edge(flow.capacity or 1, flow.full, stage)
        if before.kind is Kind.QUEUE or _is_fork_branch(before):
            # Two buffers in a row need a cell between them that moves items.
            self._add(
                Cell(Kind.QUEUE, [StageId(stage.plan, "(carry)")], inboxes=[self._edge(before)], outs={None: edge})
            )
            self.network.edges.append(edge)
        else:
            self._wire(before, edge)
        if before.kind is Kind.BRANCH and self._owner[id(before)] != stage.plan:
            self.network.feeds[stage.plan] = edge
        return edge

    # -- cells --------------------------------------------------------------------------------------------------

    def _cell(self, flow: Flow[Any]) -> Cell:
        if (cell_of_flow := self._cells.get(id(flow))) is not None:
            return cell_of_flow
        chain = self._chain(flow)
        first = chain[0]
        calls = [stage.call for stage in chain if stage.call is not None]
        cell = Cell(first.kind, [self._id(stage) for stage in chain], calls)
        self._cells.update((id(stage), cell) for stage in chain)
        self._inputs[id(cell)] = first.inputs
        cell.inboxes = [self._edge(before) for before in first.inputs]
        if (place := first.place) is not None:
            cell.call = place.prepare(cell.calls)
        if first.kind is Kind.MERGE:
            ledger = self._ledger(first.pace, f"{self._owner[id(first)]}/{first.name}", first.inputs)
            cell.sides, cell.emitted_side = [(ledger, side) for side in first.sides], first.emitted_side
            for side, before, edge in zip(first.sides, first.inputs, cell.inboxes, strict=True):
                self._gate(before, edge, ledger, side)
        return self._add(cell)

    def _chain(self, flow: Flow[Any]) -> list[Flow[Any]]:
        # Prepend the stages that run at the same place.
        chain = [flow]
        place = flow.place
        while place is not None and chain[0].kind is Kind.THEN:
            before = chain[0].inputs[0]
            # A stage with several consumers ends the chain: its items are needed outside the call.
            fusible = before.kind in (Kind.THEN, Kind.SOURCE) and before.place is place
            if not fusible or len(self._consumers[id(before)]) > 1:
                break
            chain.insert(0, before)
        return chain

    # -- gates --------------------------------------------------------------------------------------------------

    def _gate(self, end: Flow[Any], edge: Edge, ledger: PaceLedger | None, side: str) -> None:
        if ledger is None:
            return
        # A side is held back at its sources and directly after forks, splits and queues.
        peers = self._gates.setdefault(id(ledger), [])
        gate = Gate(ledger, side, peers)
        peers.append(gate)
        self._attach_gate(gate, end, edge)

    def _attach_gate(self, gate: Gate, flow: Flow[Any], edge: Edge) -> None:
        if flow.kind in (Kind.BRANCH, Kind.QUEUE):
            edge.gates.append(gate)
            gate.heads.append(edge)
            return
        cell = self._cells[id(flow)]
        gate.edges.append(edge)
        gate.cells.append(cell)
        if cell.kind is Kind.SOURCE:
            cell.gates.append(gate)
        for before, inbox in zip(self._inputs[id(cell)], cell.inboxes, strict=True):
            self._attach_gate(gate, before, inbox)


def _is_fork_branch(flow: Flow[Any]) -> bool:
    return flow.kind is Kind.BRANCH and flow.inputs[0].kind is Kind.FORK


def stage_paths(plan: AnyPlan) -> dict[str, str]:
    """Return each plan's stage names in order, for error messages."""
    paths: dict[str, list[str]] = {}
    owner = owners(plan)
    for stage in all_stages(plan):
        if stage.kind not in (Kind.BRANCH, Kind.QUEUE, Kind.FORK):
            paths.setdefault(owner[id(stage)], []).append(stage.name)
    return {name: " -> ".join(names) for name, names in paths.items()}
