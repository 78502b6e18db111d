"""Calls of operators, with delivery, metering and hooks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from itertools import islice
from types import TracebackType
from typing import Any

from marlflow.base.errors import MarlflowError, StageFailed
from marlflow.flow.cells import Cell
from marlflow.flow.flow import Kind
from marlflow.flow.meters import Condition, Hook, StageId, rows_of
from marlflow.flow.protocols import EndOfFlow, GivesRest, OperatorRaised, Outcome, StageTimes

_ENDS_OF_FLOW = (EndOfFlow, StopIteration, StopAsyncIteration)


class Firing:
    """Fires an executor's cells; tracks calls in flight and the first failure."""

    def __init__(
        self,
        on_output: Callable[[str, Any], None],
        hooks: Sequence[Hook],
        on_also: Callable[[str, Any], None] | None = None,
    ) -> None:
        self._on_output, self._on_also = on_output, on_also
        self._hooks = tuple(hooks)
        self._calls: set[asyncio.Future[Any]] = set()
        # Whether any source has ended by itself.
        self.exhausted = False
        self.failure: BaseException | None = None
        self.call_done = asyncio.Event()

    @property
    def in_flight(self) -> int:
        """The number of calls that have not ended."""
        return len(self._calls)

    def call(self, cell: Cell, items: list[Any]) -> None:
        """Call a `then` or source with items (None per turn of a source)."""
        began_s = self._start(cell, len(items))
        try:
            result = cell.call(items) if cell.call is not None else cell.calls[0](items[0])
            if hasattr(type(result), "__await__"):
                awaited: asyncio.Future[Any] = asyncio.ensure_future(result)
                cell.in_flight = len(items)
                self._calls.add(awaited)
                awaited.add_done_callback(partial(self._complete, cell, len(items), began_s))
                return
        except (Exception, SystemExit) as error:  # noqa: BLE001  every error of an operator is named with its stage
            self._fail(cell, error)
            return
        self._finish(cell, len(items), result, began_s)

    def divide(self, cell: Cell, items: Iterator[Any], most: int = 1) -> None:
        """Pass items to a gather or split, `most` at most or until there are results; deliver while there is room."""
        # A round may have a fragment of each of a thousand workers, so a gather takes all of them in one call.
        began_s = self._start(cell, most)
        operator = cell.calls[0].operator
        try:
            results: list[tuple[Hashable, Any]] = []
            for item in islice(items, most):
                if cell.kind is Kind.GATHER:
                    results = [(None, part) for part in operator.add(item)]
                else:
                    results = list(operator(item))
                if results:
                    break
            rows = 0
            for branch, part in results:
                if branch not in cell.outs:
                    raise KeyError(f"it routed an item to {branch!r}; its branches are {sorted(map(str, cell.outs))}")
                cell.pending.append((cell.outs[branch], part))
                rows += rows_of(part)
        except (Exception, SystemExit) as error:  # noqa: BLE001  every error of an operator is named with its stage
            self._fail(cell, error)
            return
        # Results that do not fit yet stay in `pending`.
        cell.deliver()
        self._record_own(cell, len(results), rows, began_s)

    def flush(self, cell: Cell) -> bool:
        """Flush a gather's remainder; return whether there was any."""
        operator = cell.calls[0].operator
        if not isinstance(operator, GivesRest):
            return False
        try:
            remainder = list(operator.rest())
            rows = sum(map(rows_of, remainder))
        except (Exception, SystemExit) as error:  # noqa: BLE001  every error of an operator is named with its stage
            self._fail(cell, error)
            return False
        cell.pending.extend((cell.outs[None], part) for part in remainder)
        if remainder:
            now = time.time()
            self._record(cell, len(remainder), [StageTimes(now, now, rows)])
        return bool(remainder)

    def copy(self, cell: Cell, items: list[Any]) -> None:
        """Copy each item to every consumer."""
        # Carriers between two buffers are not metered.
        began_s = None if cell.is_plumbing else self._start(cell, len(items))
        for item in items:
            for edge in cell.outs.values():
                edge.put(item)
        if began_s is not None:
            self._record_own(cell, len(items), sum(map(rows_of, items)), began_s)

    def take_side(self, cell: Cell, index: int) -> None:
        """Take one item from a side, for a merge or a plan's end."""
        items = cell.take(1, index)
        ledger, side = cell.sides[index]
        if ledger is not None:
            ledger.took(side, rows_of(items[0]))
        if cell.kind is Kind.MERGE:
            began_s = self._start(cell, 1)
            emitted = items if cell.emits(index) else []
            for item in emitted:
                cell.outs[None].put(item)
            self._record_own(cell, len(emitted), sum(map(rows_of, emitted)), began_s)
        elif side == "output":
            self._on_output(cell.stages[0].plan, items[0])
        elif self._on_also is not None:
            self._on_also(cell.stages[0].plan, items[0])

    def cancel(self) -> None:
        """Cancel all calls in flight."""
        for call in self._calls:
            call.cancel()

    async def settle(self, limit_s: float) -> None:
        """Wait up to `limit_s` seconds for calls in flight."""
        # No call may outlive a failure.
        deadline = time.monotonic() + limit_s
        while self.in_flight and (left_s := deadline - time.monotonic()) > 0:
            self.call_done.clear()
            try:
                await asyncio.wait_for(self.call_done.wait(), left_s)
            except TimeoutError:
                return

    # -- landing ------------------------------------------------------------------------------------------------

    def _complete(self, cell: Cell, turns: int, began_s: float, future: asyncio.Future[Any]) -> None:
        cell.in_flight = 0
        self._calls.discard(future)
        self.call_done.set()
        if future.cancelled():
            self._fail(cell, asyncio.CancelledError("the call was cancelled"))
        elif (error := future.exception()) is not None:
            self._fail(cell, error)
        else:
            try:
                self._finish(cell, turns, future.result(), began_s)
            except Exception as error:  # noqa: BLE001  a hook's; the loop raises it, since a callback has no caller
                self.failure = self.failure or error

    def _finish(self, cell: Cell, turns: int, result: Any, began_s: float) -> None:
        out = cell.outs[None]
        if cell.call is None:
            try:
                rows = rows_of(result)
            except Exception as error:  # noqa: BLE001  the item's `rows` raised
                self._fail(cell, error)
                return
            out.put(result)
            self._record_own(cell, 1, rows, began_s)
            return
        outcome: Outcome = result
        outputs = len(outcome.outputs)
        cell.lost += outcome.lost
        # Only a source may return fewer outputs than turns: it has ended.
        missing = turns - outputs - outcome.lost
        if cell.kind is Kind.SOURCE and missing > 0:
            cell.exhausted = self.exhausted = True
        elif missing:
            self._fail(cell, ValueError(f"its place returned {outputs} outputs for {turns} items"))
            return
        for item in outcome.outputs:
            out.put(item)
        self._record(cell, outputs, outcome.times)

    def _fail(self, cell: Cell, error: BaseException) -> None:
        # A fused call says which of its operators raised; the end of a flow counts only from its source.
        position, cause = 0, error
        if isinstance(error, OperatorRaised):
            position, cause = error.position, error.__cause__ or error
        if cell.kind is Kind.SOURCE and position == 0 and isinstance(cause, _ENDS_OF_FLOW):
            cell.exhausted = self.exhausted = True
            # The call made nothing, so no hook is called: the time is not the stage's work.
            cell.clock.condition = Condition.BLOCKED
            cell.clock.turn(condition(cell), time.perf_counter())
        elif self.failure is None:
            self.failure = stage_failure(cell.stages[position], cause)

    # -- metering -----------------------------------------------------------------------------------------------

    def _start(self, cell: Cell, items: int) -> float:
        for hook in self._hooks:
            for stage in cell.stages:
                hook.before(stage, items)
        # In this order, so that no call seems to end after its observers were called.
        began_s = time.time()
        cell.clock.call_began_s = now_s = time.perf_counter()
        cell.clock.turn(Condition.BUSY, now_s)
        return began_s

    def _record_own(self, cell: Cell, items: int, rows: int, began_s: float) -> None:
        # A call in this process is measured by its cell's clock, because a second clock may be read much later.
        now_s = time.perf_counter()
        ended_s = began_s + (now_s - cell.clock.call_began_s)
        self._record(cell, items, [StageTimes(began_s, ended_s, rows)], now_s)

    def _record(self, cell: Cell, items: int, times: Sequence[StageTimes], now_s: float | None = None) -> None:
        now_s = time.perf_counter() if now_s is None else now_s
        cell.clock.called_s += now_s - cell.clock.call_began_s
        cell.clock.turn(condition(cell), now_s)
        for stage, meter, stage_times in zip(cell.stages, cell.meters, times, strict=True):
            meter.items += items
            meter.rows += stage_times.rows
            meter.busy_s += max(0.0, stage_times.ended_s - stage_times.began_s)
            for hook in self._hooks:
                hook.after(stage, items, stage_times)


