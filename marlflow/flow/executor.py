"""The executor: one flat loop in one thread that moves items through a plan, waits on what is in flight, never polls.

Cells are looked at from the ends towards the sources, so that what is made is used before more is made, and always in
the same order, so that with operators that return at once two runs do the same in the same order.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from marlflow.base.errors import MarlflowError, StageFailed, Stalled
from marlflow.flow.cells import Cell
from marlflow.flow.compile import compile_plan
from marlflow.flow.flow import Kind
from marlflow.flow.meters import Condition, Hook, Meter, rows_of
from marlflow.flow.operators import OperatorRaised, Outcome, StageTimes
from marlflow.flow.plan import AnyPlan, Together


class Executor:
    """Runs a plan: `await executor.run()`, or `executor.run_sync()` from anywhere.

    `on_output(plan's name, item)` is called with each item that leaves a plan by its output. Raises PlanInvalid before
    anything starts, StageFailed when an operator raises, Stalled when nothing can move.
    """

    def __init__(
        self,
        plan: AnyPlan,
        on_output: Callable[[str, Any], None] | None = None,
        hooks: Sequence[Hook] = (),
    ) -> None:
        plan.check()
        self._plan = plan
        self._hooks = tuple(hooks)
        self._on_output = on_output or (lambda name, item: None)
        self._network = compile_plan(plan)
        self._order = list(reversed(self._network.cells))
        self._waiting_plans = _plans_that_wait(plan)
        self._stopping = False
        self._in_flight = 0
        self._failure: BaseException | None = None
        self._began_s = time.perf_counter()

    # -- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until every source has ended and everything they made has been used."""
        self._wake = asyncio.Event()
        now = time.perf_counter()
        self._began_s = now
        for cell in self._network.cells:
            cell.clock.since_s = now
        while True:
            moved = self._sweep()
            if self._failure is not None:
                await self._settle()
                raise self._failure
            if moved:
                await asyncio.sleep(0)
            elif self._in_flight:
                self._look()
                await self._wake.wait()
                self._wake.clear()
            elif all(cell.ended for cell in self._network.cells):
                return
            else:
                raise Stalled([(str(c.stages[0]), c.waits_for()) for c in self._network.cells if not c.ended])

    def run_sync(self) -> None:
        """The same, from code that is not asynchronous, in a notebook's running loop too."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(self.run())
            return
        failure: list[BaseException] = []

        def run_in_thread() -> None:
            try:
                asyncio.run(self.run())
            except BaseException as error:  # noqa: BLE001  carried over to the caller's thread, raised there
                failure.append(error)

        thread = threading.Thread(target=run_in_thread, name="marlflow-executor")
        thread.start()
        thread.join()
        if failure:
            raise failure[0]

    def stop(self) -> None:
        """Every source ends when its pace is next at rest; what is under way is finished."""
        self._stopping = True

    def end_plan(self, name: str) -> None:
        """The plan takes nothing more from the shared stream (counted as dropped); what it has is finished."""
        self._network.feeds[name].discard()

    # -- looking ------------------------------------------------------------------------------------------------

    def meters(self) -> dict[str, dict[str, Any]]:
        """Every stage's figures by `plan/stage`, up to now."""
        self._look()
        found: dict[str, dict[str, Any]] = {}
        elapsed = time.perf_counter() - self._began_s
        for cell in self._network.cells:
            if cell.kind is None or cell.stages[0].stage.startswith("("):
                continue
            for position, (stage, meter) in enumerate(zip(cell.stages, cell.meters, strict=True)):
                found[str(stage)] = _with_waits(meter, cell, position, elapsed).snapshot()
        for edge in self._network.edges:
            if edge.stage is not None:
                found[str(edge.stage)] = Meter(items=edge.passed, dropped=edge.dropped).snapshot()
        return found

    def held(self) -> dict[str, int]:
        """Items on the way, by the stage they wait for: for bounds and conservation."""
        return {
            str(cell.stages[0]): sum(len(edge.items) for edge in cell.inboxes) + cell.in_flight + len(cell.pending)
            for cell in self._network.cells
        }

    def ledger_state(self) -> dict[str, Any]:
        """Where every pace stands."""
        return {name: dict(ledger.state()) for name, ledger in self._network.ledgers.items()}

    # -- the loop -----------------------------------------------------------------------------------------------

    def _sweep(self) -> bool:
        moved = False
        for cell in self._order:
            if cell.ended:
                continue
            if cell.pending:
                moved |= cell.deliver()
            if self._fire(cell):
                moved = True
            if self._failure is not None:
                return moved
            if self._has_ended(cell):
                self._end(cell)
                moved = True
        return moved

    def _fire(self, cell: Cell) -> bool:
        if cell.kind is None or cell.kind is Kind.MERGE:
            return self._take_sides(cell)
        if cell.pending or cell.in_flight:
            return False
        if cell.kind is Kind.SOURCE:
            return self._fire_source(cell)
        count = cell.takeable()
        if count < 1:
            return False
        if cell.kind in (Kind.GATHER, Kind.SPLIT):
            self._divide(cell, cell.take(1)[0])
            return True
        count = min(count, cell.room())
        if count < 1:
            return False
        if cell.kind in (Kind.QUEUE, Kind.FORK):
            self._copy(cell, cell.take(count))
            return True
        self._start(cell, cell.take(count if cell.call is not None else 1))
        return True

    def _fire_source(self, cell: Cell) -> bool:
        count = min([cell.room(), *(gate.available() for gate in cell.gates)]) if cell.gates else min(1, cell.room())
        if cell.exhausted or count < 1 or self._should_end(cell) or not self._may_begin_round(cell):
            return False
        self._start(cell, [None] * (count if cell.call is not None else 1))
        return True

    def _may_begin_round(self, cell: Cell) -> bool:
        if not isinstance(self._plan, Together) or cell.stages[0].plan != self._plan.name:
            return True
        overlap = self._plan.rounds.overlap
        return all(
            cell.ended or (_took_all(cell) if overlap else _took_all(cell) and cell.is_idle)
            for name in self._waiting_plans
            for cell in self._network.by_plan[name]
        )

    def _start(self, cell: Cell, items: list[Any]) -> None:
        for hook in self._hooks:
            hook.before(cell.stages[0], len(items))
        began = time.time()
        cell.clock.turn(Condition.BUSY, time.perf_counter())
        try:
            if cell.call is not None:
                result = cell.call(items)
            else:
                result = cell.operators[0]() if cell.kind is Kind.SOURCE else cell.operators[0](items[0])
        except StopIteration:
            cell.exhausted = True
            return
        except Exception as error:  # noqa: BLE001  every error of an operator is named with its stage and raised
            self._fail(cell, error)
            return
        if inspect.isawaitable(result):
            cell.in_flight = len(items)
            self._in_flight += 1
            future = asyncio.ensure_future(_awaited(result))
            future.add_done_callback(lambda done: self._landed(cell, done, began))
        else:
            self._finish(cell, result, began)

    def _landed(self, cell: Cell, done: asyncio.Future[Any], began: float) -> None:
        cell.in_flight = 0
        self._in_flight -= 1
        self._wake.set()
        if done.cancelled():
            self._fail(cell, asyncio.CancelledError("the call was cancelled"))
        elif (error := done.exception()) is not None:
            self._fail(cell, error)
        else:
            self._finish(cell, done.result(), began)

    def _finish(self, cell: Cell, result: Any, began: float) -> None:
        if cell.call is not None:
            outcome: Outcome = result
        else:
            outcome = Outcome([result], [StageTimes(began, time.time(), rows_of(result))])
        out = cell.outs[None]
        for item in outcome.outputs:
            out.put(item)
        self._record(cell, len(outcome.outputs), outcome.times)

    def _record(self, cell: Cell, items: int, times: Sequence[StageTimes]) -> None:
        for stage, meter, spent in zip(cell.stages, cell.meters, times, strict=True):
            meter.items += items
            meter.rows += spent.rows
            meter.busy_s += max(0.0, spent.ended_s - spent.began_s)
            for hook in self._hooks:
                hook.after(stage, items, spent)
        cell.clock.turn(self._condition(cell), time.perf_counter())

    def _divide(self, cell: Cell, item: Any) -> None:
        began = time.time()
        operator = cell.operators[0]
        for hook in self._hooks:
            hook.before(cell.stages[0], 1)
        try:
            if cell.kind is Kind.GATHER:
                parts = [(None, part) for part in operator.add(item)]
            else:
                parts = list(operator(item))
            cell.pending.extend((cell.outs[key], part) for key, part in parts)
        except Exception as error:  # noqa: BLE001  every error of an operator is named with its stage and raised
            self._fail(cell, _unknown_branch(error, cell))
            return
        cell.deliver()
        rows = sum(rows_of(part) for _, part in parts)
        self._record(cell, len(parts), [StageTimes(began, time.time(), rows)])

    def _copy(self, cell: Cell, items: list[Any]) -> None:
        for item in items:
            for edge in cell.outs.values():
                edge.put(item)
        rows, now = sum(rows_of(item) for item in items), time.time()
        self._record(cell, len(items), [StageTimes(now, now, rows)])

    def _take_sides(self, cell: Cell) -> bool:
        """A merge or a plan's end takes what its sides have for it, each in its turn."""
        moved = False
        for offset in range(len(cell.inboxes)):
            index = (cell.next_inbox + offset) % len(cell.inboxes)
            count = min(cell.takeable(index), cell.room())
            if count < 1:
                continue
            ledger, side = cell.sides[index]
            count = 1 if cell.kind is Kind.MERGE else count
            for item in cell.take(count, index):
                if ledger is not None:
                    ledger.took(side, rows_of(item))
                if cell.kind is Kind.MERGE:
                    cell.outs[None].put(item)
                    self._record(cell, 1, [StageTimes(0.0, 0.0, rows_of(item))])
                elif side == "output":
                    self._on_output(cell.stages[0].plan, item)
            cell.next_inbox = (index + 1) % len(cell.inboxes)
            moved = True
            break
        return moved

    # -- ending -------------------------------------------------------------------------------------------------

    def _should_end(self, cell: Cell) -> bool:
        if cell.gates:
            return any(gate.ledger.is_over(gate.side, self._stopping) for gate in cell.gates)
        return self._stopping

    def _has_ended(self, cell: Cell) -> bool:
        for edge, side in zip(cell.inboxes, cell.sides, strict=False):
            if edge.ended and side[0] is not None:
                side[0].leave(side[1])
        if not cell.is_idle:
            return False
        if cell.kind is Kind.SOURCE:
            return cell.exhausted or self._should_end(cell)
        return all(edge.ended for edge in cell.inboxes)

    def _end(self, cell: Cell) -> None:
        cell.ended = True
        cell.clock.turn(Condition.ENDED, time.perf_counter())
        for edge in cell.outs.values():
            edge.closed = True
        if cell.kind is Kind.SOURCE and isinstance(self._plan, Together) and cell.stages[0].plan == self._plan.name:
            self._stopping = True

    def _fail(self, cell: Cell, error: BaseException) -> None:
        if self._failure is not None:
            return
        position, cause = 0, error
        if isinstance(error, OperatorRaised):
            position, cause = error.position, error.__cause__ or error
        stage = cell.stages[position]
        failure = StageFailed(stage.stage, stage.plan, stage.path, _reason(cause))
        failure.__cause__ = cause
        self._failure = failure

    async def _settle(self) -> None:
        """Lets what is in flight land, so that nothing is left behind when the failure is raised."""
        while self._in_flight:
            await self._wake.wait()
            self._wake.clear()

    # -- conditions ---------------------------------------------------------------------------------------------

    def _look(self) -> None:
        now = time.perf_counter()
        for cell in self._network.cells:
            cell.clock.turn(self._condition(cell), now)

    def _condition(self, cell: Cell) -> Condition:
        if cell.ended:
            return Condition.ENDED
        if cell.in_flight:
            return Condition.BUSY
        has_input = any(edge.items for edge in cell.inboxes) or not cell.inboxes
        return Condition.BLOCKED if cell.pending or has_input else Condition.STARVED


