"""When returns sum to zero, and when two columns are the same."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marlflow.check_env.api import _first_difference
from marlflow.check_env.summary import _is_zero_sum


def of(*returns: tuple[float, ...]) -> Any:
    return SimpleNamespace(results=[SimpleNamespace(returns=dict(enumerate(one))) for one in returns])


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([(1.0, -1.0), (0.0, 0.0)], True),
        ([(1.0, -1 / 3, -1 / 3, -1 / 3)], True),
        ([(0.1, 0.2, -0.3)], True),
        ([(0.1, 0.2, -0.3), (1.0, -1.001)], False),
        ([(np.inf, -np.inf)], False),
        ([(0.0, 0.0)], None),
    ],
)
def test_rounding_decides_no_zero_sum(returns: Any, expected: bool | None) -> None:
    assert _is_zero_sum(of(*returns)) is expected


def test_nan_differs_from_numbers_alone() -> None:
    column = np.array([1.0, np.nan, 3.0])
    assert _first_difference(column, column.copy()) is None
    assert _first_difference(column, np.array([1.0, 2.0, 3.0])) == 1
    assert _first_difference(np.array([1.0, 2.0, 3.0]), column) == 1
    assert _first_difference(column, np.array([1.0, np.nan, 4.0])) == 2
