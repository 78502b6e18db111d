"""Evaluation episodes of a run, and warnings of evaluations and self-play whose returns are meaningless."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from marlflow.base.awaiting import begun
from marlflow.base.serialization import Tree
from marlflow.config.checked import CheckedExperiment
from marlflow.config.experiment import Evaluation
from marlflow.config.opponents import Pairing
from marlflow.driver.callbacks import Callbacks
from marlflow.driver.episode_metrics import EvaluationContext, evaluation_metrics, game
from marlflow.driver.faults import FaultBudget
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service, due_within
from marlflow.flow import Executor, Plan, source
from marlflow.observe.callback import EvaluationEvent
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.protocol import RunComponents
from marlflow.sampling.protocol import EvaluationRequest, Round
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Receipt
from marlflow.sampling.saved_state import ResumeReport

_FIRST_S = 30.0


class Evaluator(Service):
    """Evaluates the `published` policies at an interval of env steps, when a callback asks, and at the end of the run.

    `report` is called before an evaluation replaces an unreported one. `spent_s`: seconds spent so far. `expected_s`:
    estimated duration of the final one. `elapsed_s` returns the seconds of the run so far, of which evaluations get a
    share, besides compiling (decision 0085).
    """

    def __init__(
        self,
        checked: CheckedExperiment,
        parts: RunComponents,
        metrics: RunMetrics,
        budget: FaultBudget,
        callbacks: Callbacks,
        report: Callable[[], None],
        notify: Callable[[str], None],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._share = TimeShare(checked.experiment.evaluation.time_share, checked.experiment.stop.time_s)
        self._elapsed_s = elapsed_s
        self._settings, self._pairings = checked.experiment.evaluation, checked.pairings
        self._modes = checked.spec.modes(self._settings.mode)
        self._workers, self._published = parts.workers, parts.published
        self._metrics = metrics
        self._budget = budget
        self._callbacks, self._report, self._notify = callbacks, report, notify
        self._reported_same_games = self._reported_left_out = False
        self._self_play = SelfPlay() if self._settings.opponents is None else None
        self._due_env_steps = 0
        self._compile_s = self.spent_s = self.expected_s = 0.0

    def state(self) -> Tree:
        # The times are left out while they are 0, so that checkpoints of versions without them can be resumed.
        times = {"compile_s": self._compile_s, "expected_s": self.expected_s}
        known = {name: time_s for name, time_s in times.items() if time_s}
        return {"due_env_steps": self._due_env_steps, "spent_s": self.spent_s, **known}

    def load_state(self, state: Tree) -> None:
        self._due_env_steps, self.spent_s = state["due_env_steps"], state["spent_s"]
        self._compile_s = state.get("compile_s", 0.0)
        self.expected_s = min(state.get("expected_s", 0.0), self._share.most_at_the_end_s)

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        every = self._settings.every_env_steps
        self._due_env_steps = due_within(self._due_env_steps, self._metrics.env_steps, every)

    async def after_round(self, round: Round) -> None:
        if self._self_play is not None:
            for text in self._self_play.check(round.receipts):
                self._notify(text)
        asked, episodes = self._callbacks.take_evaluation_request(), self._settings.episodes
        is_due = episodes > 0 and self._metrics.env_steps >= self._due_env_steps
        if asked or is_due:
            episodes = episodes or self._settings.episodes_at_the_end
            evaluated = await self._evaluate(episodes, self._share.left_s(self._elapsed_s(), self._played_s))
            # One that was cut, since the run ends, is played when the run is resumed.
            while is_due and not evaluated.was_cut and self._due_env_steps <= self._metrics.env_steps:
                self._due_env_steps += self._settings.every_env_steps

    def at_end(self) -> None:
        progress = [self._settings.episodes_at_the_end]
        if progress == [0]:
            return

        def evaluate() -> Evaluated | Awaitable[Evaluated]:
            if not progress:
                raise StopIteration
            return begun(self._evaluate(progress.pop(), self._share.at_the_end_s(self._elapsed_s(), self._played_s)))

        # Run by an executor as a plan of one stage, so that an error is raised as in training.
        Executor(Plan("evaluation", source(evaluate, name="Evaluate")), lambda _plan, _results: None).run_sync()

    @property
    def _played_s(self) -> float:
        return self.spent_s - self._compile_s

    async def _evaluate(self, episodes: int, within_s: float | None) -> Evaluated:
        began_s = time.perf_counter()
        if any(policy.evaluation_is_new for policy in self._metrics.policies.values()):
            self._report()
        weights = self._published()
        versions = {name: published.version for name, published in weights.items()}
        pairings = self._pairings.dealt(episodes)
        context = EvaluationContext(self._modes, self._metrics.env_steps, versions, pairings, episodes)
        # If there are opponents, each policy plays `episodes` episodes against them. Pairings alternate, so that each
        # gets its part if there is no time for all episodes.
        order = in_turn(pairings) or range(episodes)
        matchups = [pairings[number].matchup for number in order] if pairings else None
        request = EvaluationRequest(order, weights, matchups, self._modes, within_s=within_s)
        results = await self._workers.evaluate(request)
        in_order = sorted(results.episodes, key=lambda result: result.episode)
        self._evaluated(replace(results, episodes=tuple(in_order)), context, began_s)
        return results

    def _evaluated(self, results: Evaluated, context: EvaluationContext, began_s: float) -> None:
        duration_s = time.perf_counter() - began_s
        played_s = duration_s - results.compile_s
        self.spent_s += duration_s
        self._compile_s += results.compile_s
        asked = len(context.pairings) or context.episodes
        begun_episodes = max(1, asked - results.not_begun)
        expected_s = played_s * self._settings.episodes_at_the_end / begun_episodes * asked / context.episodes
        self.expected_s = min(expected_s, self._share.most_at_the_end_s)
        if results.not_begun and not self._reported_left_out:
            self._reported_left_out = True
            self._notify(
                f"an evaluation played {begun_episodes:,} of {asked:,} episodes in {played_s:.0f} s, "
                f"since evaluations get {self._settings.time_share:.0%} of the run's time; "
                "evaluation.time_share=null plays all"
            )
        if results.was_cut:
            # Short episodes end first, so the mean of the finished ones would be biased.
            self._notify(
                f"an evaluation was ended after {duration_s:.0f} s, since the run ends; its episodes are not counted"
            )
            results = replace(results, episodes=())
        self._metrics.evaluated(results, context)
        policies = self._metrics.policies.items() if results.episodes else ()
        played = {name: evaluation_metrics(one.evaluation) for name, one in policies if one.evaluation_is_new}
        ended_s = time.time()
        self._callbacks.evaluated(EvaluationEvent(context.env_steps, played, ended_s - duration_s, ended_s))
        if not self._reported_same_games and (text := same_games(results.episodes, self._settings)) is not None:
            self._reported_same_games = True
            self._notify(text)
        self._budget.account(results.faults)


class TimeShare:
    """The seconds that evaluations may take: a `share` of the run's time, which is `time_s` if that is set.

    Without `time_s`, evaluations during the run get 30 s and the share of the time so far, and the last one at least
    30 s. With it, they get a quarter of the share from the start, another quarter in proportion to the time so far, and
    the last one the rest: together no more than the share.
    """

    def __init__(self, share: float | None, time_s: float | None) -> None:
        self._share = share
        total_s = None if share is None or time_s is None else share * time_s
        self._first_s = _FIRST_S if total_s is None else total_s / 4
        self._rate = (share or 0.0) / (1 if total_s is None else 4)
        self._total_s = total_s

    def left_s(self, elapsed_s: float, spent_s: float) -> float | None:
        """Return the seconds for an evaluation during the run; None for no limit."""
        return None if self._share is None else max(0.0, self._first_s + self._rate * elapsed_s - spent_s)

    def at_the_end_s(self, elapsed_s: float, spent_s: float) -> float | None:
        """Return the seconds for the last evaluation; None for no limit."""
        if self._share is None:
            return None
        if self._total_s is None:
            return max(_FIRST_S, self._first_s + self._rate * elapsed_s - spent_s)
        return max(self._total_s / 2, self._total_s - spent_s)

    @property
    def most_at_the_end_s(self) -> float:
        """The most seconds that a run with `time_s` sets aside for the last evaluation."""
        return math.inf if self._total_s is None else self._total_s


def in_turn(pairings: Sequence[Pairing]) -> list[int]:
    """Return the numbers of the pairings in alternating order."""
    rounds: dict[tuple[object, ...], int] = {}
    order = []
    for number, pairing in enumerate(pairings):
        kind = (pairing.policy, pairing.opponent, *pairing.matchup.items())
        rounds[kind] = rounds.get(kind, -1) + 1
        order.append((rounds[kind], number))
    return [number for _, number in sorted(order)]


_WATCHED_EPISODES = 20
_TOLERANCE = 1e-6


def same_games(episodes: Sequence[EpisodeResult], settings: Evaluation) -> str | None:
    """Return a warning if evaluation episodes of the same players were all identical, else None."""
    games, matchups = {game(episode) for episode in episodes}, {(*episode.matchup.items(),) for episode in episodes}
    # Episodes with different seatings are different games, so single ones cannot be repetitions.
    if len(games) > len(matchups) or len(episodes) == len(matchups):
        return None
    same = "the same game" if len(games) == 1 else f"{len(games)} games, one for each seating"
    return (
        f"the {len(episodes)} evaluation episodes were {same}, repeated: observations, actions and rewards are "
        f"identical; {_remedies(settings, len(matchups))}"
    )


def _remedies(settings: Evaluation, seatings: int) -> str:
    remedies = []
    if settings.mode == "greedy":
        remedies.append("evaluation.mode=as_learned draws actions from what was learned, where that is a distribution")
    if "random" not in (settings.opponents or ()):
        remedies.append("evaluation.opponents=[random] evaluates each policy against random ones")
    return ", ".join([*remedies, f"evaluation.episodes={seatings} plays no game twice"])


@dataclass(slots=True)
class _Returns:
    mean: float
    first: Mapping[str, float]
    episodes: int = 0
    agents_differed: bool = False
    varied: bool = False


class SelfPlay:
    """Detects policies whose mean return in zero-sum self-play never changes."""

    def __init__(self) -> None:
        self._watched: dict[str, _Returns] = {}
        self._done: set[str] = set()

    def check(self, receipts: Sequence[Receipt]) -> Iterator[str]:
        """Check a round's training episodes; yield one warning per policy."""
        texts = (self._check_episode(episode) for receipt in receipts for episode in receipt.episodes)
        return (text for text in texts if text is not None)

    def _check_episode(self, episode: EpisodeResult) -> str | None:
        names = set(episode.matchup.values())
        if names <= self._done:
            return None
        # A policy that meets another one can win or lose on average.
        if len(names) > 1:
            self._done |= names
        name = next(iter(names), "")
        if name in self._done or not episode.returns:
            return None
        returns = [*episode.returns.values()]
        mean = sum(returns) / len(returns)
        watched = self._watched.setdefault(name, _Returns(mean, episode.returns))
        tolerance = _TOLERANCE * (1.0 + max(map(abs, returns)))
        if abs(mean - watched.mean) > tolerance:
            self._done.add(name)
            return None
        watched.episodes += 1
        watched.agents_differed |= max(returns) - min(returns) > tolerance
        watched.varied |= any(
            abs(of - watched.first.get(agent, of)) > tolerance for agent, of in episode.returns.items()
        )
        # Agents whose returns are always the same win nothing from each other.
        if watched.episodes < _WATCHED_EPISODES or not (watched.agents_differed and watched.varied):
            return None
        self._done.add(name)
        return (
            f"policy {name} plays all agents, and what one of them wins the others lose: its mean return was "
            f"{watched.mean:.2f} in each of {_WATCHED_EPISODES} episodes, and will be, however well it plays; "
            "evaluation.opponents=[random] evaluates it against random ones"
        )