def condition(cell: Cell) -> Condition:
    """Return the cell's current condition."""
    if cell.ended:
        return Condition.ENDED
    if cell.in_flight:
        return Condition.BUSY
    if cell.pending or not cell.inboxes or any(edge.items for edge in cell.inboxes):
        return Condition.BLOCKED
    return Condition.STARVED


def current_condition(cell: Cell) -> Condition:
    """Return the cell's condition; one in its own call, which may ask for metrics, is busy until the call ends."""
    return Condition.BUSY if cell.clock.condition is Condition.BUSY else condition(cell)


def stage_failure(stage: StageId, cause: BaseException) -> StageFailed:
    """Return a StageFailed whose traceback starts in user code."""
    reason = str(cause) if isinstance(cause, MarlflowError | OperatorRaised) else f"{type(cause).__name__}: {cause}"
    if isinstance(cause, RuntimeError) and isinstance(cause.__cause__, StopIteration | StopAsyncIteration):
        reason += "; a source that is awaited ends its flow by raising EndOfFlow"
    failure = StageFailed(stage.stage, stage.plan, stage.path, reason)
    failure.__cause__ = cause.with_traceback(_without_frames_of_flow(cause.__traceback__))
    return failure


def _without_frames_of_flow(traceback: TracebackType | None) -> TracebackType | None:
    while traceback is not None and traceback.tb_frame.f_globals.get("__name__", "").startswith("marlflow.flow."):
        traceback = traceback.tb_next
    return traceback
