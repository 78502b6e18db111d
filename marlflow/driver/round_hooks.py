"""What the driver does around each round: a checkpoint or the end before it, and the request it is collected with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from marlflow.base.items import Weights
from marlflow.driver.checkpoint_timing import CheckpointTiming
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.stop_conditions import StopConditions
from marlflow.driver.time_limit import TimeLimit
from marlflow.sampling.matchmaking import Dealer
from marlflow.sampling.protocol import Request


class Requests:
    """Makes the request of each round, with `published` weights, schedules and matchups; `rounds` were requested."""

    def __init__(
        self,
        published: Callable[[], Mapping[str, Weights]],
        scheduler: Scheduler,
        dealer: Dealer | None,
        tally: RunMetrics,
        time_limit: TimeLimit,
    ) -> None:
        self._published, self._scheduler, self._dealer = published, scheduler, dealer
        self._tally, self._time_limit = tally, time_limit
        self.rounds = 0

    def next(self) -> Request:
        """The request of the next round."""
        self._time_limit.limit_training()
        sampled = self._tally.agent_steps_sampled
        request = Request(self.rounds, self._published(), self._scheduler.now(sampled))
        self.rounds += 1
        if self._dealer is not None:
            self._dealer.renew(request.weights, request.schedules, sampled)
        return request


class BetweenRounds:
    """Decides before each round whether a checkpoint is taken first, whether the run stops, or what to collect with.

    `tell` shows a message. `stopped_by` is why the run stops; empty before.
    """

    def __init__(
        self, stops: StopConditions, checkpoints: CheckpointTiming, requests: Requests, tell: Callable[[str], None]
    ) -> None:
        self._stops, self._checkpoints, self._requests, self._tell = stops, checkpoints, requests, tell
        self._stopping: str | None = None
        self._drains = False
        self.stopped_by = ""

    def checkpoint_if_due(self) -> Callable[[], None] | None:
        """Takes a checkpoint, to be called once nothing is in flight; None if none is due and the run does not stop."""
        self._stopping = self._stops.reason()
        due = self._checkpoints.is_due or self._stopping is not None
        self._drains = self._checkpoints.has_news and due
        return self._take_checkpoint if self._drains else None

    def _take_checkpoint(self) -> None:
        self._drains = False
        self._checkpoints.take()

    def next_request(self) -> Request | Literal["drain"] | None:
        """What to collect with; "drain" where everything in flight has to come first, None at the end."""
        if self._drains:
            return "drain"
        if self._stopping is not None:
            self.stopped_by = self._stopping
            self._tell(f"stopping: {self._stopping}")
            return None
        return self._requests.next()
