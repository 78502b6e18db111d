"""From a plan to cells and edges: fuses neighbours of one place, and hangs each pace's gates where its sides begin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from marlflow.flow.cells import Cell, Edge, Gate
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.meters import Meter, StageId
from marlflow.flow.operators import place_of
from marlflow.flow.pace import Ledger, Pace
from marlflow.flow.plan import AnyPlan, Plan, Together, all_stages, consumers, owners


@dataclass(slots=True)
class Network:
    """A compiled plan: its cells, sources first; who owns what; and the ledgers by the name of their pace."""

    cells: list[Cell] = field(default_factory=list)
    by_plan: dict[str, list[Cell]] = field(default_factory=dict)
    feeds: dict[str, Edge] = field(default_factory=dict)
    """The queue by which each plan takes its part of the shared stream."""
    edges: list[Edge] = field(default_factory=list)
    ledgers: dict[str, Ledger] = field(default_factory=dict)


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
        for one in plan.plans if isinstance(plan, Together) else (plan,):
            self._close(one)

    def _close(self, plan: Plan) -> None:
        """Builds everything upstream of a plan's ends, and the cells that take what leaves it."""
        ledger = self._ledger(plan.pace, plan.name)
        for side, end in plan.ends().items():
            edge = self._edge(end)
            sink = Cell(None, [StageId(plan.name, f"({side})")], inboxes=[edge], sides=[(ledger, side)])
            self._add(sink)
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

    def _edge(self, flow: Flow[Any], capacity: int = 1, full: Any = "wait", stage: StageId | None = None) -> Edge:
        """A new edge that carries the items of `flow` to whoever asks."""
        if flow.kind is Kind.QUEUE:
            return self._queue(flow)
        edge = Edge(capacity, full, stage)
        if flow.kind is Kind.BRANCH:
            divider = flow.inputs[0]
            cell = self._cell(divider)
            if divider.kind is Kind.FORK:
                edge = Edge(flow.capacity or 1, flow.full, self._id(flow))
            cell.outs[flow.branch] = edge
        else:
            self._cell(flow).outs[None] = edge
        self.network.edges.append(edge)
        return edge

    def _queue(self, flow: Flow[Any]) -> Edge:
        before = flow.inputs[0]
        stage, capacity = self._id(flow), flow.capacity or 1
        buffered = before.kind is Kind.QUEUE or (before.kind is Kind.BRANCH and before.inputs[0].kind is Kind.FORK)
        if buffered:  # two buffers in a row: something has to carry items from one to the other
            edge = self._relay(self._edge(before), stage.plan, Edge(capacity, flow.full, stage))
        else:
            edge = self._edge(before, capacity, flow.full, stage)
        if before.kind is Kind.BRANCH and self._owner[id(before)] != stage.plan:
            self.network.feeds[stage.plan] = edge
        return edge

    def _relay(self, source: Edge, plan: str, target: Edge | None = None) -> Edge:
        target = target or Edge()
        self._add(Cell(Kind.QUEUE, [StageId(plan, "(carry)")], inboxes=[source], outs={None: target}))
        self.network.edges.append(target)
        return target

    def _cell(self, flow: Flow[Any]) -> Cell:
        """The cell of a stage, built once with all that feeds it."""
        if (known := self._cells.get(id(flow))) is not None:
            return known
        chain = self._chain(flow)
        first = chain[0]
        cell = Cell(flow.kind if len(chain) == 1 else Kind.THEN, [self._id(stage) for stage in chain])
        cell.kind = first.kind if first.kind is Kind.SOURCE else cell.kind
        cell.operators = [stage.operator for stage in chain]
        if (place := place_of(first.operator)) is not None and first.kind in (Kind.SOURCE, Kind.THEN):
            cell.call = place.prepare(cell.operators)
        ledger = self._ledger(first.pace, f"{self._owner[id(first)]}/{first.name}")
        for position, before in enumerate(first.inputs):
            edge = self._edge(before)
            cell.inboxes.append(edge)
            if first.kind is Kind.MERGE:
                side = first.sides[position]
                cell.sides.append((ledger, side))
                self._gate(before, edge, ledger, side)
        for stage in chain:
            self._cells[id(stage)] = cell
        return self._add(cell)

    def _chain(self, flow: Flow[Any]) -> list[Flow[Any]]:
        """The stage and the neighbours before it that share its place, first to last."""
        chain = [flow]
        place = place_of(flow.operator)
        while place is not None and chain[0].kind is Kind.THEN:
            before = chain[0].inputs[0]
            fusible = before.kind in (Kind.THEN, Kind.SOURCE) and place_of(before.operator) is place
            if not fusible or len(self._consumers[id(before)]) > 1:
                break
            chain.insert(0, before)
        return chain

    def _gate(self, end: Flow[Any], edge: Edge, ledger: Ledger | None, side: str) -> None:
        """Holds a side back where it begins: at sources, and just behind a fork, a split or a queue."""
        if ledger is None:
            return
        gate = Gate(ledger, side)
        self._hang(gate, end, edge)

    def _hang(self, gate: Gate, flow: Flow[Any], edge: Edge) -> None:
        if flow.kind in (Kind.BRANCH, Kind.QUEUE):
            edge.gates.append(gate)
            return
        cell = self._cells[id(flow)]
        gate.edges.append(edge)
        if cell in gate.cells:
            return
        gate.cells.append(cell)
        if cell.kind is Kind.SOURCE:
            cell.gates.append(gate)
        first = next(stage for stage in self._chain(flow))
        for before, inbox in zip(first.inputs, cell.inboxes, strict=True):
            self._hang(gate, before, inbox)


def stage_paths(plan: AnyPlan) -> dict[str, str]:
    """For each plan, its stages in order on one line, as error messages show them."""
    paths: dict[str, list[str]] = {}
    owner = owners(plan)
    for stage in all_stages(plan):
        if stage.kind not in (Kind.BRANCH, Kind.QUEUE, Kind.FORK):
            paths.setdefault(owner[id(stage)], []).append(stage.name)
    return {name: " -> ".join(names) for name, names in paths.items()}
