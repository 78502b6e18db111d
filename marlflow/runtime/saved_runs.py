"""The checkpoints of a run's folder, for reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import MALFORMED
from marlflow.runtime.checkpoints import Checkpoint, CheckpointStore

DRIVER = "driver"
"""The name of the file with the driver's state."""

EXPERIMENT = "experiment.json"
"""The file of a run's folder that describes its experiment as plain data, in the form of a configuration."""


def folder(run_dir: Path) -> Path:
    """Return a run's checkpoint folder."""
    return run_dir / "checkpoints"


def newest(run_dir: Path) -> Checkpoint:
    """Return a run's newest valid checkpoint; raise CheckpointUnusable if there is none."""
    return CheckpointStore(folder(run_dir), keep=1).load()


def skipped_checkpoints(checkpoint: Checkpoint) -> list[str]:
    """Return sentences on newer checkpoints that are damaged."""
    return [f"checkpoint {path} is not whole ({why}); one before it is used" for path, why in checkpoint.passed_over]


@contextmanager
def usable(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise CheckpointUnusable, with the checkpoint's path, for malformed contents found in this context."""
    try:
        yield
    except CheckpointUnusable as error:
        raise CheckpointUnusable([f"{checkpoint.path}: {problem}" for problem in error.problems]) from error
    # Hashes only show that the files are complete: a user who can write to the folder may have put anything there.
    except MALFORMED as error:
        reason = f"what is in it is not of the shape that marlflow writes ({type(error).__name__}: {error})"
        remedy = "remove it, and the one before it is used"
        raise CheckpointUnusable([f"{checkpoint.path} cannot be used: {reason}; {remedy}"]) from error
