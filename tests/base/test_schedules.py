"""Schedules: their literal values, their ends, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import ConfigInvalid
from marlflow.base.schedules import CosineDecay, Linear, PiecewiseConstant, Schedule, initial_value

NUMBERS = st.floats(-1e3, 1e3)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (Linear(1.0, 0.2, 80), {0: 1.0, 20: 0.8, 40: 0.6, 80: 0.2, 81: 0.2, 10**9: 0.2}),
        (CosineDecay(2.0, 0.0, 60), {0: 2.0, 20: 1.5, 30: 1.0, 40: 0.5, 60: 0.0, 10**9: 0.0}),
        (PiecewiseConstant((3.0, 2.0, 1.0), (10, 20)), {0: 3.0, 9: 3.0, 10: 2.0, 19: 2.0, 20: 1.0, 10**9: 1.0}),
        (PiecewiseConstant((3.0,), ()), {0: 3.0, 10**9: 3.0}),
    ],
)
def test_values(schedule: Schedule, expected: dict[int, float]) -> None:
    assert {at: schedule.at(at) for at in expected} == pytest.approx(expected, abs=1e-12)


@given(NUMBERS, NUMBERS, st.integers(1, 1000), st.integers(0, 2000))
def test_what_lies_between_start_and_end_is_between_them(start: float, end: float, length: int, at: int) -> None:
    low, high = min(start, end) - 1e-9, max(start, end) + 1e-9
    for schedule in (Linear(start, end, length), CosineDecay(start, end, length)):
        assert low <= schedule.at(at) <= high
        assert schedule.at(length + at) == pytest.approx(end)


def test_a_setting_is_a_number_or_a_schedule() -> None:
    assert initial_value(0.25) == 0.25
    assert initial_value(Linear(0.5, 1.0, 10)) == 0.5


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Linear(1.0, 0.0, 0), "agent_steps of a schedule must be at least 1, not 0"),
        (lambda: CosineDecay(1.0, 0.0, -5), "agent_steps of a schedule must be at least 1, not -5"),
        (
            lambda: PiecewiseConstant((1.0, 2.0), ()),
            "a PiecewiseConstant of 2 values has 1 at_agent_steps: the first is from 0 on",
        ),
        (
            lambda: PiecewiseConstant((1.0, 2.0, 3.0), (5, 5)),
            r"at_agent_steps of a PiecewiseConstant are above 0 and grow, not \[5, 5\]",
        ),
        (
            lambda: PiecewiseConstant((1.0, 2.0), (0,)),
            r"at_agent_steps of a PiecewiseConstant are above 0 and grow, not \[0\]",
        ),
    ],
)
def test_what_is_no_schedule(make: type, problem: str) -> None:
    with pytest.raises(ConfigInvalid, match=problem):
        make()
