"""The executor: an asyncio loop that moves items through a plan without polling."""

from __future__ import annotations

import asyncio
import threading
import time
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marlflow.base.errors import DEBUGGER_QUIT, MarlflowError, PlanInvalid, Stalled
from marlflow.flow.cells import Cell
from marlflow.flow.compile import compile_plan
from marlflow.flow.firing import Firing, current_condition
from marlflow.flow.flow import Kind
from marlflow.flow.meters import Condition, Hook
from marlflow.flow.plan import AnyPlan, Together
from marlflow.flow.protocols import BeginsAhead
from marlflow.flow.state import (
    ConvertItem,
    load_network_state,
    network_state,
    queued_items,
    restart_plan,
    stage_metrics,
)


class RoundPause:
    """Decides whether a plan pauses before its next round.

    `between_rounds()` is called once per round; if it returns a function, that is called at rest before the round.
    """

    def __init__(self, between_rounds: Callable[[], Callable[[], None] | None] | None) -> None:
        self._between_rounds = between_rounds
        self._has_called = False
        self._at_rest: Callable[[], None] | None = None

    @property
    def is_wanted(self) -> bool:
        """Whether a pause is pending, so sources must not start new items."""
        return self._at_rest is not None

    def permits_round(self) -> bool:
        """Return whether the next round may start now."""
        if self._between_rounds is not None and not self._has_called:
            self._has_called = True
            self._at_rest = self._between_rounds()
        return self._at_rest is None

    def has_begun(self) -> None:
        """Note that the round has started."""
        self._has_called = False

    def reached(self) -> None:
        """Call the pending function, at rest."""
        at_rest, self._at_rest = self._at_rest, None
        if at_rest is not None:
            at_rest()


SETTLE_S = 60.0
"""After a stage fails: the most seconds to wait for calls in flight before the error is raised."""

# With nothing in flight the loop never awaits, so it sometimes yields to other users of the event loop.
_SWEEPS_AT_ONCE = 100


