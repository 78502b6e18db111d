"""Films that a run makes of its evaluated policies: after an evaluation, another process plays an episode.

The process reads the newest checkpoint, as `marlflow play` does. So it needs nothing of the run's processes, whatever
the runtime; a simulator that cannot draw, crashes or hangs there harms no run; and no number of the run depends on it.
Evaluations and checkpoints have the same interval by default, and the last evaluation is of the last checkpoint.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Final, Literal

from marlflow.base.ranges import Count, Range, SomeShare
from marlflow.driver.graceful_shutdown import REASONS
from marlflow.observe.callback import Callback, EvaluationEvent, RunEnd, missing_extra
from marlflow.observe.report import Report, RunInfo

FILMS_FOLDER: Final = "films"
"""The folder of the films in a run's folder."""
LOG: Final = "film_maker.log"
"""What the last process that made a film has printed, in that folder."""
_MOST_FAILURES = 3
_GRACE_S = 30.0
"""Seconds that the process may take to import and to end, beside `limit_s`."""
# Only the drawing is wanted of it: it uses no accelerator and no second core.
_ENVIRON = {"CUDA_VISIBLE_DEVICES": "", "JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
log = logging.getLogger("marlflow")


@dataclass
class RunFilms(Callback):
    """Plays an episode after an evaluation, in a process of its own, and writes `films/<env steps>.webp` for the page.

    The episode has the same seed each time. A film is left out if it would take more than `share` of the time, except
    the last one, for which the run waits. If none can be made, that is logged once, and the run continues.
    """

    format: Literal["webp", "mp4", "webm", "gif"] = "webp"  #: webp, mp4, webm or gif
    frames: Count = 500  #: frames of a film at most
    longest_side: Annotated[int, Range(16, 4096)] = 720  #: pixels in width and height at most
    keep: Count = 3  #: newest films to keep
    share: SomeShare = 0.1  #: most of the time in which a film is being made
    limit_s: Annotated[int, Range(1, 3600)] = 120  #: seconds that a film may take

    def __post_init__(self) -> None:
        self._run_dir, self._log, self._mode = Path(), Path(), "as_learned"
        self._maker: subprocess.Popen[bytes] | None = None
        self._began_s = self._not_before_s = 0.0
        # Env steps of the last evaluation, of the last checkpoint, and of the checkpoint of the last film.
        self._evaluated_at: int | None = None
        self._saved_at: int | None = None
        self._filmed_at: int | None = None
        self._is_wanted = False
        self._failures = 0

    def problems(self) -> list[str]:
        """Return the package that is needed and not installed."""
        return missing_extra("av", "video")

    def began(self, info: RunInfo) -> None:
        self.__post_init__()
        self._run_dir, self._log = info.run_dir, info.run_dir / FILMS_FOLDER / LOG
        self._mode = info.configuration.get("evaluation", {}).get("mode", self._mode)
        self._saved_at = None if info.resumed is None else info.resumed.env_steps

    def reported(self, record: Report) -> None:
        """Notice that a film is finished."""
        self._poll()

    def evaluated(self, evaluation: EvaluationEvent) -> None:
        """Note that a film is wanted, and begin it if the evaluated policies are saved already."""
        self._is_wanted, self._evaluated_at = True, evaluation.env_steps
        if self._saved_at == self._evaluated_at:
            self._begin()

    def saved(self, path: Path) -> None:
        """Begin the film of the last evaluation."""
        self._saved_at = int(path.name)
        self._begin()

    def ended(self, result: RunEnd) -> None:
        """Finish the film of the evaluation at the run's end; drop any other one that is not finished."""
        is_whole = result.error is None and result.stopped_by not in REASONS
        if not is_whole or self._evaluated_at is None or self._evaluated_at != self._saved_at:
            self._drop()
            return
        if self._filmed_at != self._evaluated_at:
            self._drop()
            self._is_wanted, self._not_before_s = True, 0.0
            self._begin()
        if self._maker is not None:
            with suppress(subprocess.TimeoutExpired):
                self._maker.wait(self._longest_s)
            self._poll()

    @property
    def _longest_s(self) -> float:
        """Seconds after which the process has not even ended itself."""
        return self.limit_s + _GRACE_S

    def _drop(self) -> None:
        if self._maker is not None:
            self._maker.kill()
            self._maker.wait()
            self._maker = None

    def _begin(self) -> None:
        self._poll()
        is_due = self._is_wanted and time.monotonic() >= self._not_before_s
        if not is_due or self._maker is not None or self._failures == _MOST_FAILURES:
            return
        self._is_wanted, self._began_s, self._filmed_at = False, time.monotonic(), self._saved_at
        settings = json.dumps({**asdict(self), "mode": self._mode})
        command = [sys.executable, "-m", "marlflow.watch.film_maker", str(self._run_dir), settings]
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("wb") as said:
            self._maker = subprocess.Popen(
                command, env={**os.environ, **_ENVIRON}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def _poll(self) -> None:
        """Take note of a film that is finished; end a process that hangs before it can end itself."""
        if self._maker is None:
            return
        took_s = time.monotonic() - self._began_s
        if self._maker.poll() is None and took_s > self._longest_s:
            self._maker.kill()
            self._maker.wait()
        if (code := self._maker.poll()) is None:
            return
        self._maker = None
        self._not_before_s = time.monotonic() + took_s * (1 / self.share - 1)
        self._failures = self._failures + 1 if code else 0
        # An interrupt of the run reaches this process, too.
        if self._failures == 1 and code != -signal.SIGINT:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            late = f"it took more than limit_s={self.limit_s} seconds"
            ended = f"its process ended with {code}; see {self._log}"
            is_late = code == -signal.SIGALRM or (code == -signal.SIGKILL and took_s > self._longest_s)
            log.warning("no film of this run: %s", late if is_late else said[-1] if said else ended)
