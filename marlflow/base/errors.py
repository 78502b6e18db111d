"""All errors that a user can cause.

MarlflowError
├── InvalidInput            bad input, found before the run starts; lists every problem
│   ├── ConfigInvalid
│   ├── PlanInvalid
│   └── CheckpointUnusable
├── StageFailed             an operator raised
├── Stalled                 the dataflow is deadlocked
├── UserCodeFailed          user code raised, or returned something invalid
│   ├── EnvironmentFailed   an environment raised, or broke PettingZoo's contract
│   │   └── EnvironmentHung a step or reset exceeded its time limit
│   └── MatchmakerFailed    a matchmaker raised, or returned an impossible matchup
├── RecordsDamaged          a dataset file is unreadable
├── ColumnMissing           a batch lacks a column
├── NotCompiled             a network or loss cannot be compiled; it is computed by autograd
├── WeightsMismatch         weights do not fit the network
├── SnapshotLost            a snapshot's file is unreadable
├── ActorLost               a process of the run was lost
├── RuntimeFailed           Ray could not start or was lost
├── CheckpointFailed        a checkpoint could not be written
└── BudgetExceeded          more faults of one kind than `faults.*` allows
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum, auto

from marlflow.base.sentences import meant, numbered, shortened


class FaultKind(StrEnum):
    """A kind of fault that does not end a run; its value is the key in `faults.*` and in reports."""

    ENV_ERRORS = "env_errors"
    """An environment raised, or broke PettingZoo's contract."""
    ENV_HANGS = "env_hangs"
    """A step or reset took longer than `env.step_timeout_s`."""
    WORKERS_LOST = "workers_lost"
    LEARNERS_LOST = "learners_lost"
    REPLAYS_LOST = "replays_lost"
    UPDATES_SKIPPED = "updates_skipped"
    """A gradient was not finite."""
    CHECKPOINTS_FAILED = "checkpoints_failed"
    REPORTS_FAILED = "reports_failed"
    RECORDS_FAILED = "records_failed"
    CLOSES_FAILED = "closes_failed"
    CALLBACKS_FAILED = "callbacks_failed"
    """A callback or a sink raised."""

    @property
    def of_environment(self) -> bool:
        """Whether an environment broke an episode; workers count these too."""
        return self in (FaultKind.ENV_ERRORS, FaultKind.ENV_HANGS)


class ProblemKind(Enum):
    """Kinds of problems that code treats differently."""

    REPORTED = auto()
    """Nothing else."""
    WRONG_TYPE = auto()
    """A value is of a wrong type, so that nothing else can be checked about its setting."""
    CANNOT_ACT = auto()
    """An algorithm cannot act in a space; others may, and are named instead of `reason` and `remedy`."""
    LACKS_RESOURCES = auto()
    """These machines are too small for the run; others may not be."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of some input; `str()` gives its sentence.

    `says` is the predicate, or the whole sentence if `subject` is empty. `reason` and `remedy` may be empty.
    """

    says: str
    subject: str = ""
    reason: str = ""
    remedy: str = ""
    kind: ProblemKind = ProblemKind.REPORTED

    def __str__(self) -> str:
        subject, reason = f"{self.subject} " if self.subject else "", f": {self.reason}" if self.reason else ""
        return f"{subject}{self.says}{reason}" + (f"; {self.remedy}" if self.remedy else "")


Problems = list[Problem | str]
"""Problems as data where code reads their parts, otherwise as sentences."""


DEBUGGER_QUIT = "the debugger was quit"
"""Message of the KeyboardInterrupt raised when the user quits a debugger in user code."""


class MarlflowError(Exception):
    """Root of all errors that marlflow raises on purpose."""


