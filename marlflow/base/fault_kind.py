"""Kinds of tolerated faults."""

from __future__ import annotations

from enum import StrEnum


class FaultKind(StrEnum):
    """A kind of fault that does not end a run; its value is the key in `faults.*` and in reports."""

    ENV_ERRORS = "env_errors"
    """An environment raised, or broke PettingZoo's contract."""
    ENV_HANGS = "env_hangs"
    """A step or reset took longer than `env.step_timeout_s`."""
    WORKERS_LOST = "workers_lost"
    LEARNERS_LOST = "learners_lost"
    REPLAYS_LOST = "replays_lost"
    UPDATES_SKIPPED = "updates_skipped"
    """A gradient was not finite."""
    CHECKPOINTS_FAILED = "checkpoints_failed"
    REPORTS_FAILED = "reports_failed"
    RECORDS_FAILED = "records_failed"
    CLOSES_FAILED = "closes_failed"
    CALLBACKS_FAILED = "callbacks_failed"
    """A callback or a sink raised."""

    @property
    def of_environment(self) -> bool:
        """Whether an environment broke an episode; workers count these too."""
        return self in (FaultKind.ENV_ERRORS, FaultKind.ENV_HANGS)
