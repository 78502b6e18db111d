"""Callbacks: objects that a run calls when something happens in it; they may stop it, have it evaluate, add metrics.

    class StopAtBest(mf.Callback):
        def reported(self, record):
            if record["policies"]["prey"]["return_mean"] == 200:
                return mf.StopRun("prey cannot do better")

Sinks such as `WandbSink` are callbacks, too. All run in the driver's process, between the stages of the plan: a slow
callback slows the run down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

from marlflow.observe.report import EvaluationMetrics, Report, RunInfo


@dataclass(frozen=True, slots=True)
class StopRun:
    """Returned by a callback to end the run after the current round, with a checkpoint; `reason` is reported."""

    reason: str


@dataclass(frozen=True, slots=True)
class EvaluateNow:
    """Returned by a callback to evaluate after the next round, as if an evaluation were due then.

    That is by the weights that have learned from the round that was just reported.
    """


@dataclass(frozen=True, slots=True)
class ChangePolicy:
    """Returned by a callback to change how a policy learns, before the next round and once nothing is in flight.

    With a `source`, it continues with the parameters, target network, optimizer and running statistics of that policy;
    its replay, if it has one, stays its own. `settings` are new values of settings, by name. Both policies and all
    settings are among what `Callback.may_change` declares.
    """

    policy: str
    source: str | None = None
    settings: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MayChange:
    """The `policies` that a callback may have copy each other, and the `settings` that it may change, with bounds.

    The bounds of a setting are the lowest and the highest value; None is what its field allows.
    """

    policies: Sequence[str]
    settings: Mapping[str, Sequence[float] | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RoundEvent:
    """A collected round: the run's `env_steps` after it, and the training episodes that ended in it.

    `returns` has by policy the mean return per agent of each such episode that it played; `updates` by policy the
    updates that its learner has made so far, for policies that learn.
    """

    env_steps: int
    returns: Mapping[str, Sequence[float]]
    updates: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EvaluationEvent:
    """An evaluation during the run: the metrics of each policy that played, and when it was made.

    `began_s` and `ended_s` are seconds since the epoch. `policies` is empty if `stop.time_s` cut the evaluation short.
    """

    env_steps: int
    policies: Mapping[str, EvaluationMetrics]
    began_s: float
    ended_s: float


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """A fault that the run survived: `count` of a `kind`, which is a key of `faults.*`."""

    kind: str
    where: str
    reason: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class RunEnd:
    """How a run ended: why it stopped, its last report, and its error, if any."""

    stopped_by: str
    metrics: Report
    error: str | None = None


Answer: TypeAlias = StopRun | EvaluateNow | ChangePolicy | Sequence[ChangePolicy] | None
"""A callback's return value: requests to the run, or None."""


class Callback:
    """Base class of callbacks and sinks: override methods as needed.

    An exception of a callback is a fault, which is counted (`faults.callbacks_failed`), and the run continues. Reports
    are copies, so changing one changes nothing else.
    """

    def problems(self) -> Iterable[str]:
        """Return why it cannot work, such as a package that is not installed; called before the run starts."""
        return ()

    def began(self, info: RunInfo) -> Answer:
        """Handle the start or the resume of a run; if this raises, the callback is not called again."""

    def may_change(self) -> MayChange | None:
        """Return the changes that ChangePolicy may ask for; checked before the run. None: there are none."""
        return None

    def played(self, round: RoundEvent) -> Answer:
        """Handle a collected round, before learners have its rows, and after its evaluation and report, if any."""

    def reported(self, record: Report) -> Answer:
        """Handle a report."""

    def evaluated(self, evaluation: EvaluationEvent) -> Answer:
        """Handle an evaluation, which one of the next reports contains."""

    def saved(self, path: Path) -> Answer:
        """Handle a new checkpoint in the folder `path`, whose name is the number of env steps."""

    def fault(self, fault: FaultEvent) -> Answer:
        """Handle a fault; faults of callbacks are not passed on."""

    def ended(self, result: RunEnd) -> None:
        """Handle the end of the run, also by an error or an interrupt; called once."""

    def metrics(self) -> Mapping[str, float | None]:
        """Return numbers by name, which reports have as `callbacks.<name of the callback>.<name>`; None: not known yet.

        Called for each report, after `reported`, and also between reports, so it should change nothing. Only of
        `callbacks`, not of `log.sinks`.
        """
        return {}

    def state(self) -> Mapping[str, Any]:
        """Return the state to save in each checkpoint, as numbers, strings, lists and mappings."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore `state`; called after `began` if the run is resumed and its checkpoint has a state of this name."""


def missing_extra(package: str, extra: str) -> list[str]:
    """Return the problem of a package that is not installed, with its remedy; empty if it is installed."""
    if find_spec(package) is not None:
        return []
    return [f"needs the package {package}, which is not installed; pip install 'marlflow[{extra}]'"]