class InvalidInput(MarlflowError):
    """Bad input, found before the run starts.

    `problems` are sentences: expectation, actual value, location, remedy. `found` holds the same as data. The text has
    at most 2,000 characters, with the number of problems that it leaves out.
    """

    subject = "input"

    def __init__(self, problems: Sequence[Problem | str]) -> None:
        if not problems:
            raise ValueError("an InvalidInput needs at least one problem")
        self.found = tuple(problems)
        self.problems = tuple(map(str, problems))
        # Exceptions are pickled with these arguments when they cross processes.
        super().__init__(self.found)

    def __str__(self) -> str:
        if len(self.problems) == 1:
            return shortened(self.problems[0])
        return numbered(self.problems, f"{len(self.problems):,} problems in this {self.subject}:")


class ConfigInvalid(InvalidInput):
    """An invalid configuration."""

    subject = "configuration"


class PlanInvalid(InvalidInput):
    """An invalid plan."""

    subject = "plan"


class CheckpointUnusable(InvalidInput):
    """No checkpoint is intact, or it belongs to another run."""

    subject = "checkpoint"


class StageFailed(MarlflowError):
    """An operator raised; its exception is `__cause__`."""

    def __init__(self, stage: str, plan: str, path: str, reason: str) -> None:
        self.stage, self.plan, self.path, self.reason = stage, plan, path, reason
        super().__init__(stage, plan, path, reason)

    def __str__(self) -> str:
        return f"in stage {self.stage!r} of plan {self.plan!r}: {self.path}\n{self.reason}"


class Stalled(MarlflowError):
    """Nothing is in flight and no stage can move; `waits` pairs stages with their missing condition."""

    def __init__(self, waits: Sequence[tuple[str, str]]) -> None:
        self.waits = tuple(waits)
        super().__init__(self.waits)

    def __str__(self) -> str:
        lines = ["the dataflow stalled: nothing is in flight and no stage can move"]
        return "\n".join(lines + [f"  {stage} waits for {what}" for stage, what in self.waits])


class UserCodeFailed(MarlflowError):
    """User code raised, or returned something invalid; `user_traceback` omits marlflow's frames."""

    def __init__(self, where: str, reason: str, user_traceback: str = "") -> None:
        # Text, because traceback objects cannot cross processes.
        self.where, self.reason, self.user_traceback = where, reason, user_traceback
        super().__init__(where, reason, user_traceback)

    def __str__(self) -> str:
        text = f"{self.where}: {self.reason}"
        return f"{self.user_traceback.rstrip()}\n\n{text}" if self.user_traceback else text


class EnvironmentFailed(UserCodeFailed):
    """An environment raised an exception or violated PettingZoo's API.

    `earlier` are failures its worker tolerated in the same round, reported only here.
    """

    kind = FaultKind.ENV_ERRORS
    earlier: tuple[EnvironmentFailed, ...] = ()


class EnvironmentHung(EnvironmentFailed):
    """A step or reset exceeded `env.step_timeout_s`."""

    kind = FaultKind.ENV_HANGS


class MatchmakerFailed(UserCodeFailed):
    """A matchmaker raised, or returned an impossible matchup."""


class RecordsDamaged(MarlflowError):
    """A file of recorded experience is unreadable."""


class ColumnMissing(MarlflowError, KeyError):
    """A batch has no column `name`; `known` are its columns and segment properties."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        return f"a batch has no column {self.name!r}{meant(self.name, self.known)}"


class NotCompiled(MarlflowError):
    """A network or loss cannot be compiled; the message names the operator, and the line of code that has it."""


class WeightsMismatch(MarlflowError):
    """Weights do not fit the network that loads them."""


class SnapshotLost(MarlflowError):
    """A snapshot's parameters are not in memory, and their file is unreadable."""


class ActorLost(MarlflowError):
    """A process of the run was lost."""


class RuntimeFailed(MarlflowError):
    """Ray could not start or was lost."""


class CheckpointFailed(MarlflowError):
    """A checkpoint could not be written."""


class BudgetExceeded(MarlflowError):
    """More faults of one kind than `faults.*` allows."""


def ends_this_process(error: BaseException) -> bool:
    """Return whether `error` is the SystemExit by which Ray ends a process, and not a sys.exit() of a user's code."""
    return hasattr(error, "ray_terminate_msg")
