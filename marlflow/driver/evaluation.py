"""The evaluations of a run: when one is due, with how many episodes, and who is told of the results."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from marlflow.base.awaiting import begun
from marlflow.base.items import Weights
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.episode_metrics import EvaluationContext
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.same_games import SelfPlay, same_games
from marlflow.flow import Executor, Plan, source
from marlflow.sampling.protocol import Workers
from marlflow.sampling.receipts import Evaluated, Receipt


class Evaluator:
    """Evaluates the policies as they are `published`, every so many env steps and at the end of the run.

    `report` makes a report, and is called where an evaluation would replace one that no report has yet; `tell` shows a
    message. `due_env_steps`: when the next evaluation is due. `spent_s`: seconds that evaluations have taken so far.
    `expected_s`: how long the one at the end will take, going by the last one; 0 before there was any.
    """

    def __init__(
        self,
        made: CheckedExperiment,
        workers: Workers,
        tally: RunMetrics,
        budget: FaultBudget,
        published: Callable[[], Mapping[str, Weights]],
        report: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._settings, self._pairings = made.experiment.evaluation, made.pairings
        self._workers, self._tally, self._budget = workers, tally, budget
        self._published, self._report, self._tell = published, report, tell
        self._said_same = False
        self._self_play = SelfPlay() if self._settings.opponents is None else None
        self.due_env_steps = 0
        self.spent_s = self.expected_s = 0.0

    async def after_round(self, receipts: Sequence[Receipt]) -> None:
        """Evaluates if it is due."""
        if self._self_play is not None:
            for text in self._self_play.found_in(receipts):
                self._tell(text)
        if self._settings.episodes and self._tally.env_steps >= self.due_env_steps:
            self.due_env_steps += self._settings.every_env_steps
            await self._evaluate(self._settings.episodes)

    def at_the_end(self) -> None:
        """Evaluates the policies as they are at the end of the run: a plan of one stage and one item."""
        left = [self._settings.episodes_at_the_end]
        if left == [0]:
            return

        def evaluate() -> Evaluated | Awaitable[Evaluated]:
            if not left:
                raise StopIteration
            return begun(self._evaluate(left.pop()))

        Executor(Plan("evaluation", source(evaluate, name="Evaluate")), lambda _plan, _results: None).run_sync()

    async def _evaluate(self, episodes: int) -> Evaluated:
        """`episodes` of all policies together, or of each policy where opponents are named."""
        began_s = time.perf_counter()
        if any(policy.evaluation_is_new for policy in self._tally.policies.values()):
            self._report()
        weights = self._published()
        versions = {name: published.version for name, published in weights.items()}
        dealt = self._pairings.dealt(episodes)
        context = EvaluationContext(self._settings.mode, self._tally.env_steps, versions, dealt)
        matchups = [pairing.matchup for pairing in dealt] or None
        count = len(dealt) or episodes
        results = await self._workers.evaluate(range(count), weights, matchups, context.mode)
        self._evaluated(results, context, began_s)
        return results

    def _evaluated(self, results: Evaluated, context: EvaluationContext, began_s: float) -> None:
        took_s = time.perf_counter() - began_s
        self.spent_s += took_s
        if self._settings.episodes:
            self.expected_s = took_s * self._settings.episodes_at_the_end / self._settings.episodes
        if results.was_cut:  # those that are there are the short ones: their mean would be another
            self._tell(f"an evaluation was ended by stop.time_s after {took_s:.0f} s; its episodes are not counted")
            results = replace(results, episodes=())
        self._tally.evaluated(results, context)
        if not self._said_same and (text := same_games(results.episodes, self._settings)) is not None:
            self._said_same = True
            self._tell(text)
        self._budget.account(results.faults)