async def _awaited(result: Any) -> Any:
    return await result


def _took_all(cell: Cell) -> bool:
    return not cell.pending and not any(edge.items for edge in cell.inboxes)


def _plans_that_wait(plan: AnyPlan) -> tuple[str, ...]:
    return tuple(one.name for one in plan.plans if one.waits_for_rounds) if isinstance(plan, Together) else ()


def _with_waits(meter: Meter, cell: Cell, position: int, elapsed_s: float) -> Meter:
    """The meter with its waiting times: a fused stage waits for those before it in its call."""
    starved, blocked = cell.clock.spent_s[Condition.STARVED], cell.clock.spent_s[Condition.BLOCKED]
    if position > 0:
        starved, blocked = max(0.0, elapsed_s - meter.busy_s), 0.0
    return Meter(meter.items, meter.rows, meter.dropped, meter.busy_s, starved, blocked)


def _reason(cause: BaseException) -> str:
    text = str(cause)
    return text if isinstance(cause, MarlflowError) else f"{type(cause).__name__}: {text}"


def _unknown_branch(error: Exception, cell: Cell) -> Exception:
    if cell.kind is Kind.SPLIT and isinstance(error, KeyError) and error.args and error.args[0] not in cell.outs:
        return KeyError(
            f"the split routed an item to {error.args[0]!r}; its branches are {sorted(map(str, cell.outs))}"
        )
    return error
