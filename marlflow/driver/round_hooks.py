"""Callbacks around each round: checkpoints, the end of the run, and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marlflow.base.items import Weights
from marlflow.driver.checkpoint_timing import CheckpointTiming
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.stop_conditions import StopConditions
from marlflow.driver.time_limit import TimeLimit
from marlflow.sampling.matchmaking import Dealer
from marlflow.sampling.protocol import Drain, Request


class Requests:
    """Creates each round's request from `published` weights, schedules and matchups; `rounds` counts them."""

    def __init__(
        self,
        published: Callable[[], Mapping[str, Weights]],
        scheduler: Scheduler,
        dealer: Dealer | None,
        metrics: RunMetrics,
        time_limit: TimeLimit,
    ) -> None:
        self._published = published
        self._scheduler = scheduler
        self._dealer = dealer
        self._metrics = metrics
        self._time_limit = time_limit
        self.rounds = 0

    def next(self) -> Request:
        """Return the request of the next round."""
        self._time_limit.limit_training()
        sampled = self._metrics.agent_steps_sampled
        request = Request(self.rounds, self._published(), self._scheduler.now(sampled))
        self.rounds += 1
        # After `published`: a matchmaker may freeze the weights of this request.
        if self._dealer is not None:
            self._dealer.renew(request.weights, request.schedules, sampled)
        return request


class BetweenRounds:
    """Decides before each round whether to take a checkpoint, stop, or collect.

    `stopped_by` is the reason to stop; empty before.
    """

    def __init__(
        self, stops: StopConditions, checkpoints: CheckpointTiming, requests: Requests, notify: Callable[[str], None]
    ) -> None:
        self._stops = stops
        self._checkpoints = checkpoints
        self._requests = requests
        self._notify = notify
        self._stopping: str | None = None
        self._drains = False
        self.stopped_by = ""

    def checkpoint_if_due(self) -> Callable[[], None] | None:
        """Return what to call once nothing is in flight; None if no checkpoint is needed."""
        # The executor asks before each round; the answer also decides what `next_request` returns.
        self._stopping = self._stops.reason()
        due = self._checkpoints.is_due or self._stopping is not None
        self._drains = self._checkpoints.has_news and due
        return self._take_checkpoint if self._drains else None

    def _take_checkpoint(self) -> None:
        self._drains = False
        self._checkpoints.take()

    def next_request(self) -> Request | Drain | None:
        """Return the next request, Drain before a checkpoint, or None at the end."""
        if self._drains:
            return Drain()
        if self._stopping is not None:
            self.stopped_by = self._stopping
            self._notify(f"stopping: {self._stopping}")
            return None
        return self._requests.next()
