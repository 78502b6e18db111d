"""Evaluation episodes of a run."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from marlflow.base.awaiting import begun
from marlflow.base.items import Weights
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.episode_metrics import EvaluationContext, evaluation_metrics
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.same_games import SelfPlay, same_games
from marlflow.flow import Executor, Plan, source
from marlflow.observe.callback import EvaluationEvent
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.protocol import EvaluationRequest, Workers
from marlflow.sampling.receipts import Evaluated, Receipt


class Evaluator:
    """Evaluates the `published` policies at an interval of env steps and at the end of the run.

    `report` is called before an evaluation replaces an unreported one, `observe` after each. `due_env_steps`: when the
    next one is due. `spent_s`: seconds spent so far. `expected_s`: estimated duration of the final one.
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        workers: Workers,
        metrics: RunMetrics,
        budget: FaultBudget,
        published: Callable[[], Mapping[str, Weights]],
        report: Callable[[], None],
        notify: Callable[[str], None],
        observe: Callable[[EvaluationEvent], None],
    ) -> None:
        self._settings, self._pairings = checked.experiment.evaluation, checked.pairings
        self._modes = modes_of(checked)
        self._workers = workers
        self._metrics = metrics
        self._budget = budget
        self._published = published
        self._report = report
        self._notify, self._observe = notify, observe
        self._reported_same_games = False
        self._self_play = SelfPlay() if self._settings.opponents is None else None
        self.due_env_steps = 0
        self.spent_s = self.expected_s = 0.0

    async def after_round(self, receipts: Sequence[Receipt]) -> None:
        """Evaluate if due; warn of self-play returns that never change."""
        if self._self_play is not None:
            for text in self._self_play.check(receipts):
                self._notify(text)
        if self._settings.episodes and self._metrics.env_steps >= self.due_env_steps:
            self.due_env_steps += self._settings.every_env_steps
            await self._evaluate(self._settings.episodes)

    def at_the_end(self) -> None:
        """Evaluate the final policies."""
        progress = [self._settings.episodes_at_the_end]
        if progress == [0]:
            return

        def evaluate() -> Evaluated | Awaitable[Evaluated]:
            if not progress:
                raise StopIteration
            return begun(self._evaluate(progress.pop()))

        # Run by an executor as a plan of one stage, so that an error is raised as in training.
        Executor(Plan("evaluation", source(evaluate, name="Evaluate")), lambda _plan, _results: None).run_sync()

    async def _evaluate(self, episodes: int) -> Evaluated:
        began_s = time.perf_counter()
        if any(policy.evaluation_is_new for policy in self._metrics.policies.values()):
            self._report()
        weights = self._published()
        versions = {name: published.version for name, published in weights.items()}
        pairings = self._pairings.dealt(episodes)
        context = EvaluationContext(self._settings.mode, self._metrics.env_steps, versions, pairings)
        matchups = [pairing.matchup for pairing in pairings] or None
        count = len(pairings) or episodes
        # Where opponents are named, each policy plays `episodes` episodes of its own.
        results = await self._workers.evaluate(EvaluationRequest(range(count), weights, matchups, self._modes))
        self._evaluated(results, context, began_s)
        return results

    def _evaluated(self, results: Evaluated, context: EvaluationContext, began_s: float) -> None:
        duration_s = time.perf_counter() - began_s
        self.spent_s += duration_s
        if self._settings.episodes:
            self.expected_s = duration_s * self._settings.episodes_at_the_end / self._settings.episodes
        if results.was_cut:
            # Short episodes end first, so the mean of the finished ones would be biased.
            self._notify(
                f"an evaluation was ended by stop.time_s after {duration_s:.0f} s; its episodes are not counted"
            )
            results = replace(results, episodes=())
        self._metrics.evaluated(results, context)
        policies = self._metrics.policies.items() if results.episodes else ()
        played = {name: evaluation_metrics(one.evaluation) for name, one in policies if one.evaluation_is_new}
        ended_s = time.time()
        self._observe(EvaluationEvent(context.env_steps, played, ended_s - duration_s, ended_s))
        if not self._reported_same_games and (text := same_games(results.episodes, self._settings)) is not None:
            self._reported_same_games = True
            self._notify(text)
        self._budget.account(results.faults)


def modes_of(checked: CheckedExperiment) -> EvaluationModes:
    """Return how policies act in evaluation: by `evaluation.mode`, but policies that imitate are sampled."""
    mode, policies = checked.experiment.evaluation.mode, {**checked.spec.policies, **checked.spec.opponents}
    imitating = {name for name, policy in policies.items() if policy.algorithm.capabilities.imitates}
    # The most likely action of a mixed strategy is another strategy.
    return {name: "sampled" if name in imitating else mode for name in policies} if imitating else mode
