"""Problems of input as data, from which error messages are made."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


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
