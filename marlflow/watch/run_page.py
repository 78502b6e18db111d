"""The page of `marlflow watch`, served by a run itself while it trains."""

from __future__ import annotations

import logging
import queue
import secrets
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from marlflow.base.ranges import Range
from marlflow.observe.callback import Callback, RunEnd, missing_extra
from marlflow.observe.report import RunInfo

if TYPE_CHECKING:
    from marlflow.watch.server import WatchServer

_END_S = 5.0
log = logging.getLogger("marlflow")


@dataclass
class RunPage(Callback):
    """Serves a run's page on loopback while it trains, and prints its address, with a token, at the start."""

    port: Annotated[int, Range(0, 65_535)] = 0  #: port on loopback; 0: any free one
    control: bool = False  #: whether the page has a button that asks the run to stop and save

    def __post_init__(self) -> None:
        self._watch: WatchServer | None = None
        self._thread: threading.Thread | None = None

    def problems(self) -> Iterator[str]:
        """Yield the first package of the page that is not installed."""
        missing = [*missing_extra("starlette", "watch"), *missing_extra("uvicorn", "watch")]
        yield from missing[:1]

    def began(self, info: RunInfo) -> None:
        """Serve the page in a thread; raises ConfigInvalid if the port cannot be had."""
        from marlflow.watch.followed import FollowedRun
        from marlflow.watch.server import WatchServer, serve

        run = FollowedRun(info.run_dir, info.name)
        watch = self._watch = WatchServer([run], secrets.token_urlsafe(16), control=self.control)
        answers: queue.Queue[str | BaseException] = queue.Queue()

        def serve_until_closed() -> None:
            error: BaseException = RuntimeError("the page ended before it had an address")
            try:
                serve(watch, self.port, answers.put)
            except BaseException as raised:  # noqa: BLE001  raised by `began`, or else logged
                error = raised
                log.warning("the page of this run has ended: %s", error)
            answers.put(error)

        self._thread = threading.Thread(target=serve_until_closed, name="marlflow-page", daemon=True)
        self._thread.start()
        if isinstance(answer := answers.get(), BaseException):
            raise answer
        sys.stdout.write(f"the page of this run, until it ends: {answer}\n")
        sys.stdout.flush()

    def ended(self, result: RunEnd) -> None:
        """End the page with its run."""
        if self._watch is not None and self._thread is not None:
            self._watch.close()
            self._thread.join(_END_S)
