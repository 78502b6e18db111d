"""Tests of problems as data, and of the errors that hold them."""

import copy
from dataclasses import replace

from marlflow.base.errors import ConfigInvalid, Problem, ProblemKind

CANNOT = Problem("cannot act in Box(2,)", "dqn", remedy="it needs Discrete actions", kind=ProblemKind.CANNOT_ACT)


def test_a_problem_reads_as_one_sentence() -> None:
    assert str(CANNOT) == "dqn cannot act in Box(2,); it needs Discrete actions"
    assert str(replace(CANNOT, subject="", reason="it is too large")) == (
        "cannot act in Box(2,): it is too large; it needs Discrete actions"
    )
    assert str(Problem("there is no env")) == "there is no env"


def test_an_error_and_its_copy_hold_problems_as_data_and_as_sentences() -> None:
    raised = ConfigInvalid([CANNOT, "seed must be a number"])
    for error in (raised, copy.copy(raised)):
        assert error.found == (CANNOT, "seed must be a number")
        assert error.problems == (str(CANNOT), "seed must be a number")
        assert str(error).splitlines()[1] == "  1. dqn cannot act in Box(2,); it needs Discrete actions"
