"""Dry run of a plan: one item per source passes through every stage, to test that operators fit together."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from marlflow.base.errors import StageFailed
from marlflow.flow.cells import Cell
from marlflow.flow.compile import compile_plan
from marlflow.flow.firing import Firing, stage_failure
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.pace import UNLIMITED
from marlflow.flow.plan import Plan
from marlflow.flow.protocols import StageCall


@dataclass(frozen=True, slots=True)
class FailedStage:
    """The first stage that failed, its input (None for a source), and the error."""

    call: StageCall
    given: Any
    failure: StageFailed


def rehearse(plan: Plan, experience: Flow[Any]) -> FailedStage | None:
    """Run the first item of `experience`, then of each other source; return the first failure, if any."""
    rehearsal = _Rehearsal(plan, experience)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(rehearsal.run())
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, rehearsal.run()).result()
    return rehearsal.failed


class _Rehearsal:
    def __init__(self, plan: Plan, experience: Flow[Any]) -> None:
        network = compile_plan(plan)
        # Ratios and capacities are ignored.
        for edge in network.edges:
            edge.capacity, edge.full = UNLIMITED, "wait"
            edge.gates.clear()
        self._cells = network.cells
        self._sources = [cell for cell in self._cells if cell.kind is Kind.SOURCE]
        self._sources.sort(key=lambda cell: cell.calls[0] is not experience.call)
        self._firing = Firing(_ignore, ())
        self.failed: FailedStage | None = None

    # Gathers are flushed, since what they hold would reach no later stage.
    async def run(self) -> None:
        for source in self._sources:
            await self._fire(source, [None])
            await self._run_cells()
            for cell in self._cells:
                if cell.kind is Kind.GATHER and self.failed is None:
                    self._flush(cell)
                    await self._run_cells()

    async def _run_cells(self) -> None:
        moved = True
        while moved and self.failed is None:
            moved = False
            for cell in self._cells:
                for index, inbox in enumerate(cell.inboxes):
                    if inbox.items and self.failed is None:
                        await self._take(cell, index)
                        moved = True

    async def _take(self, cell: Cell, index: int) -> None:
        items = cell.take(len(cell.inboxes[index].items), index)
        if cell.kind is Kind.MERGE:
            for item in items if cell.emits(index) else ():
                cell.outs[None].put(item)
        # Items at a plan's end are discarded.
        elif cell.kind is not None:
            await self._fire(cell, items)

    async def _fire(self, cell: Cell, items: list[Any]) -> None:
        firing = self._firing
        for item in items:
            if self.failed is not None:
                return
            if cell.kind in (Kind.SOURCE, Kind.THEN):
                firing.call(cell, [item])
            elif cell.kind in (Kind.GATHER, Kind.SPLIT):
                firing.divide(cell, iter([item]))
            else:
                firing.copy(cell, [item])
            while firing.in_flight:
                firing.call_done.clear()
                await firing.call_done.wait()
            self._note_failure(cell, item)

    def _flush(self, cell: Cell) -> None:
        try:
            self._firing.flush(cell)
        except (Exception, SystemExit) as error:  # noqa: BLE001  every error of an operator is named with its stage
            self._firing.failure = stage_failure(cell.stages[0], error)
        cell.deliver()
        self._note_failure(cell, None)

    def _note_failure(self, cell: Cell, given: Any) -> None:
        failure = self._firing.failure
        if isinstance(failure, StageFailed):
            position = [stage.stage for stage in cell.stages].index(failure.stage)
            self.failed = FailedStage(cell.calls[position], given, failure)
        elif failure is not None:
            raise failure


def _ignore(_plan: str, _item: Any) -> None:
    pass
