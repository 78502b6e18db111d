"""Every error that a user can cause, as a tree.

MarlflowError
├── InvalidInput            bad input, found before anything starts; holds every problem found
│   ├── ConfigInvalid       a configuration that cannot run
│   ├── PlanInvalid         a plan that cannot run
│   └── CheckpointUnusable  a run cannot go on from what is kept of it
├── StageFailed             an operator raised; names the stage and the plan
├── Stalled                 nothing is in flight and no stage can move
├── UserCodeFailed          code of the user's raised, or gave what it must not
│   ├── EnvironmentFailed   an environment raised, or broke PettingZoo's contract
│   │   └── EnvironmentHung a step or reset took longer than it may
│   └── MatchmakerFailed    a matchmaker raised, or dealt a matchup that cannot be played
├── RecordsDamaged          a file of recorded experience cannot be read; says which
├── ColumnMissing       a batch has no column of that name; says which it has
├── WeightsMismatch         published weights are of another network than the one that is to act with them
├── ActorLost               a process of the run died
├── RuntimeFailed           what all processes run on, Ray, could not start or was lost
├── CheckpointFailed        a checkpoint could not be written
└── BudgetExceeded          more faults of one kind than `faults.*` allows
"""

from collections.abc import Sequence

from marlflow.base.fault_kind import FaultKind
from marlflow.base.near import meant
from marlflow.base.problems import Problem

DEBUGGER_QUIT = "the debugger was quit"
"""What KeyboardInterrupt says where it stands for leaving a debugger in code of the user's."""


class MarlflowError(Exception):
    """The root of all errors that marlflow raises on purpose."""


class InvalidInput(MarlflowError):
    """Bad input, found before anything started.

    `problems` has one sentence for each thing that is wrong: what was expected, what came, where, and what to do.
    `found` are the same things as data, where some code reads their parts.
    """

    subject = "input"

    def __init__(self, problems: Sequence[Problem | str]) -> None:
        if not problems:
            raise ValueError("an InvalidInput needs at least one problem")
        self.found = tuple(problems)
        self.problems = tuple(map(str, problems))
        super().__init__(self.found)  # so that it is the same on the other side of a process's border

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return self.problems[0]
        lines = [f"{len(self.problems)} problems in this {self.subject}:"]
        return "\n".join(lines + [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)])


class ConfigInvalid(InvalidInput):
    """A configuration that cannot run."""

    subject = "configuration"


class PlanInvalid(InvalidInput):
    """A plan that cannot run."""

    subject = "plan"


class CheckpointUnusable(InvalidInput):
    """A run cannot go on from what is kept of it: nothing is whole, or it is of another run; lists the differences."""

    subject = "checkpoint"


class StageFailed(MarlflowError):
    """An operator raised. The operator's own exception is `__cause__`."""

    def __init__(self, stage: str, plan: str, path: str, reason: str) -> None:
        self.stage, self.plan, self.path, self.reason = stage, plan, path, reason
        super().__init__(stage, plan, path, reason)

    def __str__(self) -> str:
        return f"in stage {self.stage!r} of plan {self.plan!r}: {self.path}\n{self.reason}"


class Stalled(MarlflowError):
    """Nothing is in flight and no stage can move; `waits` says of each stage what it waits for."""

    def __init__(self, waits: Sequence[tuple[str, str]]) -> None:
        self.waits = tuple(waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        lines = ["the dataflow stalled: nothing is in flight and no stage can move"]
        return "\n".join(lines + [f"  {stage} waits for {what}" for stage, what in self.waits])


class UserCodeFailed(MarlflowError):
    """Code of the user's raised, or gave what it must not: where, and why.

    `user_traceback` is its own traceback as text, without marlflow's frames: it crosses processes, where traceback
    objects cannot.
    """

    def __init__(self, where: str, reason: str, user_traceback: str = "") -> None:
        self.where, self.reason, self.user_traceback = where, reason, user_traceback
        super().__init__(where, reason, user_traceback)

    def __str__(self) -> str:
        text = f"{self.where}: {self.reason}"
        return f"{self.user_traceback.rstrip()}\n\n{text}" if self.user_traceback else text


class EnvironmentFailed(UserCodeFailed):
    """An environment raised, or broke PettingZoo's contract.

    `earlier` are the failures that its worker tolerated before this one in the same round, which nobody else reports.
    """

    kind = FaultKind.ENV_ERRORS
    earlier: "tuple[EnvironmentFailed, ...]" = ()


class EnvironmentHung(EnvironmentFailed):
    """A step or reset of an environment took longer than `env.step_timeout_s`."""

    kind = FaultKind.ENV_HANGS


class MatchmakerFailed(UserCodeFailed):
    """A matchmaker raised, or dealt a matchup that cannot be played."""


class RecordsDamaged(MarlflowError):
    """A file of recorded experience cannot be read any more; says which, and why."""


class ColumnMissing(MarlflowError, KeyError):
    """A batch has no column `name`; `known` are those that it has, and the properties of its segments."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        return f"a batch has no column {self.name!r}{meant(self.name, self.known)}"


class WeightsMismatch(MarlflowError):
    """Weights are of another network than the one that they were loaded into; says which sizes they have."""


class ActorLost(MarlflowError):
    """A process of the run died; says which, and what is known of the cause."""


class RuntimeFailed(MarlflowError):
    """What all processes of a run need, Ray itself, could not start or was lost; says why."""


class CheckpointFailed(MarlflowError):
    """A checkpoint could not be written; says why, and which one is the last that is whole."""


class BudgetExceeded(MarlflowError):
    """More faults of one kind than `faults.*` allows; says what happened how often."""
