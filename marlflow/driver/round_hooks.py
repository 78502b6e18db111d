"""Callbacks around each round: checkpoints, the end of the run, and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from marlflow.base.items import Weights
from marlflow.driver.checkpoint_timing import CheckpointTiming
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.stop_conditions import StopConditions
from marlflow.driver.time_limit import TimeLimit
from marlflow.sampling.dealer import Dealer
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import Drain, Request


class Requests:
    """Creates each round's request from `published` weights, schedules and matchups; `rounds` counts them.

    Before each request, `renew` lets the matchmaker change the population.
    """

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
        self._reset: list[str] = []

    def renew(self) -> Sequence[Reset]:
        """Let the matchmaker freeze published weights; return its resets, for `note_reset` afterwards.

        Raises MatchmakerFailed.
        """
        if self._dealer is None:
            return ()
        sampled = self._metrics.agent_steps_sampled
        return self._dealer.renew(self._published(), self._scheduler.by_policy(sampled), sampled)

    def note_reset(self, policy: str) -> None:
        """Let workers drop the rows that are from before a policy's reset."""
        self._reset.append(policy)

    def next(self) -> Request:
        """Return the request of the next round."""
        self._time_limit.limit_training()
        schedules = self._scheduler.now(self._metrics.agent_steps_sampled)
        request = Request(self.rounds, self._published(), schedules, reset=tuple(self._reset))
        self._reset.clear()
        self.rounds += 1
        return request


class BetweenRounds:
    """Decides before each round whether to take a checkpoint, reset learners, stop, or collect.

    `reset_learner` resets the learner of a policy, at rest. `stopped_by` is the reason to stop; empty before.
    """

    def __init__(
        self,
        stops: StopConditions,
        checkpoints: CheckpointTiming,
        requests: Requests,
        reset_learner: Callable[[Reset], None],
        notify: Callable[[str], None],
    ) -> None:
        self._stops = stops
        self._checkpoints = checkpoints
        self._requests = requests
        self._reset_learner = reset_learner
        self._notify = notify
        self._stopping: str | None = None
        self._drains = False
        self.stopped_by = ""

    def before_round(self) -> Callable[[], None] | None:
        """Return what to call once nothing is in flight; None if that is not needed. Raises MatchmakerFailed."""
        # The executor asks before each round; the answer also decides what `next_request` returns.
        self._stopping = self._stops.reason()
        due = self._checkpoints.is_due or self._stopping is not None
        at_rest = None
        if self._checkpoints.has_news and due:
            at_rest = self._take_checkpoint
        elif self._stopping is None and (resets := self._requests.renew()):
            at_rest = partial(self._reset, resets)
        self._drains = at_rest is not None
        return at_rest

    def _take_checkpoint(self) -> None:
        self._checkpoints.take()
        # After the checkpoint: a run that resumes from it lets the matchmaker change the population, too.
        self._reset(() if self._stopping is not None else self._requests.renew())

    def _reset(self, resets: Sequence[Reset]) -> None:
        self._drains = False
        for reset in resets:
            self._reset_learner(reset)
            self._requests.note_reset(reset.policy)

    def next_request(self) -> Request | Drain | None:
        """Return the next request, Drain before a checkpoint or a reset, or None at the end."""
        if self._drains:
            return Drain()
        if self._stopping is not None:
            self.stopped_by = self._stopping
            self._notify(f"stopping: {self._stopping}")
            return None
        return self._requests.next()
