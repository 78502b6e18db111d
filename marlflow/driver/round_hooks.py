"""Callbacks around each round: checkpoints, the end of the run, and requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from marlflow.base.serialization import Tree
from marlflow.batches.items import Weights
from marlflow.driver.checkpointing import CheckpointTiming
from marlflow.driver.league import LearnerResets
from marlflow.driver.policy_changes import PolicyChanges
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.service import Service
from marlflow.driver.stop_conditions import StopConditions, TimeLimit
from marlflow.matchmaking.dealer import Dealer
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import Drain, Request


class BetweenRounds(Service):
    """Decides before each round whether to take a checkpoint, reset or change learners, stop, or collect.

    Counts the rounds.

    Requests to collect are made from `published` weights, schedules and matchups. `notify` shows why the run stops.
    """

    def __init__(
        self,
        published: Callable[[], Mapping[str, Weights]],
        scheduler: Scheduler,
        dealer: Dealer | None,
        metrics: RunMetrics,
        time_limit: TimeLimit,
        stops: StopConditions,
        checkpoints: CheckpointTiming,
        resets: LearnerResets,
        changes: PolicyChanges,
        notify: Callable[[str], None],
    ) -> None:
        self._published, self._scheduler, self._dealer, self._metrics = published, scheduler, dealer, metrics
        self._time_limit, self._stops, self._checkpoints, self._resets = time_limit, stops, checkpoints, resets
        self._changes, self._notify = changes, notify
        self._rounds = 0
        # Policies that were reset, or have copied another one, since the last request.
        self._were_reset: list[str] = []
        self._stopping: str | None = None
        self._drains = False
        self._stopped_by = ""

    def state(self) -> Tree:
        # At the end of a run, policies that were reset may wait for a request that a resumed run makes.
        return {"rounds": self._rounds, "were_reset": self._were_reset} if self._were_reset else self._rounds

    def load_state(self, state: Tree) -> None:
        self._rounds, self._were_reset = (
            (state["rounds"], list(state["were_reset"])) if isinstance(state, dict) else (state, [])
        )

    def before_round(self) -> Callable[[], None] | None:
        """Return what to call once nothing is in flight; None if that is not needed. Raises MatchmakerFailed."""
        # The executor asks before each round; the answer also decides what `next_request` returns.
        self._stops.before_round()
        self._stopping = self._stops.reason()
        due = self._checkpoints.is_due or self._stopping is not None
        at_rest = None
        if self._checkpoints.has_news and due:
            at_rest = self._take_checkpoint
        elif self._stopping is None:
            resets = self._change_population()
            at_rest = partial(self._succeed, resets) if self._changes.take() or resets else None
        self._drains = at_rest is not None
        return at_rest

    def _take_checkpoint(self) -> None:
        """Write a checkpoint (`driver.checkpointing` collects its files, `runs.checkpoints` writes them)."""
        self._checkpoints.take()
        self._drains = False
        # Rounds that were in flight when the pause began have been counted, and the checkpoint may have failed.
        self._stopping = self._stops.reason()
        # After the checkpoint: a run that resumes from it lets the matchmaker change the population, too.
        if self._stopping is None:
            self._succeed(self._change_population())

    def _change_population(self) -> Sequence[Reset]:
        """Let the matchmaker freeze published weights; return its resets. Raises MatchmakerFailed."""
        if self._dealer is None:
            return ()
        sampled = self._metrics.agent_steps_sampled
        return self._dealer.renew(self._published(), self._scheduler.by_policy(), sampled)

    def _succeed(self, resets: Sequence[Reset]) -> None:
        """Reset learners, and make the changes that callbacks ask for."""
        self._drains = False
        # Rounds that were in flight have been counted; what was decided before them is still done.
        self._stopping = self._stops.reason()
        for reset in resets:
            self._resets.reset_learner(reset)
            # Workers drop the rows that are from before the reset.
            self._were_reset.append(reset.policy)
        if self._changes.take():
            self._were_reset += self._changes.make()

    def next_request(self) -> Request | Drain | None:
        """Return the next request, Drain before a checkpoint or a reset, or None at the end."""
        if self._drains:
            return Drain()
        if self._stopping is not None:
            self._stopped_by = self._stopping
            self._checkpoints.stopped()
            self._notify(f"stopping: {self._stopping}")
            return None
        self._time_limit.limit_training()
        request = Request(self._rounds, self._published(), self._scheduler.now(), reset=tuple(self._were_reset))
        self._were_reset.clear()
        self._rounds += 1
        return request

    def why_ended(self) -> str:
        """Return the reason why the run has ended."""
        # The source also ends, without another request, once every plan has ended.
        return self._stopped_by or self._stops.reason() or "the end of its experience"
