"""What a user reads of problems."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from marlflow.base.errors import Problem
from marlflow.checks.validation import SETTINGS, CheckContext, problems_of, run_phases


def sentences(problems: Iterable[Problem | str]) -> list[str]:
    return [str(problem) for problem in problems]


def wrong_with(experiment: Any, *machines: Any) -> list[str]:
    return sentences(problems_of(experiment, *machines)[1])


def wrong_with_settings(experiment: Any) -> list[str]:
    """What the settings alone tell, before the environment is opened."""
    return sentences(run_phases(SETTINGS, CheckContext(experiment)).found)


def refusals(error: Any, call: Callable[..., object], *args: Any, **arguments: Any) -> list[str]:
    """The problems of the `error` that the call raises."""
    with pytest.raises(error) as caught:
        call(*args, **arguments)
    return sentences(caught.value.problems)
