"""What a user reads of problems."""

from collections.abc import Iterable

from marlflow.base.problems import Problem


def sentences(problems: Iterable[Problem | str]) -> list[str]:
    return [str(problem) for problem in problems]
