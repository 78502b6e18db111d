"""Dry run of a plan: one item per source passes through every stage, to test that operators fit together.

Ratios and capacities are ignored.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from marlflow.base.errors import StageFailed
from marlflow.flow.cells import Cell
from marlflow.flow.compile import compile_plan
from marlflow.flow.firing import Firing, named
from marlflow.flow.flow import Flow, Kind
from marlflow.flow.operators import StageCall
from marlflow.flow.pace import UNLIMITED
from marlflow.flow.plan import Plan


@dataclass(frozen=True, slots=True)
class FailedStage:
    """The first stage that failed, the input of its fused call (None for a source), and the error."""

    call: StageCall
    given: Any
    failure: StageFailed


def rehearse(plan: Plan, experience: Flow[Any]) -> FailedStage | None:
    """Run the first item of `experience`, then of each other source; return the failure, if any.

    A gather emits its remainder if it can; items that it withholds do not reach later stages.
    """
    rehearsal = _Rehearsal(plan, experience)
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(rehearsal.run())
    else:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, rehearsal.run()).result()
    return rehearsal.broken


class _Rehearsal:
    def __init__(self, plan: Plan, experience: Flow[Any]) -> None:
        network = compile_plan(plan)
        for edge in network.edges:
            edge.capacity, edge.full = UNLIMITED, "wait"
            edge.gates.clear()
        self._cells = network.cells
        self._sources = [cell for cell in self._cells if cell.kind is Kind.SOURCE]
        self._sources.sort(key=lambda cell: cell.calls[0] is not experience.call)
        self._firing = Firing(_ignore, ())
        self.broken: FailedStage | None = None

    async def run(self) -> None:
        for source in self._sources:
            await self._fire(source, [None])
            await self._flow()
            for cell in self._cells:
                if cell.kind is Kind.GATHER and self.broken is None:
                    self._hand_over(cell)
                    await self._flow()

    async def _flow(self) -> None:
        moved = True
        while moved and self.broken is None:
            moved = False
            for cell in self._cells:
                for index, inbox in enumerate(cell.inboxes):
                    if inbox.items and self.broken is None:
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
            if self.broken is not None:
                return
            if cell.kind in (Kind.SOURCE, Kind.THEN):
                firing.call(cell, [item])
            elif cell.kind in (Kind.GATHER, Kind.SPLIT):
                firing.divide(cell, item)
            else:
                firing.copy(cell, [item])
            while firing.in_flight:
                firing.landed.clear()
                await firing.landed.wait()
            self._look(cell, item)

    def _hand_over(self, cell: Cell) -> None:
        try:
            self._firing.hand_over(cell)
        except Exception as error:  # noqa: BLE001  every error of an operator is named with its stage
            self._firing.failure = named(cell.stages[0], error)
        cell.deliver()
        self._look(cell, None)

    def _look(self, cell: Cell, given: Any) -> None:
        failure = self._firing.failure
        if isinstance(failure, StageFailed):
            position = [stage.stage for stage in cell.stages].index(failure.stage)
            self.broken = FailedStage(cell.calls[position], given, failure)
        elif failure is not None:
            raise failure


def _ignore(_plan: str, _item: Any) -> None:
    pass
