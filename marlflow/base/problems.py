"""Problems of input as data: code reads their parts, users read the sentence made of them."""

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

    `says` is the predicate of the sentence and `subject` what it is about, an algorithm for example, empty where `says`
    is a whole sentence. `reason` says why, `remedy` what to do; each may be empty.
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
"""What several checks have found: problems of which code reads parts, and sentences of which nothing does."""
