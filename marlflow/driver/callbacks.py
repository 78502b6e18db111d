"""Calls the callbacks and sinks of a run; an exception of one is a fault."""

from __future__ import annotations

import copy
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import numpy as np

from marlflow.base.errors import CheckpointUnusable, FaultKind, InvalidInput
from marlflow.base.serialization import Tree
from marlflow.config.experiment import Experiment
from marlflow.driver.episode_metrics import totals_by_policy
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.env.episode_location import lines_of
from marlflow.observe.callback import (
    Callback,
    ChangePolicy,
    EvaluateNow,
    EvaluationEvent,
    FaultEvent,
    MayChange,
    RoundEvent,
    RunEnd,
    StopRun,
)
from marlflow.observe.report import PolicyInfo, Report, RunInfo
from marlflow.sampling.protocol import Round
from marlflow.sampling.receipts import Fault

log = logging.getLogger("marlflow")

# Floats end at 1.8e308, and trackers take nothing else.
_TOO_LARGE: Final = 10**308

_SECTION: Final = "callbacks."

MOST_FAILURES_IN_A_ROW: Final = 5
"""If a method of a callback raises this often in a row, the callback is not called again before the run's end."""


@dataclass(slots=True)
class _Called:
    """A callback and its configuration path; `file` is what marlflow's own sink writes."""

    path: str
    callback: Callback
    file: Path | None = None
    failures: Counter[str] = field(default_factory=Counter)
    """Failures in a row, by method."""
    state: str = "{}"

    @property
    def has_metrics(self) -> bool:
        return self.file is None and self.path.startswith(_SECTION)

    @property
    def is_off(self) -> bool:
        return self.file is None and max(self.failures.values(), default=0) >= MOST_FAILURES_IN_A_ROW


