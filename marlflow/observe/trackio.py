"""Trackio: a sink that logs reports to a local database, which `trackio show` draws."""

from __future__ import annotations

import io
import logging
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from marlflow.observe.callback import Callback, RunEnd, missing_extra
from marlflow.observe.report import Report, RunInfo
from marlflow.observe.sinks import scalars_by_step
from marlflow.observe.wandb import run_title

log = logging.getLogger("marlflow")


@dataclass
class TrackioSink(Callback):
    """Logs all numbers of reports over env steps, and the configuration, to Trackio's database on this machine.

    The database is in TRACKIO_DIR, by default Hugging Face's cache. A resumed run continues the same run of Trackio.
    """

    project: str | None = None  #: project in the database; None: name of the run
    name: str | None = None  #: name among the project's runs; None: last two parts of the run's folder
    group: str | None = None  #: group of runs, such as the runs of a sweep; None: none
    #: a Space of Hugging Face instead of the local database; the token comes from HF_TOKEN or `hf auth login`
    space_id: str | None = None

    def __post_init__(self) -> None:
        self._run: Any = None

    def problems(self) -> Sequence[str]:
        return missing_extra("trackio", "trackio")

    def began(self, info: RunInfo) -> None:
        """Begin a run of Trackio, or continue the one of a resumed run."""
        import trackio

        # Trackio prints, which would break the console's view.
        with redirect_stdout(io.StringIO()) as printed:
            self._run = trackio.init(
                project=self.project or info.name,
                # Trackio knows runs by name, so the name has the run's id.
                name=f"{self.name or run_title(info)} {info.id}",
                group=self.group,
                space_id=self.space_id,
                config=dict(info.configuration),
                resume="allow",
                embed=False,
            )
        log.info("Trackio: %s", printed.getvalue().strip())

    def reported(self, record: Report) -> None:
        """Log a report's numbers, each at the env steps at which it was measured."""
        for env_steps, numbers in scalars_by_step(record).items():
            self._run.log(numbers, step=env_steps)

    def ended(self, result: RunEnd) -> None:
        if self._run is not None:
            with redirect_stdout(io.StringIO()):
                self._run.finish()
            self._run = None
