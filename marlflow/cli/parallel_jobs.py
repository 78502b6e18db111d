"""Interrupt jobs that run in other processes than the command: each finishes its round and takes a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from marlflow.cli.sweep_job import STOP
from marlflow.cli.sweep_records import read_records
from marlflow.driver.graceful_shutdown import REASON_OF, REASONS

_POLL_S = 0.05


@contextmanager
def finished_on_signal(records: Path) -> Iterator[None]:
    """On a first signal, let the running jobs end in order, begin no more, and raise; on a second, raise at once."""
    has_come = False

    def end(number: int, _frame: FrameType | None) -> None:
        nonlocal has_come
        reason = REASONS[REASON_OF[signal.Signals(number)]]
        if has_come:
            raise reason
        has_come = True
        (records / STOP).touch()
        print("the running jobs finish their round; interrupt again to stop at once", file=sys.stderr)
        for pid in _running(
            records
        ):  # processes of the same terminal have received SIGINT already, and a second one adds nothing
            os.kill(pid, signal.SIGTERM)
        while _running(records):
            time.sleep(_POLL_S)
        raise reason

    before = {number: signal.signal(number, end) for number in REASON_OF}
    released = threading.Event()
    # SIGINT is blocked in the processes that this thread starts, or one that waits for a job would end on Ctrl-C and
    # take all others with it. Another thread receives it for this process.
    receiver = threading.Thread(target=released.wait, name="marlflow-interrupt", daemon=True)
    receiver.start()
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        released.set()
        for number, handler in before.items():
            signal.signal(number, handler)
        _end_processes()


def _end_processes() -> None:
    # joblib would keep them for its next call, with SIGINT blocked.
    from joblib.externals.loky import get_reusable_executor  # type: ignore[import-untyped]

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


def _running(records: Path) -> list[int]:
    """Return the processes of jobs that have not ended."""
    return [record.pid for record in read_records(records) if not record.ended_by and _exists(record.pid)]


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
