from __future__ import annotations

import json

import pytest

from tests.runtime.ray.processes import printed_by

pytestmark = pytest.mark.slow


def test_rows_move_from_the_workers_machine_to_the_learners_and_not_to_the_drivers() -> None:
    rows, received = json.loads(printed_by("rows_between_machines"))
    # Four observations, action, reward and version of a row take more than this many bytes.
    assert received["learning"] > 30 * rows > 0
    assert received["sampling"] > 30 * rows
    # The store of the driver's machine gets neither rows nor references' contents.
    assert received["driver"] < rows
