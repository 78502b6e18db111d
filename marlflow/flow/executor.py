"""The executor: one flat loop in one thread that moves items through a plan, waits on what is in flight, never polls.

Cells are looked at from the ends towards the sources, so that what is made is used before more is made, and always in
the same order, so that with operators that return at once two runs do the same in the same order.
"""

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
from marlflow.flow.firing import Firing, condition
from marlflow.flow.flow import Kind
from marlflow.flow.metering import stage_figures
from marlflow.flow.meters import Condition, Hook
from marlflow.flow.operators import BeginsAhead
from marlflow.flow.plan import AnyPlan, Together
from marlflow.flow.rest import Rest
from marlflow.flow.state import Keep, load_network_state, network_state

SETTLE_S = 60.0
"""How long what is in flight may take to land when a stage has failed, before the failure is raised all the same."""

_SWEEPS_AT_ONCE = 100  # with nothing in flight there is nothing to wait for, but others may share the event loop


class Executor:
    """Runs a plan: `await executor.run()`, or `executor.run_sync()` from anywhere.

    `on_output(plan's name, item)` is called with each item that leaves a plan by its output. Raises PlanInvalid before
    anything starts, StageFailed when an operator raises, Stalled when nothing can move; what a hook or `on_output`
    raises comes out as it is. `between_rounds` may bring the plan to rest before a round of the shared stream (see
    Rest).
    """

    def __init__(
        self,
        plan: AnyPlan,
        on_output: Callable[[str, Any], None] | None = None,
        hooks: Sequence[Hook] = (),
        between_rounds: Callable[[], Callable[[], None] | None] | None = None,
    ) -> None:
        plan.check()
        self._network = compile_plan(plan)
        self._firing = Firing(on_output or _ignore, hooks)
        self._rest = Rest(between_rounds)
        self._metered_before: dict[str, dict[str, Any]] = {}
        self._plans = (plan.name, *(one.name for one in plan.plans)) if isinstance(plan, Together) else (plan.name,)
        self._stopping: set[str] = set()
        self._closed: set[str] = set()
        self._has_begun = False
        self._ending = False  # until a source ends or is told to, no cell can, and none has to be asked
        self._shared = self._network.by_plan.get(plan.name, []) if isinstance(plan, Together) else []
        self._rounds = plan.rounds.pace if isinstance(plan, Together) else "lockstep"
        waiting = [one.name for one in plan.plans if one.waits_for_rounds] if isinstance(plan, Together) else []
        self._waited_for = {name: self._network.by_plan[name] for name in waiting}
        # A round is begun when nothing else can move, so that what was made is used first; unless there are sources
        # that nothing holds: they can always move.
        others = [cell for cell in self._network.cells if cell.kind is Kind.SOURCE and cell not in self._shared]
        all_held = all(cell.gates for cell in others)
        self._last_in_line = [cell for cell in self._shared if cell.kind is Kind.SOURCE] if all_held else []
        # From the ends to the sources; those for whom the next round waits before the others.
        self._order = list(reversed(self._network.cells))
        self._order.sort(key=lambda cell: cell.stages[0].plan not in waiting)

    # -- running ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Runs until every source has ended and everything they made has been used."""
        now_s = time.perf_counter()
        for cell in self._network.cells:
            cell.clock.since_s = now_s
        self._has_begun = True
        try:
            await self._loop()
        except Exception:
            await self._firing.settle(SETTLE_S)
            raise

    async def _loop(self) -> None:
        firing, sweeps = self._firing, 0
        while True:
            firing.landed.clear()
            moved = firing.failure is None and self._sweep()
            if firing.failure is not None:
                raise firing.failure
            if moved:
                sweeps += 1
                if firing.in_flight or sweeps % _SWEEPS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            elif firing.in_flight:
                self._look()
                await firing.landed.wait()
            elif self._rest.is_wanted:
                self._rest.reached()
            elif all(cell.ended for cell in self._order):
                return
            else:
                raise Stalled([(str(cell.stages[0]), self._waits_for(cell)) for cell in self._stuck()])

    def run_sync(self) -> None:
        """The same, from code that is not asynchronous, in a notebook's running loop too."""
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
            if isinstance(failure.__cause__, BdbQuit):  # in an operator: that is the user, who wants to stop
                raise KeyboardInterrupt(DEBUGGER_QUIT)
            raise failure.with_traceback(None)  # the loop's frames say nothing; the cause has the operator's own
        if failure is not None:
            raise failure

    def _run_to_end(self) -> BaseException | None:
        try:
            asyncio.run(self.run())
        except BaseException as error:  # noqa: BLE001  raised by run_sync, in the caller's thread
            return error
        return None

    def stop(self) -> None:
        """Every source ends when its pace is next at rest; what is under way is finished."""
        self._stopping.update(self._plans)
        self._ending = True

    def end_plan(self, name: str) -> None:
        """The plan takes nothing more from the shared stream (counted as dropped); what it has taken is finished.

        Its own sources end as in `stop`. The other plans go on; when there are none, the shared source ends too.
        Raises PlanInvalid if there is no such plan.
        """
        if name not in self._plans:
            raise PlanInvalid([f"no plan is named {name!r}; there are {', '.join(map(repr, self._plans))}"])
        if name in self._network.feeds:
            self._network.feeds[name].discard()
        self.close_plan(name)

    def close_plan(self, name: str) -> None:
        """Nothing more is coming for the plan; what waits for it is still used. Otherwise as `end_plan`."""
        if name in self._network.feeds:
            self._network.feeds[name].closed = True
            self._closed.add(name)
        self._stopping.add(name)
        self._ending = True

    # -- looking ------------------------------------------------------------------------------------------------

    def meters(self) -> dict[str, dict[str, Any]]:
        """Every stage's figures by `plan/stage`, up to now. Buffers have items and drops, and no times."""
        self._look()
        return stage_figures(self._network, self._metered_before)

    def held(self) -> dict[str, int]:
        """Items on the way, by the stage they wait for: for bounds and conservation. A plan's ends are `(side)`."""
        found: dict[str, int] = {}
        for cell in self._network.cells:
            stage = str(cell.stages[0])
            found[stage] = found.get(stage, 0) + cell.held()
        return found

    def state(self, keep: Keep) -> dict[str, Any]:
        """Paces, items on their way (what `keep` makes of each) and meters, as plain data; for when all is at rest."""
        return {**network_state(self._network, keep), "meters": self.meters()}

    def load_state(self, state: Mapping[str, Any], give_back: Keep) -> None:
        """Goes on where `state` was taken; call it before `run`. Raises CheckpointUnusable for another plan's."""
        load_network_state(self._network, state, give_back)
        self._metered_before = {stage: dict(figures) for stage, figures in state["meters"].items()}
        self._ending = True  # sides that had left are over from the start

    def starts_again(self, plan: str) -> None:
        """What a plan has stored is gone: `starts` of its paces applies anew, turns that were earned stay earned."""
        for ledger in self._network.ledgers_of(plan):
            ledger.starts_again()

    def rejoin(self, plan: str) -> None:
        """A plan that had ended when its state was taken takes part again; to be called after `load_state`."""
        for ledger in self._network.ledgers_of(plan):
            ledger.rejoin()

    # -- the loop -----------------------------------------------------------------------------------------------

    def _sweep(self) -> bool:
        """Looks at every cell once; whether anything moved."""
        moved, firing = False, self._firing
        for cell in self._order:
            if cell.ended:
                continue
            if cell.pending and cell.deliver():
                moved = True
            if not (moved and cell in self._last_in_line) and self._fire(cell):
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
            self._firing.divide(cell, cell.take(1)[0])
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
        # Turns that a pace grants are as good as taken; a source that nothing holds is asked again after each.
        count = min([cell.room(), *[gate.available() for gate in cell.gates]]) if cell.gates else min(1, cell.room())
        if count < 1 or not self._may_begin_round(cell):
            return False
        if self._ending and (cell.is_abandoned or self._is_over(cell)):
            return False
        if not self._may_begin_now(cell):
            return False
        self._firing.call(cell, [None] * (count if cell.call is not None else 1))
        return True

    def _take_sides(self, cell: Cell) -> bool:
        """A merge takes one item, from its sides in rotation; a plan's end takes all that its turns allow."""
        sides = len(cell.inboxes)
        for offset in range(sides):
            index = (cell.next_inbox + offset) % sides
            if cell.takeable(index) < 1 or (cell.room() < 1 and cell.hands_on(index)):
                continue
            self._firing.take_side(cell, index)
            while cell.kind is None and cell.takeable(index) > 0:
                self._firing.take_side(cell, index)
            cell.next_inbox = (index + 1) % sides
            return True
        return False

    # -- rounds -------------------------------------------------------------------------------------------------

    def _may_begin_round(self, source: Cell) -> bool:
        """Whether a source may make its next item: that of the shared stream waits for plans that wait for rounds."""
        if source not in self._shared:
            return True
        delivered = all(cell.held() == 0 for cell in self._shared if cell is not source)
        return delivered and all(map(self._has_rested, self._waited_for))

    def _has_rested(self, name: str) -> bool:
        """Whether the plan is done with all rounds so far; where rounds overlap, with all but the last piece."""
        cells = self._waited_for[name]
        if self._rounds != "overlap":
            return all(cell.held() == 0 for cell in cells)
        waiting = sum(cell.held() - cell.in_flight for cell in cells)
        return waiting == 0 and sum(cell.in_flight for cell in cells) <= 1

    def _may_begin_now(self, source: Cell) -> bool:
        """Whether no rest is wanted that a source could come to now. Of nested paces, the outermost has to rest."""
        if source in self._shared:
            if not self._rest.permits_round():
                # What a source has begun ahead of its turns has to come home first.
                operator = source.calls[0].operator
                return isinstance(operator, BeginsAhead) and operator.under_way > 0
            self._rest.has_begun()
            return True
        return not (self._rest.is_wanted and (not source.gates or source.gates[-1].may_stop()))

    # -- ending -------------------------------------------------------------------------------------------------

    def _is_over(self, source: Cell) -> bool:
        """Whether a source is to end though it could go on. Of nested paces, the outermost has to be at rest."""
        if any(gate.ledger.is_over(gate.side) for gate in source.gates):
            return True
        if source.stages[0].plan not in self._stopping:
            return False
        return not source.gates or source.gates[-1].may_stop()

    def _has_ended(self, cell: Cell) -> bool:
        """Ends the cell if nothing will come out of it any more; whether that was now."""
        if cell.in_flight or cell.pending:
            return False
        if cell.kind is Kind.SOURCE:
            over = cell.exhausted or cell.is_abandoned or self._is_over(cell)
        else:
            over = all(edge.ended for edge in cell.inboxes)
        if not over:
            return False
        if cell.kind is Kind.GATHER and cell.stages[0].plan in self._closed and self._firing.hand_over(cell):
            return True
        cell.ended = True
        cell.clock.turn(Condition.ENDED, time.perf_counter())
        for edge in cell.outs.values():
            edge.closed = True
        if cell in self._shared and all(cell.ended for cell in self._shared if cell.kind is Kind.SOURCE):
            self.stop()
        return True

    # -- waiting ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        if not self._has_begun:  # no clock has been set yet
            return
        now_s = time.perf_counter()
        for cell in self._network.cells:
            cell.clock.turn(condition(cell), now_s)

    def _stuck(self) -> list[Cell]:
        """The cells that have not ended, without the ends of plans that only wait for input."""
        return [cell for cell in self._network.cells if not cell.ended and (cell.kind is not None or cell.held())]

    def _waits_for(self, cell: Cell) -> str:
        if (known := cell.waits_for()) is not None:
            return known
        tired = [name for name in self._waited_for if not self._has_rested(name)]
        return " and ".join(f"plan {name!r} to come to rest" for name in tired) or "the round before to be taken up"


def _ignore(plan: str, item: Any) -> None:
    """Nobody asked for what leaves the plans."""
