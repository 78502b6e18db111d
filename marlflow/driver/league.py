"""Runs a league within a run: saves its dealer, plays its matches, reports its metrics, and resets its learners."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from marlflow.base.errors import MatchmakerFailed
from marlflow.base.serialization import Tree
from marlflow.driver.episode_metrics import mean
from marlflow.driver.faults import FaultBudget, T, WrappedWorkers
from marlflow.driver.nash_conv import NashConvEvaluator
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.scheduler import Scheduler
from marlflow.driver.service import Service
from marlflow.driver.stored_members import StoredMembers
from marlflow.flow import Executor
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.matches import MOST_ATTEMPTS, play_matches
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import Matchmaker, count_matches, matches_of
from marlflow.observe.report import LeaguePlayerMetrics, LeagueReport, Report
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.protocol import Runtime
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.population import Reset
from marlflow.sampling.protocol import Assign, EvaluationRequest, FrozenPolicy, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated
from marlflow.sampling.saved_state import ResumeReport


class Dealing(Service):
    """Saves what `dealer` has dealt; reports the league that it deals for, if there is one."""

    def __init__(self, dealer: Dealer, metrics: RunMetrics, times: MatchTimes, nash_conv: NashConvEvaluator) -> None:
        self._dealer, self._metrics, self._times, self._nash_conv = dealer, metrics, times, nash_conv

    def state(self) -> Tree:
        return self._dealer.state()

    def state_shape(self) -> Tree:
        return self._dealer.state_shape()

    def load_state(self, state: Tree) -> None:
        self._dealer.load_state(state)

    def add_metrics(self, report: Report) -> None:
        if isinstance(self._dealer.matchmaker, LeagueMatchmaker):
            report["league"] = self._league(self._dealer.matchmaker)

    def _league(self, league: LeagueMatchmaker) -> LeagueReport:
        dealer, times, nash_conv = self._dealer, self._times, self._nash_conv
        sent = self._metrics.sent + league.matches.sent
        return {
            "members": len(league.members),
            "epoch": league.epoch,
            "games": league.games,
            "games_stale": dealer.results.stale,
            "games_lost": dealer.results.lost,
            "matches": league.matches.payoffs.games_counted,
            "members_sent": sent.members,
            "bytes_sent": sent.size_bytes,
            "cache_hits": sent.hits,
            "deal_s": dealer.deal_s,
            "score_s": dealer.score_s,
            "match_s": times.match_s,
            "solve_s": times.solve_s,
            "nash_conv_s": nash_conv.spent_s,
            "nash_conv": nash_conv.value,
            "nash_conv_env_steps": nash_conv.env_steps,
            "players": {policy: _player(league, policy) for policy in league.members.incarnations},
            "meta": {role: dict(mixture) for role, mixture in league.meta_strategies.items()},
        }


def _player(league: LeagueMatchmaker, policy: str) -> LeaguePlayerMetrics:
    members, payoffs, rating = league.members, league.payoffs, league.ratings[policy]
    opponents = payoffs.opponents(policy)
    chances = [payoffs.win_probability(policy, opponent) for opponent in opponents]
    return {
        "snapshots": sum(snapshot.policy == policy for snapshot in members.snapshots.values()),
        "resets": members.incarnations[policy],
        "incarnation": members.incarnations[policy],
        "games": sum(cell.games for profile, cell in payoffs.cells.items() if policy in profile),
        "win_rate_mean": mean(chances),
        "win_rate_min": min(chances, default=None),
        "opponents_distinct": len(opponents),
        "rating_mu": rating.mu,
        "rating_sigma": rating.sigma,
    }


@dataclass(slots=True)
class MatchTimes(Service):
    """Seconds that rounds waited for games of matches, and for choosing these games and computing meta-strategies."""

    match_s: float = 0.0
    solve_s: float = 0.0

    @property
    def total_s(self) -> float:
        """The sum of both times."""
        return self.match_s + self.solve_s

    def state(self) -> Tree:
        return {"match_s": self.match_s, "solve_s": self.solve_s}

    def load_state(self, state: Tree) -> None:
        self.match_s, self.solve_s = state["match_s"], state["solve_s"]


def with_matches(
    workers: Workers, referees: Workers | None, dealer: Dealer, waits: bool, budget: FaultBudget, times: MatchTimes
) -> Workers:
    """Return `workers` that also have the matches of the dealer's matchmaker played: by `referees`, if there are any.

    With `waits`, rounds wait for the games of referees too, because the results decide how the next round is dealt.
    """
    matchmaker = dealer.matchmaker
    if referees is None:
        return MatchingWorkers(workers, workers, matchmaker, budget, times)
    referees = _Referees(referees, dealer)
    kind = MatchingWorkers if waits else RefereedWorkers
    return kind(workers, referees, matchmaker, budget, times)


class MatchingWorkers(WrappedWorkers):
    """Workers that wait before each round until `players` have played the matches of `matchmaker`.

    Matches use the weights of the round's request. A round is therefore dealt by the meta-strategies that follow from
    these matches. Asynchronous workers that are collecting continue meanwhile.
    """

    def __init__(
        self,
        workers: Workers,
        players: Workers,
        matchmaker: Matchmaker,
        budget: FaultBudget,
        times: MatchTimes,
    ) -> None:
        super().__init__(workers)
        self._players, self._matchmaker, self._budget, self._times = players, matchmaker, budget, times

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        await self._before_round(request)
        return await super().collect(request, assign)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is not None:
            await self._before_round(request)
        return await super().collect_next(request, assign)

    async def _before_round(self, request: Request) -> None:
        began_s, before_s = time.perf_counter(), self._times.match_s
        faults = await play_matches(self._matchmaker, _TimedWorkers(self._players, self._times), request.weights)
        played_s = self._times.match_s - before_s
        self._times.solve_s += time.perf_counter() - began_s - played_s
        for fault in faults:
            self._budget.faulted(fault)


class RefereedWorkers(MatchingWorkers):
    """Workers with referees (`players`), which play one set of matches of `matchmaker` at a time while workers collect.

    A set is chosen before a round, and played with the weights of this round's request. Its results are counted before
    the first round that begins after all of its games have been played. A set that is being played counts as
    `under_way`: if nothing else is, `collect_next(None)` waits for it, and returns an empty round.
    """

    # The set that is being played, and its results by attempt.
    _set: asyncio.Future[list[Evaluated]] | None = None

    @property
    def under_way(self) -> int:
        return super().under_way + (self._set is not None)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is None and not super().under_way:
            await self._count()
            return Round(-1, (), ())
        return await super().collect_next(request, assign)

    async def _before_round(self, request: Request) -> None:
        if self._set is not None and self._set.done():
            await self._count()
        if self._set is None:
            began_s = time.perf_counter()
            games = matches_of(self._matchmaker)
            self._times.solve_s += time.perf_counter() - began_s
            if games is not None:
                self._set = asyncio.ensure_future(self._play(replace(games, weights=request.weights)))

    async def _count(self) -> None:
        played, self._set = self._set, None
        if played is None:
            return
        began_s = time.perf_counter()
        results = await played
        self._times.match_s += time.perf_counter() - began_s
        for evaluated in results:
            count_matches(self._matchmaker, evaluated)
            for fault in evaluated.faults:
                self._budget.faulted(fault)

    async def _play(self, games: EvaluationRequest) -> list[Evaluated]:
        results: list[Evaluated] = []
        while len(results) < MOST_ATTEMPTS and games.episodes:
            evaluated = await self._players.evaluate(games)
            results.append(evaluated)
            if evaluated.was_cut:
                break
            games = _unplayed(games, evaluated)
        return results


def _unplayed(games: EvaluationRequest, evaluated: Evaluated) -> EvaluationRequest:
    played = {result.episode for result in evaluated.episodes}
    left = [index for index, number in enumerate(games.episodes) if number not in played]
    matchups = games.matchups or ()
    return replace(
        games, episodes=[games.episodes[index] for index in left], matchups=[matchups[index] for index in left]
    )


class _Referees(WrappedWorkers):
    """Referees whose requests have the frozen entries of their matchups."""

    def __init__(self, workers: Workers, dealer: Dealer) -> None:
        super().__init__(workers)
        self._dealer = dealer

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        frozen = self._dealer.frozen_in(request.matchups or (), workers=())
        return await super().evaluate(replace(request, frozen=frozen))


class _TimedWorkers(WrappedWorkers):
    def __init__(self, workers: Workers, times: MatchTimes) -> None:
        super().__init__(workers)
        self._times = times

    async def _call(self, call: Awaitable[T]) -> T:
        began_s = time.perf_counter()
        try:
            return await call
        finally:
            self._times.match_s += time.perf_counter() - began_s


class LearnerResets(Service):
    """Resets the learners of policies while nothing is in flight; `counts` has the resets of each learner.

    A learner that is reset continues as a new one: parameters, target, optimizers, random numbers, an empty replay, an
    empty plan, and schedules from their beginning. Versions continue.
    """

    def __init__(
        self,
        spec: RunSpec,
        runtime: Runtime,
        executor: Executor,
        members: StoredMembers,
        scheduler: Scheduler,
        notify: Callable[[str], None],
    ) -> None:
        self._spec, self._runtime, self._executor = spec, runtime, executor
        self._members, self._scheduler, self._notify = members, scheduler, notify
        self.counts = dict.fromkeys(spec.learners, 0)

    def reset_learner(self, reset: Reset) -> None:
        """Reset the learner of a policy.

        Raises MatchmakerFailed if the snapshot whose parameters it is to take has another network, ActorLost if the
        learner is lost meanwhile.
        """
        learner = self._spec.learner_of(reset.policy)
        assert learner is not None, "checked before the run: only policies that learn are reset"
        acting = [self._weights_for(reset, self._members[reset.to])] if reset.to not in ("initial", "fresh") else []
        self.counts[learner.name] += 1
        fresh = learner.with_fresh_seed(self.counts[learner.name])
        dropped = self._executor.restart(learner.name)
        self._runtime.reset_learner(learner if reset.to == "initial" else fresh, acting)
        self._scheduler.restart(learner.name)
        waiting = f"; {dropped:,} agent steps that waited are dropped" if dropped else ""
        self._notify(f"policy {reset.policy} begins again, from {_named(reset.to)}{waiting}")

    def _weights_for(self, reset: Reset, entry: FrozenPolicy) -> object:
        own, other = self._spec.policies[reset.policy], self._spec.policies[entry.policy]
        if not own.has_network_of(other):
            where = f"the reset of policy {reset.policy!r}"
            problem = f"{reset.to!r} is a version of policy {entry.policy!r}, which has another network"
            raise MatchmakerFailed(where, f"{problem}; both need the same algorithm, model and spaces")
        return entry.weights.flat

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        if notes_of(checkpoint).replay == "none":
            for learner in self._spec.learners.values():
                if learner.replays:
                    self._notify(f"the replay of {learner.name} begins empty, since checkpoint.replay was none")
                    self._executor.reapply_starts(learner.name)

    def state(self) -> Tree:
        return dict(self.counts)

    def load_state(self, state: Tree) -> None:
        self.counts.update(state)


def _named(to: str) -> str:
    return {"initial": "its initial parameters", "fresh": "fresh parameters"}.get(to, f"the parameters of {to}")
