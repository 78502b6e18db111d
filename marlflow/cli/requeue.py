"""Jobs that submitit has submitted to a cluster: preempted, requeued, and resumed where they were.

The signal that a cluster sends before it ends a job, SIGUSR2 or what SUBMITIT_PREEMPT_SIGNAL names, ends the run in
order, with a checkpoint; then submitit's own handler requeues the job. The job that starts again finds its run.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf


def is_submitted() -> bool:
    """Return whether this process runs a job of submitit."""
    return "SUBMITIT_EXECUTOR" in os.environ


@contextmanager
def requeued_on_signal() -> Iterator[None]:
    """End the run in order when the cluster is about to end the job, then let submitit requeue it."""
    number = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}", None)
    requeue = None if number is None or not is_submitted() else signal.getsignal(number)
    if number is None or not callable(requeue):
        yield
        return
    has_come = False

    def end_run(_number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        has_come = True
        os.kill(os.getpid(), signal.SIGTERM)

    signal.signal(number, end_run)
    try:
        yield
    except Exception:
        if has_come:  # exits, or raises if the job may not be requeued
            requeue(number, None)
        raise
    finally:
        signal.signal(number, requeue)


def restarted_run(run_dir: Path) -> bool:
    """Return whether `run_dir` has a checkpoint of this very job, which was requeued.

    What it wrote before its first checkpoint is moved aside.
    """
    from marlflow.base.errors import CheckpointUnusable
    from marlflow.base.links import check_links
    from marlflow.config.folders import existing_run_problems
    from marlflow.runs.saved_runs import newest

    written = run_dir / ".hydra" / "hydra.yaml"
    if not is_submitted() or not written.is_file():
        return False
    check_links(run_dir)
    # submitit's number of a job is a cluster's own, which a requeued job keeps.
    if OmegaConf.select(OmegaConf.load(written), "hydra.job.id") != HydraConfig.get().job.id:
        return False
    try:
        newest(run_dir)
    except CheckpointUnusable:
        if any(existing_run_problems(run_dir)):
            _move_aside(run_dir)
        return False
    return True


def _move_aside(run_dir: Path) -> None:
    number = 1
    while (aside := run_dir.with_name(f"{run_dir.name}_unfinished_{number}")).exists():
        number += 1
    run_dir.rename(aside)
    run_dir.mkdir()
