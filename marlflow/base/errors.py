"""All errors that a user can cause.

MarlflowError
├── InvalidInput            bad input, found before the run starts; lists every problem
│   ├── ConfigInvalid       an invalid configuration
│   ├── PlanInvalid         an invalid plan
│   └── CheckpointUnusable  no checkpoint that this run can resume from
├── StageFailed             an operator raised; names the stage and the plan
├── Stalled                 nothing is in flight and no stage can move
├── UserCodeFailed          user code raised, or returned something invalid
│   ├── EnvironmentFailed   an environment raised, or broke PettingZoo's contract
│   │   └── EnvironmentHung a step or reset exceeded its time limit
│   └── MatchmakerFailed    a matchmaker raised, or returned an impossible matchup
├── RecordsDamaged          a file of recorded experience is unreadable
├── ColumnMissing           a batch lacks a column; says which it has
├── WeightsMismatch         weights of a network of another size
├── ActorLost               a process of the run was lost
├── RuntimeFailed           Ray could not start or was lost
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
    """Root of all errors that marlflow raises on purpose."""


class InvalidInput(MarlflowError):
    """Bad input, found before the run starts.

    `problems` has one sentence per problem: the expectation, the actual value, where it is, and the remedy. `found` has
    the same problems as data, where some code reads their parts.
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
            return self.problems[0]
        lines = [f"{len(self.problems)} problems in this {self.subject}:"]
        return "\n".join(lines + [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)])


class ConfigInvalid(InvalidInput):
    """An invalid configuration."""

    subject = "configuration"


class PlanInvalid(InvalidInput):
    """An invalid plan."""

    subject = "plan"


class CheckpointUnusable(InvalidInput):
    """No checkpoint is intact, or it belongs to another run; lists the differences."""

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
    """User code raised, or returned something invalid.

    `user_traceback` is text without marlflow's frames, because traceback objects cannot cross processes.
    """

    def __init__(self, where: str, reason: str, user_traceback: str = "") -> None:
        self.where, self.reason, self.user_traceback = where, reason, user_traceback
        super().__init__(where, reason, user_traceback)

    def __str__(self) -> str:
        text = f"{self.where}: {self.reason}"
        return f"{self.user_traceback.rstrip()}\n\n{text}" if self.user_traceback else text


class EnvironmentFailed(UserCodeFailed):
    """An environment raised an exception or violated PettingZoo's API.

    `earlier` are the failures that its worker tolerated before this one in the same round, which nobody else reports.
    """

    kind = FaultKind.ENV_ERRORS
    earlier: "tuple[EnvironmentFailed, ...]" = ()


class EnvironmentHung(EnvironmentFailed):
    """A step or reset exceeded `env.step_timeout_s`."""

    kind = FaultKind.ENV_HANGS


class MatchmakerFailed(UserCodeFailed):
    """A matchmaker raised, or returned an impossible matchup."""


class RecordsDamaged(MarlflowError):
    """A file of recorded experience is unreadable; says which and why."""


class ColumnMissing(MarlflowError, KeyError):
    """A batch has no column `name`; `known` are its columns and segment properties."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        super().__init__(name, self.known)

    def __str__(self) -> str:
        return f"a batch has no column {self.name!r}{meant(self.name, self.known)}"


class WeightsMismatch(MarlflowError):
    """Weights of another network than the one that loads them; says both sizes."""


class ActorLost(MarlflowError):
    """A process of the run was lost; says which, and the likely cause."""


class RuntimeFailed(MarlflowError):
    """Ray could not start or was lost; says why."""


class CheckpointFailed(MarlflowError):
    """A checkpoint could not be written; says why, and which one is the last intact."""


class BudgetExceeded(MarlflowError):
    """More faults of one kind than `faults.*` allows; says which and how many."""