class Callbacks(Service):
    """Calls marlflow's `own` sinks by file, then `log.sinks`, then `callbacks`, each in their order.

    Reports come to `callbacks` first.

    `failed` receives a fault for each exception. `stop_reason` is the first reason to stop the run; None before.
    """

    def __init__(
        self,
        own: Mapping[Path, Callback],
        experiment: Experiment,
        failed: Callable[[Fault], None],
        metrics: RunMetrics,
    ) -> None:
        self._all = [_Called(str(path), sink, path) for path, sink in own.items()]
        self._failed, self._metrics = failed, metrics
        for section, callbacks in (("log.sinks", experiment.log.sinks), ("callbacks", experiment.callbacks)):
            self._all += [
                _Called(f"{section}.{name}", callback) for name, callback in callbacks.items() if callback is not None
            ]
        self._states: Mapping[str, Any] = {}
        self._can_evaluate, self._evaluation_asked = experiment.evaluation.is_wanted, False
        self.stop_reason: str | None = None
        self._policies: Mapping[str, PolicyInfo] = {}
        self._changes: list[ChangePolicy] = []

    def began(self, info: RunInfo) -> None:
        """Begin, and restore the states of a resumed run; raises the errors of marlflow's own sinks."""
        self._policies = info.policies
        for each in self._all:
            if each.file is not None:
                each.callback.began(info)
                continue
            self._call(each, "began", info)
            if each.failures["began"]:
                each.failures["began"] = MOST_FAILURES_IN_A_ROW
            elif (state := self._states.get(each.path)) is not None:
                self._call(each, "load_state", state)

    async def after_round(self, round: Round) -> None:
        hearing = [each for each in self._all if type(each.callback).played is not Callback.played]
        if not hearing:
            return
        returns: dict[str, list[float]] = {name: [] for name in self._metrics.policies}
        ended = [episode for receipt in round.receipts for episode in receipt.episodes]
        # Sorted, so that they do not depend on how environments are divided among workers.
        for episode in sorted(ended, key=attrgetter("tick", "env")):
            for name, totals in totals_by_policy(episode).items():
                if name in returns:
                    returns[name].append(totals.return_mean)
        updates = {name: totals.updates for totals in self._metrics.learners.values() for name in totals.members}
        for each in hearing:
            self._call(each, "played", RoundEvent(self._metrics.env_steps, returns, updates))

    def reported(self, report: Report) -> None:
        """Pass on a report, to sinks last: it gets the numbers that each callback has after it."""
        for each in sorted(self._all, key=lambda each: not each.has_metrics):
            # marlflow's own sinks change nothing; others get a copy, so that their changes stay with them.
            self._call(each, "reported", report if each.file is not None else copy.deepcopy(report))
            # A failure while this report was made is counted once.
            if not each.failures["metrics"]:
                self._add_metrics_of(each, report)

    def evaluated(self, evaluation: EvaluationEvent) -> None:
        """Pass on an evaluation."""
        for each in self._all:
            self._call(each, "evaluated", evaluation)

    def saved(self, path: Path) -> None:
        """Pass on a checkpoint."""
        for each in self._all:
            self._call(each, "saved", path)

    def fault(self, fault: Fault, count: int = 1) -> None:
        """Pass on a fault, except faults of callbacks, which could cause endless further ones."""
        if fault.kind not in (FaultKind.CALLBACKS_FAILED, FaultKind.REPORTS_FAILED):
            event = FaultEvent(fault.kind.value, fault.where, fault.reason, count)
            for each in self._all:
                self._call(each, "fault", event)

    def ended(self, result: RunEnd) -> None:
        """End all callbacks that have begun, including callbacks that were switched off; a second call does nothing."""
        called, self._all = self._all, []
        for each in called:
            each.failures.clear()
            self._call(each, "ended", result)

    def take_evaluation_request(self) -> bool:
        """Return whether a callback has asked for an evaluation since the last call."""
        asked, self._evaluation_asked = self._evaluation_asked, False
        return asked

    def take_changes(self) -> list[ChangePolicy]:
        """Return the changes that callbacks have asked for since the last call."""
        changes, self._changes = self._changes, []
        return changes

    def add_metrics(self, report: Report) -> None:
        for each in self._all:
            self._add_metrics_of(each, report)

    def _add_metrics_of(self, each: _Called, report: Report) -> None:
        if each.has_metrics and not each.is_off:
            try:
                numbers = {each.path.removeprefix(_SECTION): _numbers(each.callback.metrics())}
                found = {name: of for name, of in {**report.get("callbacks", {}), **numbers}.items() if of}
                if found or "callbacks" in report:
                    report["callbacks"] = found
                each.failures["metrics"] = 0
            except Exception as error:  # noqa: BLE001  a callback ends no run
                self._fail(each, "metrics", error)

    def state(self) -> Tree:
        # A callback that fails keeps its last state.
        for each in self._all:
            if each.file is None and not each.is_off:
                try:
                    each.state = _as_json(each.callback.state())
                    each.failures["state"] = 0
                except Exception as error:  # noqa: BLE001  a callback ends no run
                    self._fail(each, "state", error)
        states = json.dumps({each.path: json.loads(each.state) for each in self._all if each.state != "{}"})
        return {"states": states, "evaluation_asked": self._evaluation_asked}

    def load_state(self, state: Tree) -> None:
        # Callbacks have their states in `began`. Raises CheckpointUnusable if these are malformed.
        self._evaluation_asked = state["evaluation_asked"] and self._can_evaluate
        try:
            states = json.loads(state["states"])
        except ValueError as error:
            raise CheckpointUnusable([f"the states of callbacks are no JSON: {error}"]) from error
        if not isinstance(states, dict):
            raise CheckpointUnusable([f"the states of callbacks are a {type(states).__name__}, not by name"])
        self._states = states
        for each in self._all:
            if each.path in states:
                each.state = json.dumps(states[each.path])

    def _call(self, each: _Called, hook: str, argument: object) -> None:
        if each.is_off:
            return
        try:
            answer = getattr(each.callback, hook)(argument)
            changes = (
                answer if isinstance(answer, list | tuple) else [answer] if isinstance(answer, ChangePolicy) else []
            )
            if answer is not None and not isinstance(answer, StopRun | EvaluateNow | ChangePolicy | list | tuple):
                raise TypeError(
                    f"it returned {answer!r}; return None, or marlflow.StopRun(reason) to end the run, or "
                    "marlflow.EvaluateNow() to evaluate, or marlflow.ChangePolicy(...), one or a list"
                )
            if changes and not each.path.startswith("callbacks."):
                raise ValueError("it asked for a change, and a sink changes nothing; name it under callbacks instead")
            for change in changes:
                self._check_change(change, each.callback.may_change())
            if isinstance(answer, EvaluateNow) and not self._can_evaluate:
                raise ValueError("it asked for an evaluation, and evaluation.episodes is 0; set how many it has")
        except Exception as error:  # noqa: BLE001  a callback ends no run
            self._fail(each, hook, error)
            return
        each.failures[hook] = 0
        self._changes += changes
        if isinstance(answer, EvaluateNow):
            self._evaluation_asked = True
        elif isinstance(answer, StopRun) and self.stop_reason is None:
            self.stop_reason = f"{each.path}: {answer.reason}"

    def _check_change(self, change: object, may_change: MayChange | None) -> None:
        """Raise TypeError or ValueError unless a change is among what its callback declares."""
        if not isinstance(change, ChangePolicy):
            raise TypeError(f"it returned a list with {change!r}, which is no marlflow.ChangePolicy")
        declared = MayChange(()) if may_change is None else may_change
        policies = {change.policy, *([] if change.source is None else [change.source])}
        for name in sorted([*(policies - {*declared.policies}), *(change.settings.keys() - declared.settings.keys())]):
            raise ValueError(f"it asked for {change!r}, and {name!r} is not among what its may_change() declares")
        for name, value in change.settings.items():
            setting = self._policies[change.policy].settings[name]
            low, high = declared.settings[name] or (setting.low, setting.high)
            if not low <= value <= high:
                raise ValueError(f"it asked for {name}={value}, which is not within {low:g} and {high:g}")

    def _fail(self, each: _Called, hook: str, error: Exception) -> None:
        each.failures[hook] += 1
        if each.file is not None and isinstance(error, OSError):
            self._failed(write_fault(each.file, error))
            return
        reason = f"{hook}() raised {type(error).__name__}: {error}"
        if hook == "began" or each.is_off:
            reason += "; it is not called again"
        self._failed(Fault(FaultKind.CALLBACKS_FAILED, each.path, reason, lines_of(error).lstrip("\n"), 0))


