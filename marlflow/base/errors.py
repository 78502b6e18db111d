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

from collections.abc import Sequence

from marlflow.base.fault_kind import FaultKind
from marlflow.base.near import meant
from marlflow.base.problems import Problem
from marlflow.base.shortened import numbered, shortened

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
    earlier: "tuple[EnvironmentFailed, ...]" = ()


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
