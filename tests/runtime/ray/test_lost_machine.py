"""A machine is lost, the run continues with the others, and its worker returns when another machine joins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime.ray.processes import printed_by

pytestmark = pytest.mark.slow


def test_a_run_outlives_one_of_its_machines(tmp_path: Path) -> None:
    found = json.loads(printed_by("lost_machine", str(tmp_path)).splitlines()[-1])
    assert found["stopped_by"] == "whole again"
    assert found["took_part"] == [[0, 1], [0], [0, 1]]
    assert {kind: count for kind, count in found["faults"].items() if count} == {"workers_lost": 1}
    assert any((tmp_path / "checkpoints").iterdir())