def _as_json(state: object) -> str:
    """Return a callback's state as JSON; raises TypeError for keys that would come back as others."""

    def check(value: object) -> None:
        if isinstance(value, Mapping):
            if other := [key for key in value if not isinstance(key, str)]:
                raise TypeError(f"state() has the key {other[0]!r}, which would come back as a text; make it a text")
            value = list(value.values())
        for part in value if isinstance(value, list | tuple) else ():
            check(part)

    check(state)
    return json.dumps(state)


def _numbers(metrics: object) -> dict[str, float | None]:
    """Return the metrics of a callback as plain numbers by name; raise TypeError if they are anything else."""
    if not isinstance(metrics, Mapping):
        raise TypeError(f"it returned {metrics!r:.80}, not numbers by name")
    plain: dict[str, float | None] = {}
    for name, number in metrics.items():
        if not isinstance(name, str) or not name or "." in name or not name.isprintable():
            raise TypeError(f"it named a metric {name!r:.80}; a name is a text in one line, without dots")
        if number is not None and not isinstance(number, Real | np.bool_):
            raise TypeError(f"its {name} is {number!r:.80}, a {type(number).__name__}; expected a number, or None")
        if isinstance(number, Integral) and abs(int(number)) >= _TOO_LARGE:
            raise TypeError(f"its {name} is larger than a float can be")
        plain[name] = int(number) if isinstance(number, Integral) else None if number is None else float(number)
    return plain


def write_fault(path: Path, error: OSError | ValueError | InvalidInput) -> Fault:
    """Return the fault of a file that cannot be written, or of a figure that cannot be drawn."""
    reason = str(error)
    if isinstance(error, OSError):
        reason = f"{error.strerror or error}; free space there, or see that it can be written to"
    return Fault(FaultKind.REPORTS_FAILED, str(path), reason, "", 0)