class Executor:
    """Runs a plan: `await executor.run()`, or `executor.run_sync()` from synchronous code.

    `on_output(plan name, item)` receives each output, `on_also` each item that leaves another flow of a plan. Raises
    PlanInvalid at construction, StageFailed when an operator raises, Stalled on deadlock; exceptions of hooks,
    `on_output` and `on_also` propagate. `between_rounds`: see RoundPause.
    """

    def __init__(
        self,
        plan: AnyPlan,
        on_output: Callable[[str, Any], None] | None = None,
        hooks: Sequence[Hook] = (),
        between_rounds: Callable[[], Callable[[], None] | None] | None = None,
        on_also: Callable[[str, Any], None] | None = None,
    ) -> None:
        plan.check()
        if between_rounds is not None and not isinstance(plan, Together):
            raise PlanInvalid(["there are rounds only of what plans share: give between_rounds with together(...)"])
        self._network = compile_plan(plan)
        self._firing = Firing(on_output or _ignore, hooks, on_also)
        self._pause = RoundPause(between_rounds)
        self._metered_before: dict[str, dict[str, Any]] = {}
        members = plan.plans if isinstance(plan, Together) else ()
        self._plans = (plan.name, *(member.name for member in members))
        self._stopping: set[str] = set()
        self._closed: set[str] = set()
        self._has_begun = False
        # Until a source ends or is asked to, no cell can end, so sweeps need not check.
        self._ending = False
        self._shared = self._network.by_plan.get(plan.name, []) if isinstance(plan, Together) else []
        self._rounds = plan.rounds if isinstance(plan, Together) else "lockstep"
        waiting = [member.name for member in members if member.waits_for_rounds]
        self._waited_for = {name: self._network.by_plan[name] for name in waiting}
        # The shared source fires only when nothing else can move, so that items are consumed before a new round starts.
        # Not with other unpaced sources: those can always move, so the round would never start.
        others = [cell for cell in self._network.cells if cell.kind is Kind.SOURCE and cell not in self._shared]
        all_held = all(cell.gates for cell in others)
        self._fires_last = [cell for cell in self._shared if cell.kind is Kind.SOURCE] if all_held else []
        # From the ends to the sources, so that items are consumed before more are made; plans that the next round waits
        # for come first. The order is fixed, so runs with synchronous operators are deterministic.
        self._order = list(reversed(self._network.cells))
        self._order.sort(key=lambda cell: cell.stages[0].plan not in waiting)

    # -- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until every source has ended and all items are processed; raises RuntimeError if called again."""
        if self._has_begun:
            raise RuntimeError("an executor runs its plan once; make another one")
        now_s = time.perf_counter()
        for cell in self._network.cells:
            cell.clock.since_s = now_s
        self._has_begun = True
        try:
            await self._loop_and_settle()
        except asyncio.CancelledError:
            self._firing.cancel()
            raise

    async def _loop_and_settle(self) -> None:
        try:
            await self._loop()
        except Exception:
            await self._firing.settle(SETTLE_S)
            raise

    async def _loop(self) -> None:
        firing, sweeps = self._firing, 0
        while True:
            firing.call_done.clear()
            moved = firing.failure is None and self._sweep()
            if firing.failure is not None:
                raise firing.failure
            if moved:
                sweeps += 1
                if firing.in_flight or sweeps % _SWEEPS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            elif firing.in_flight:
                self._update_clocks()
                await firing.call_done.wait()
            elif self._pause.is_wanted:
                self._pause.reached()
            elif all(cell.ended for cell in self._order):
                return
            else:
                # A plan's end that only lacks input is a consequence of a deadlock, not its cause.
                stuck = [c for c in self._network.cells if not c.ended and (c.kind is not None or c.held())]
                raise Stalled([(str(cell.stages[0]), self._waits_for(cell)) for cell in stuck])

    def run_sync(self) -> None:
        """Run from synchronous code, also inside a running event loop (as in a notebook)."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            failure = self._run_to_end()
        else:
            failures: list[BaseException | None] = []
            thread = threading.Thread(target=lambda: failures.append(self._run_to_end()), name="marlflow-executor")
            thread.start()
            try:
                thread.join()
            except KeyboardInterrupt:
                self.stop()
                thread.join()
                raise
            failure = failures[0]
        if isinstance(failure, MarlflowError):
            # The user quit the debugger inside an operator.
            if isinstance(failure.__cause__, BdbQuit):
                raise KeyboardInterrupt(DEBUGGER_QUIT)
            # The loop's frames are noise; the cause carries the operator's traceback.
            raise failure.with_traceback(None)
        if failure is not None:
            raise failure

    def _run_to_end(self) -> BaseException | None:
        try:
            asyncio.run(self.run())
        except BaseException as error:  # noqa: BLE001  raised by run_sync, in the caller's thread
            return error
        return None

    def stop(self) -> None:
        """End each source when its pace is next at rest; finish items in progress."""
        self._stopping.update(self._plans)
        self._ending = True

    def close_plan(self, name: str) -> None:
        """End the plan's input: queued items are still processed; items that come later are dropped, and counted.

        Its own sources end as in `stop`; the shared source goes on. Raises PlanInvalid for unknown names.
        """
        if name not in self._plans:
            raise PlanInvalid([f"no plan is named {name!r}; there are {', '.join(map(repr, self._plans))}"])
        if name in self._network.feeds:
            self._network.feeds[name].closed = True
            self._closed.add(name)
        self._stopping.add(name)
        self._ending = True

    # -- looking ------------------------------------------------------------------------------------------------

    def meters(self) -> dict[str, dict[str, Any]]:
        """Return each stage's metrics by `plan/stage`; buffers have no times, and the items `waiting` in them now."""
        metrics = self._totals()
        for stage, items in queued_items(self._network).items():
            metrics[stage]["waiting"] = items
        return metrics

    def _totals(self) -> dict[str, dict[str, Any]]:
        self._update_clocks()
        return stage_metrics(self._network, self._metered_before)

    def held(self) -> dict[str, int]:
        """Return the number of items at each stage."""
        counts: dict[str, int] = {}
        for cell in self._network.cells:
            stage = str(cell.stages[0])
            counts[stage] = counts.get(stage, 0) + cell.held()
        return counts

    def state(self, save_item: ConvertItem) -> dict[str, Any]:
        """Return paces, waiting items (by `save_item`) and metrics as plain data; call at rest."""
        return {**network_state(self._network, save_item), "meters": self._totals()}

    def load_state(self, state: Mapping[str, Any], restore_item: ConvertItem) -> None:
        """Restore `state` before `run`; raises CheckpointUnusable for another plan's."""
        load_network_state(self._network, state, restore_item)
        self._metered_before = {stage: dict(metrics) for stage, metrics in state["meters"].items()}
        sides = [side for cell in self._network.cells for side in cell.sides]
        has_left = any(ledger is not None and ledger.is_over(side) for ledger, side in sides)
        self._ending = has_left or any(cell.exhausted for cell in self._network.cells)

    def reapply_starts(self, plan: str, at: str | None = None) -> None:
        """Apply `starts` again after the plan's store was lost; keeps earned turns.

        `at` is the name of the lost replay. Merges that pace only other shards are not affected.
        """
        for ledger in self._network.ledgers_of(plan, at):
            ledger.reapply_starts()

    def restart(self, plan: str) -> int:
        """Empty a plan at rest, and restart its paces; return the agent steps dropped."""
        return restart_plan(self._network, plan)

    def rejoin(self, plan: str) -> None:
        """Run a plan again that had ended; call after `load_state`."""
        for ledger in self._network.ledgers_of(plan):
            ledger.rejoin()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _sweep(self) -> bool:
        moved, firing = False, self._firing
        for cell in self._order:
            if cell.ended:
                continue
            if cell.pending and cell.deliver():
                moved = True
            if not (moved and cell in self._fires_last) and self._fire(cell):
                moved = True
                if firing.failure is not None:
                    return True
            if (self._ending or firing.exhausted) and (cell.leave() or self._has_ended(cell)):
                moved = True
        return moved

    def _fire(self, cell: Cell) -> bool:
        kind = cell.kind
        if kind is None or kind is Kind.MERGE:
            return self._take_sides(cell)
        if cell.pending or cell.in_flight:
            return False
        if kind is Kind.SOURCE:
            return self._fire_source(cell)
        count = cell.takeable()
        if count < 1:
            return False
        if kind is Kind.GATHER or kind is Kind.SPLIT:
            self._firing.divide(cell, cell.one_by_one(), count if kind is Kind.GATHER else 1)
            return True
        count = min(count, cell.room())
        if count < 1:
            return False
        if kind is Kind.THEN:
            self._firing.call(cell, cell.take(count if cell.call is not None else 1))
        else:
            self._firing.copy(cell, cell.take(count))
        return True

    def _fire_source(self, cell: Cell) -> bool:
        if cell.exhausted:
            return False
        # A paced source gets all granted turns in one call; an unpaced one runs item by item, as it may end any time.
        count = min([cell.room(), *[gate.available() for gate in cell.gates]]) if cell.gates else min(1, cell.room())
        if count < 1 or not self._may_begin_round(cell):
            return False
        if self._ending and (cell.is_abandoned or self._is_over(cell)):
            return False
        if not self._may_fire(cell):
            return False
        self._firing.call(cell, [None] * (count if cell.call is not None else 1))
        return True

    def _take_sides(self, cell: Cell) -> bool:
        # A merge takes one item, round-robin over its sides; a plan's end takes all that its turns allow.
        sides = len(cell.inboxes)
        for offset in range(sides):
            index = (cell.next_inbox + offset) % sides
            if cell.takeable(index) < 1 or (cell.room() < 1 and cell.emits(index)):
                continue
            self._firing.take_side(cell, index)
            while cell.kind is None and cell.takeable(index) > 0:
                self._firing.take_side(cell, index)
            cell.next_inbox = (index + 1) % sides
            return True
        return False

    # -- rounds -------------------------------------------------------------------------------------------------

    def _may_begin_round(self, source: Cell) -> bool:
        # The shared source waits for all plans that wait for rounds.
        if source not in self._shared:
            return True
        delivered = all(cell.held() == 0 for cell in self._shared if cell is not source)
        return delivered and all(map(self._has_rested, self._waited_for))

    def _has_rested(self, name: str) -> bool:
        # At rest: no items left. With overlapping rounds, one item may still be in flight.
        cells = self._waited_for[name]
        if self._rounds != "overlap":
            return all(cell.held() == 0 for cell in cells)
        waiting = sum(cell.held() - cell.in_flight for cell in cells)
        return waiting == 0 and sum(cell.in_flight for cell in cells) <= 1

    def _may_fire(self, source: Cell) -> bool:
        if source in self._shared:
            if not self._pause.permits_round():
                # Items that the source has started ahead of time must be collected before the plan can rest.
                operator = source.calls[0].operator
                return isinstance(operator, BeginsAhead) and operator.under_way > 0
            self._pause.has_begun()
            return True
        # With nested paces, the outermost must be at rest.
        return not (self._pause.is_wanted and (not source.gates or source.gates[-1].may_stop()))

    # -- ending -------------------------------------------------------------------------------------------------

    def _is_over(self, source: Cell) -> bool:
        if any(gate.ledger.is_over(gate.side) for gate in source.gates):
            return True
        if source.stages[0].plan not in self._stopping:
            return False
        return not source.gates or source.gates[-1].may_stop()

    def _has_ended(self, cell: Cell) -> bool:
        if cell.in_flight or cell.pending:
            return False
        if cell.kind is Kind.SOURCE:
            is_exhausted = cell.exhausted
            over = cell.exhausted or cell.is_abandoned or self._is_over(cell)
        else:
            is_exhausted = all(edge.is_exhausted for edge in cell.inboxes)
            over = all(edge.ended for edge in cell.inboxes)
        if not over:
            return False
        plan = cell.stages[0].plan
        # A plan that is stopped keeps what a gather holds, for its checkpoint.
        is_whole = plan in self._closed or (is_exhausted and plan not in self._stopping)
        if cell.kind is Kind.GATHER and is_whole and not cell.is_flushed:
            cell.is_flushed = True
            if self._firing.flush(cell) or self._firing.failure is not None:
                return True
        cell.ended = True
        cell.clock.turn(Condition.ENDED, time.perf_counter())
        for edge in cell.outs.values():
            edge.closed, edge.is_exhausted = True, is_exhausted
        if cell in self._shared and all(cell.ended for cell in self._shared if cell.kind is Kind.SOURCE):
            self.stop()
        return True

    # -- waiting ------------------------------------------------------------------------------------------------

    def _update_clocks(self) -> None:
        # The clocks start in `run`.
        if not self._has_begun:
            return
        now_s = time.perf_counter()
        for cell in self._network.cells:
            cell.clock.turn(current_condition(cell), now_s)

    def _waits_for(self, cell: Cell) -> str:
        if (blocker := cell.waits_for()) is not None:
            return blocker
        busy = [name for name in self._waited_for if not self._has_rested(name)]
        return " and ".join(f"plan {name!r} to come to rest" for name in busy) or "the previous round to be consumed"


def _ignore(plan: str, item: Any) -> None: ...
