"""The checkpoints of a run's folder, for reading."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import MALFORMED
from marlflow.runs.checkpoints import Checkpoint, CheckpointStore

log = logging.getLogger("marlflow")

DRIVER = "driver"
"""The name of the file with the driver's state."""

EXPERIMENT = "experiment.json"
"""The file of a run's folder that describes its experiment as plain data, in the form of a configuration."""

Which = Literal["best"] | int | None
"""Which checkpoint of a run: that of the highest metric, that of so many env steps, or the newest."""


def folder(run_dir: Path) -> Path:
    """Return a run's checkpoint folder."""
    return run_dir / "checkpoints"


def newest(run_dir: Path) -> Checkpoint:
    """Return a run's newest valid checkpoint, whatever was passed over; raise CheckpointUnusable if there is none."""
    return CheckpointStore(folder(run_dir), keep=1).load()


def chosen(
    run_dir: Path, which: Which = None, scores: Callable[[], Mapping[int, float]] = dict, strict: bool = False
) -> Checkpoint:
    """Return a valid checkpoint of a run; raise CheckpointUnusable if it is not there.

    The best is that of the highest metric `checkpoint.best`. If the run had none, it is that with the highest score:
    `scores` returns those of checkpoints, by env steps. If one is damaged that would have been chosen, a warning
    is logged; if `strict`, CheckpointUnusable is raised.
    """
    checkpoint = _chosen(run_dir, which, scores)
    if checkpoint.passed_over and strict:
        raise CheckpointUnusable(
            [
                f"{_damaged(checkpoint)}, and strict=true uses no other; put it back from a copy, or choose a whole "
                f"one: checkpoint={checkpoint.env_steps}"
            ]
        )
    if (notice := skipped(checkpoint)) is not None:
        log.warning(notice)
    return checkpoint


def _chosen(run_dir: Path, which: Which, scores: Callable[[], Mapping[int, float]]) -> Checkpoint:
    store = CheckpointStore(folder(run_dir), keep=1)
    if which is None:
        return store.load()
    if which != "best":
        return store.at(which)
    if (best := store.best(scores)) is not None:
        return best
    newest_whole, whole = store.load(), store.whole()
    kept = ", ".join(f"{one.env_steps}{' (the newest)' * (one.env_steps == newest_whole.env_steps)}" for one in whole)
    raise CheckpointUnusable(
        [
            f"which checkpoint of {run_dir} is the best is not known: the run had no checkpoint.best, a metric such as "
            "policies.<id>.eval_return_mean, and no evaluation of its only learner at a checkpoint; choose one by its "
            f"env steps: {kept}"
        ]
    )


def skipped(checkpoint: Checkpoint) -> str | None:
    """Return one sentence on the damaged checkpoints in place of which this one is used; None if there are none."""
    if not checkpoint.passed_over:
        return None
    return f"{_damaged(checkpoint)}; checkpoint {checkpoint.env_steps} is used instead"


def _damaged(checkpoint: Checkpoint) -> str:
    return "; ".join(f"checkpoint {path} is not whole ({why})" for path, why in checkpoint.passed_over)


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
