"""What tests of checkpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run's checkpoints, which is not there yet."""
    return tmp_path / "run" / "checkpoints"
