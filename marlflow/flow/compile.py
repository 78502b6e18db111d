"""From a plan to cells and edges: fuses neighbours of one place, and hangs each pace's gates where its sides begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from marlflow.flow.cells import Cell, Edge, Gate
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.meters import Meter, StageId
from marlflow.flow.pace import Ledger, Pace
from marlflow.flow.plan import AnyPlan, Plan, all_stages, consumers, owners, plans_of

TURNS_PER_CALL = 64
"""How many turns of a source at a place are one call at most, where the plan ends behind it."""


@dataclass(slots=True)
class Network:
    """A compiled plan: its cells, sources first; who owns what; and the ledgers by the name of their pace."""

    cells: list[Cell] = field(default_factory=list)
    by_plan: dict[str, list[Cell]] = field(default_factory=dict)
    feeds: dict[str, Edge] = field(default_factory=dict)
    """The queue by which each plan takes its part of the shared stream."""
    edges: list[Edge] = field(default_factory=list)
    ledgers: dict[str, Ledger] = field(default_factory=dict)

    def ledgers_of(self, plan: str) -> list[Ledger]:
        """Those of a plan's own pace and of its merges."""
        return [ledger for name, ledger in self.ledgers.items() if name == plan or name.startswith(f"{plan}/")]


def compile_plan(plan: AnyPlan) -> Network:
    """The plan's cells, wired."""
    return _Compiler(plan).network


class _Compiler:
    def __init__(self, plan: AnyPlan) -> None:
        self.network = Network()
        self._owner = owners(plan)
        self._consumers = consumers(all_stages(plan))
        self._paths = stage_paths(plan)
        self._cells: dict[int, Cell] = {}
        self._fed_by: dict[int, tuple[Flow[Any], ...]] = {}  # by the cell's identity: a flow for each inbox
        self._gates: dict[int, list[Gate]] = {}  # by the ledger's identity
        for one in plans_of(plan):
            self._close(one)

    def _close(self, plan: Plan) -> None:
        """Builds everything upstream of a plan's ends, and the cells that take what leaves it."""
        ledger = self._ledger(plan.pace, plan.name)
        for side, end in plan.ends().items():
            edge = self._edge(end)
            cell = self._cells.get(id(end))
            if cell is not None and cell.kind is Kind.SOURCE and cell.call is not None:
                edge.capacity = TURNS_PER_CALL  # a plan's end takes them all at once
            self._add(Cell(None, [StageId(plan.name, f"({side})")], inboxes=[edge], sides=[(ledger, side)]))
            self._gate(end, edge, ledger, side)

    def _ledger(self, pace: Pace | None, name: str) -> Ledger | None:
        ledger = pace.ledger() if pace is not None else None
        if ledger is not None:
            self.network.ledgers[name] = ledger
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
        """A new edge that carries the items of `flow` to whoever asks."""
        if flow.kind is Kind.QUEUE:
            return self._queue(flow)
        if _is_fork_branch(flow):
            return self._wire(flow, Edge(flow.capacity or 1, flow.full, self._id(flow)))
        if flow.kind is Kind.BRANCH:
            return self._wire(flow, Edge())
        cell = self._cell(flow)
        # A call takes all that waits for it, so there has to be room for all that comes back.
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
            # Two buffers in a row: something has to carry items from one to the other.
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
        """The cell of a stage, built once with all that feeds it."""
        if (known := self._cells.get(id(flow))) is not None:
            return known
        chain = self._chain(flow)
        first = chain[0]
        calls = [stage.call for stage in chain if stage.call is not None]
        cell = Cell(first.kind, [self._id(stage) for stage in chain], calls)
        self._cells.update((id(stage), cell) for stage in chain)
        self._fed_by[id(cell)] = first.inputs
        cell.inboxes = [self._edge(before) for before in first.inputs]
        if (place := first.place) is not None:
            cell.call = place.prepare(cell.calls)
        if first.kind is Kind.MERGE:
            ledger = self._ledger(first.pace, f"{self._owner[id(first)]}/{first.name}")
            cell.sides, cell.handed_on = [(ledger, side) for side in first.sides], first.handed_on
            for side, before, edge in zip(first.sides, first.inputs, cell.inboxes, strict=True):
                self._gate(before, edge, ledger, side)
        return self._add(cell)

    def _chain(self, flow: Flow[Any]) -> list[Flow[Any]]:
        """The stage and the neighbours before it that share its place, first to last."""
        chain = [flow]
        place = flow.place
        while place is not None and chain[0].kind is Kind.THEN:
            before = chain[0].inputs[0]
            fusible = before.kind in (Kind.THEN, Kind.SOURCE) and before.place is place
            if not fusible or len(self._consumers[id(before)]) > 1:
                break
            chain.insert(0, before)
        return chain

    # -- gates --------------------------------------------------------------------------------------------------

    def _gate(self, end: Flow[Any], edge: Edge, ledger: Ledger | None, side: str) -> None:
        """Holds a side back where it begins: at sources, and just behind a fork, a split or a queue."""
        if ledger is None:
            return
        peers = self._gates.setdefault(id(ledger), [])
        gate = Gate(ledger, side, peers)
        peers.append(gate)
        self._hang(gate, end, edge)

    def _hang(self, gate: Gate, flow: Flow[Any], edge: Edge) -> None:
        if flow.kind in (Kind.BRANCH, Kind.QUEUE):
            edge.gates.append(gate)
            gate.heads.append(edge)
            return
        cell = self._cells[id(flow)]
        gate.edges.append(edge)
        gate.cells.append(cell)
        if cell.kind is Kind.SOURCE:
            cell.gates.append(gate)
        for before, inbox in zip(self._fed_by[id(cell)], cell.inboxes, strict=True):
            self._hang(gate, before, inbox)


def _is_fork_branch(flow: Flow[Any]) -> bool:
    return flow.kind is Kind.BRANCH and flow.inputs[0].kind is Kind.FORK


def stage_paths(plan: AnyPlan) -> dict[str, str]:
    """For each plan, its stages in order on one line, as error messages show them."""
    paths: dict[str, list[str]] = {}
    owner = owners(plan)
    for stage in all_stages(plan):
        if stage.kind not in (Kind.BRANCH, Kind.QUEUE, Kind.FORK):
            paths.setdefault(owner[id(stage)], []).append(stage.name)
    return {name: " -> ".join(names) for name, names in paths.items()}
