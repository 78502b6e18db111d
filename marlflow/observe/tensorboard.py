"""Writes reports, the configuration and its hyperparameters as TensorBoard events.

torch's SummaryWriter is not used, only its functions that make summaries: a full disk ends its thread, and queued
summaries are lost (docs/decisions/0058). The file is written here, in whole pieces.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from marlflow.observe.callback import Callback, RunEnd
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.sinks import AppendedFile, scalars_by_step, settings

# Sections of the configuration that describe the training; others would be columns that rarely differ.
_HPARAMS = ("seed", "env", "policies", "default_policy", "learners", "mapping", "league", "rollouts", "stop")
_NUMBERS = itertools.count()


class TensorBoardSink(Callback):
    """Writes numbers as scalars over env steps, the configuration as text, its values as hyperparameters.

    The file is opened at the first report. TensorBoard hides points after the checkpoint of a resumed run. Raises
    OSError while the disk refuses events, which are then written before the next ones.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._info: RunInfo | None = None
        self._file: AppendedFile | None = None
        self._session_end: Any = None

    def began(self, info: RunInfo) -> None:
        self._info = info

    def reported(self, record: Report) -> None:
        """Append a report's scalars, each at the env steps at which it was measured."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        opening = self._opening(record) if self._file is None else b""
        if self._file is None:
            stamp = f"{time.time():.0f}.{socket.gethostname()}.{os.getpid()}.{next(_NUMBERS)}"
            self._file = AppendedFile(self._directory / f"events.out.tfevents.{stamp}")
        events = [
            _event(step=step, summary=Summary(value=[Summary.Value(tag=tag, simple_value=v) for tag, v in of.items()]))
            for step, of in scalars_by_step(record).items()
        ]
        self._file.append(opening + b"".join(events))

    def ended(self, result: RunEnd) -> None:
        """Mark the session of a run without an error as finished, and close the file; raises OSError."""
        if self._file is None:
            return
        try:
            if result.error is None and self._session_end is not None:
                self._file.append(_event(step=int(result.metrics["env_steps"]), summary=self._session_end))
        finally:
            self._file.close()

    def _opening(self, record: Report) -> bytes:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard import summary

        opening = [_event(file_version="brain.Event:2")]
        if self._info is None:
            return b"".join(opening)
        step = 0
        if self._info.resumed is not None:
            step = self._info.resumed.env_steps
            # TensorBoard drops points of earlier files from this step on.
            opening.append(_event(step=step + 1, session_log=SessionLog(status=SessionLog.START)))
        if configuration := self._info.configuration:
            text = json.dumps(configuration, indent=1, ensure_ascii=False)
            opening.append(_event(step=step, summary=summary.text("configuration", f"```json\n{text}\n```")))
            values = dict(settings({name: configuration[name] for name in _HPARAMS if name in configuration}))
            goals = [
                f"policies/{name}/{goal}" for name in record["policies"] for goal in ("return_mean", "eval_return_mean")
            ]
            experiment, start, self._session_end = summary.hparams(values, dict.fromkeys(goals, 0.0))
            opening += [_event(step=step, summary=each) for each in (experiment, start)]
        return b"".join(opening)


def _event(**fields: Any) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.summary.writer.record_writer import RecordWriter

    written = io.BytesIO()
    RecordWriter(written).write(Event(wall_time=time.time(), **fields).SerializeToString())
    return written.getvalue()
