"""The dealer sends the matchups of a run's environments to workers, and the results back to the matchmaker.

Each result is passed on exactly once. Within a round, the order of results does not depend on the workers' speed. With
asynchronous workers, a round has the results of one worker, so results come in the order in which workers deliver them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree
from marlflow.batches.items import Weights
from marlflow.matchmaking.matchmakers import (
    AllowedSeats,
    EpisodeId,
    MatchmakerFunction,
    called,
    change_of,
    deal_one,
    loaded,
    matchmaker_of,
    resets_of,
)
from marlflow.sampling.episodes import EVALUATION, RESTARTED_EPISODE
from marlflow.sampling.population import (
    WORKER_MEMBERS,
    FrozenStore,
    Population,
    Reset,
    StoredEntries,
)
from marlflow.sampling.protocol import Assign, EvaluationRequest, Matchup, Request, Round, Workers
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Receipt

# Number of distinct matchups that are shared between episodes.
_MOST_SHARED = 4096


class Dealer:
    """Deals matchups for a run's environments, in rounds of all workers or to one worker at a time.

        dealer.renew(weights, schedules, agent_steps)
        request = dealer.with_matchups(request, ticks=25, env_indices=[0, 2])
        receipts = ...; dealer.record_receipts(receipts)

    `workers` has the environments of each worker; None: one worker steps all. `distinct_members` is the most different
    frozen entries that a worker is dealt in a round.
    """

    def __init__(
        self,
        matchmaker: MatchmakerFunction,
        seats: AllowedSeats,
        num_envs: int,
        seed: int,
        workers: Sequence[Sequence[int]] | None = None,
        store: FrozenStore | None = None,
        worker_members: int = WORKER_MEMBERS,
        distinct_members: int | None = None,
    ) -> None:
        self._agents = tuple(seats.agents)
        self._seed = seed
        self._worker_envs = [tuple(range(num_envs))] if workers is None else [tuple(of_worker) for of_worker in workers]
        self._worker_of = {env: worker for worker, envs in enumerate(self._worker_envs) for env in envs}
        self._population = Population(seats.fits, len(self._worker_envs), worker_members, store)
        self.entries = self._population.store
        """All frozen entries that are dealt or that running episodes may use."""
        self.matchmaker = matchmaker_of(matchmaker)
        # Grows and shrinks with the population.
        self._seats = AllowedSeats(self._agents, self._population.fits)
        # By environment: the matchups of its next episodes, and the number of the first of these episodes.
        self._dealt: list[deque[Matchup]] = [deque() for _ in range(num_envs)]
        self._first = [0] * num_envs
        # The matchup of the episode that each environment began last.
        self._running: list[Matchup] = [{}] * num_envs
        # Environments whose worker has received matchups and has not answered yet, each with the policies that were
        # reset since then; and the environments among them whose unused matchups must be dealt again.
        self._in_flight: dict[int, set[str]] = {}
        self._outdated: set[int] = set()
        # Env steps of the shortest episode so far.
        self._shortest = 1
        self._any_ended = False
        self._shared: dict[tuple[str, ...], Matchup] = {}
        self._distinct_members = distinct_members
        self.results = ResultLedger(num_envs)
        # Seconds spent on dealing, and on counting results.
        self.deal_s = self.score_s = 0.0

    def renew(
        self,
        weights: Mapping[str, Weights],
        schedules: Mapping[str, Mapping[str, float]],
        agent_steps: Mapping[str, int],
    ) -> Sequence[Reset]:
        """Let the matchmaker freeze and forget entries; return the policies that it resets.

        After a change, episodes that have not begun are dealt again. For a worker that is collecting, this happens
        after it has returned. Raises MatchmakerFailed.
        """
        began_s = perf_counter()
        versions = {name: published.version for name, published in weights.items()}
        change = change_of(self.matchmaker, self._population, versions, agent_steps)
        self._population.apply(change, weights, schedules)
        resets = resets_of(self.matchmaker, self._population)
        if resets:
            self._expire({one.policy for one in resets})
        if change.freeze or change.forget or resets:
            for env_index, dealt in enumerate(self._dealt):
                if env_index in self._in_flight:
                    self._outdated.add(env_index)
                else:
                    dealt.clear()
        self.deal_s += perf_counter() - began_s
        return resets

    def _expire(self, reset: set[str]) -> None:
        # A running episode is played by the policy before its reset, so its result must not count after the reset.
        for env_index, running in enumerate(self._running):
            if env_index in self._in_flight:
                self._in_flight[env_index] |= reset
            elif reset & set(running.values()):
                self.results.expire(env_index, self._first[env_index] - 1)

    def with_matchups(self, request: Request, ticks: int, env_indices: Sequence[int]) -> Request:
        """Add matchups for `ticks` env steps and changes of the table of weights, for one worker's environments."""
        began_s = perf_counter()
        for env_index in self._in_flight.keys() & set(env_indices):
            # The worker or its request was lost.
            self._land(env_index)
        matchups = self.deal(ticks, env_indices)
        self._in_flight.update((env_index, set()) for env_index in env_indices)
        worker = self._worker_of[env_indices[0]]
        frozen = self._population.send((matchup for dealt in matchups.values() for matchup in dealt), [worker])
        running = [self._running[env_index] for env_index in self._worker_envs[worker]]
        forget = self._population.take_leaving(frozen, running, worker)
        self.deal_s += perf_counter() - began_s
        return replace(request, matchups=matchups, frozen=frozen, forget=forget)

    def deal(self, ticks: int, env_indices: Iterable[int] | None = None) -> dict[int, list[Matchup]]:
        """Return environments' next matchups, for `ticks` env steps by the shortest episode so far; None: of all."""
        # An environment with more and shorter episodes runs out of matchups, and waits for the next round.
        count = 1 + (ticks - 1) // self._shortest
        envs = range(len(self._dealt)) if env_indices is None else env_indices
        limits: dict[int, DistinctMembers] = {}
        for env_index in envs:
            dealt = self._dealt[env_index]
            while len(dealt) < count:
                episode = EpisodeId(env_index, self._first[env_index] + len(dealt))
                dealt.append(self._within_limit(self._deal_episode(episode), episode, limits))
        return {env_index: [*self._dealt[env_index]][:count] for env_index in envs}

    def _within_limit(self, matchup: Matchup, episode: EpisodeId, limits: dict[int, DistinctMembers]) -> Matchup:
        if self._distinct_members is None:
            return matchup
        worker = self._worker_of[episode.env]
        if worker not in limits:
            waiting = [dealt for env_index in self._worker_envs[worker] for dealt in self._dealt[env_index]]
            limits[worker] = DistinctMembers(self._distinct_members, self._population.entries, waiting)
        return self._shared_matchup(limits[worker].limited(matchup, draw=sum(episode)))

    def record_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Drop the matchups of episodes that began, deal unused ones again, and pass results to the matchmaker."""
        results = self.results.take(receipts, self._in_flight)
        if results:
            began_s = perf_counter()
            with called(self.matchmaker, "observe"):
                self.matchmaker.observe(results)
            self.score_s += perf_counter() - began_s
        for receipt in receipts:
            for episode in receipt.episodes:
                length = max(1, episode.env_steps)
                self._shortest = min(self._shortest, length) if self._any_ended else length
                self._any_ended = True
            for env_index, following in receipt.next_episodes.items():
                while self._first[env_index] < following:
                    self._running[env_index] = self._dealt[env_index].popleft()
                    self._first[env_index] += 1
                self._land(env_index)

    def _land(self, env_index: int) -> None:
        # With `distinct_members`, each round chooses its entries again: unused matchups would keep theirs for long.
        if env_index in self._outdated or self._distinct_members is not None:
            self._outdated.discard(env_index)
            self._dealt[env_index].clear()
        reset = self._in_flight.pop(env_index, set())
        if reset & set(self._running[env_index].values()):
            self.results.expire(env_index, self._first[env_index] - 1)

    def end_round(self) -> None:
        """Record that no worker is collecting: a worker that has not answered was lost."""
        for env_index in list(self._in_flight):
            self._land(env_index)

    def deal_evaluation(self, episodes: Sequence[int]) -> list[Matchup]:
        """Return the matchups of evaluation episodes."""
        return [self._deal_episode(EpisodeId(EVALUATION, episode)) for episode in episodes]

    def frozen_in(self, matchups: Sequence[Matchup], workers: Iterable[int] | None = None) -> StoredEntries:
        """Return the frozen entries in `matchups`, and record that `workers` hold them; None: all rollout workers."""
        return self._population.send(matchups, workers)

    def state(self) -> dict[str, Tree]:
        """Return unused matchups, episode lengths, and the matchmaker's state if any; nothing may be in flight."""
        return {
            "first": list(self._first),
            "dealt": [[list(matchup.values()) for matchup in dealt] for dealt in self._dealt],
            "running": [list(matchup.values()) for matchup in self._running],
            "shortest": self._shortest,
            "any_ended": self._any_ended,
            "population": self._population.state(),
            "results": self.results.state(),
            "deal_s": self.deal_s,
            "score_s": self.score_s,
            "matchmaker": self._matchmaker_state(),
        }

    def _matchmaker_state(self) -> Tree:
        with called(self.matchmaker, "state"):
            return self.matchmaker.state()

    def state_shape(self) -> dict[str, Tree]:
        """Return what a saved state has to look like."""
        return {**self.state(), "matchmaker": self.matchmaker.state_shape()}

    def load_state(self, tree: Tree) -> None:
        """Restore what `state` returned; new environments begin with episode 0. `entries` must have the frozen entries.

        Raises CheckpointUnusable if a matchup cannot be played.
        """
        self._population.load_state(tree["population"])
        matchups = [[self._to_matchup(names) for names in dealt] for dealt in tree["dealt"]]
        if problems := [text for dealt in matchups for matchup in dealt for text in self._seats.problems(matchup)]:
            raise CheckpointUnusable([f"of the matchups that were dealt: {text}" for text in dict.fromkeys(problems)])
        saved = zip(tree["first"], matchups, tree["running"], strict=True)
        for env_index, (first, dealt, running) in enumerate(saved):
            if env_index < len(self._first):
                self._first[env_index], self._dealt[env_index] = first, deque(map(self._shared_matchup, dealt))
                self._running[env_index] = self._to_matchup(running)
        self._shortest, self._any_ended = tree["shortest"], tree["any_ended"]
        self.results.load_state(tree["results"])
        self.deal_s, self.score_s = tree["deal_s"], tree["score_s"]
        if tree["matchmaker"] is not None:
            with loaded(self.matchmaker):
                self.matchmaker.load_state(tree["matchmaker"])

    def _to_matchup(self, names: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._agents, names, strict=False))

    def _deal_episode(self, episode: EpisodeId) -> Matchup:
        return self._shared_matchup(deal_one(self.matchmaker, self._seats, episode, self._seed))

    def _shared_matchup(self, dealt: Matchup) -> Matchup:
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        return self._shared.setdefault(tuple(dealt.values()), dealt)


class DealtWorkers:
    """Workers whose collects, of `ticks` env steps per environment, use dealt matchups.

    In rounds of all workers, episodes are dealt in the order of their environments. Workers that do not wait for each
    other are dealt episodes when they start, and results are counted in the order in which workers deliver them. The
    dealer takes the place of `assign`.
    """

    def __init__(self, workers: Workers, dealer: Dealer, ticks: int) -> None:
        self._workers = workers
        self._dealer = dealer
        self._ticks = ticks

    def _assign(self, request: Request, env_indices: Sequence[int]) -> Request:
        return self._dealer.with_matchups(request, self._ticks, env_indices)

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        # All episodes at once, so that matchups do not depend on the division among workers, or on lost workers.
        self._dealer.deal(self._ticks)
        result = await self._workers.collect(request, self._assign)
        # Recorded before the next request, which must not deal episodes that have begun.
        self._dealer.record_receipts(result.receipts)
        self._dealer.end_round()
        return result

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        result = await self._workers.collect_next(request, self._assign)
        self._dealer.record_receipts(result.receipts)
        if not self.under_way:
            self._dealer.end_round()
        return result

    @property
    def under_way(self) -> int:
        return self._workers.under_way

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        matchups = request.matchups
        if matchups is None:
            matchups = self._dealer.deal_evaluation(request.episodes)
        return await self._workers.evaluate(
            replace(request, matchups=matchups, frozen=self._dealer.frozen_in(matchups))
        )


class DistinctMembers:
    """Limits the matchups that one worker has to at most `limit` different frozen entries; `earlier` ones stay.

    The first matchups stay as they are dealt, until they have `limit` frozen entries, an entry that is dealt again
    counted again. Each of the others repeats one of them with the same live policies in the same seats. So what stays
    depends on how many entries are dealt, and not on which: over many rounds, each is dealt as often as without a
    limit. `policy_of` has the policy of each frozen entry.

    >>> of = {"main@1": "main", "main@2": "main", "main@3": "main"}
    >>> members = DistinctMembers(2, of, [{"a": "main", "b": "main@1"}, {"a": "main", "b": "main@2"}])
    >>> members.limited({"a": "main", "b": "main@3"}, draw=0)
    {'a': 'main', 'b': 'main@1'}
    >>> members.limited({"a": "main@3", "b": "main"}, draw=1)
    {'a': 'main@2', 'b': 'main'}
    """

    def __init__(self, limit: int, policy_of: Mapping[str, str], earlier: Iterable[Matchup]) -> None:
        self._limit, self._policy_of = limit, policy_of
        # An entry as often as it was dealt.
        self._seated: list[str] = []
        self._alike: dict[tuple[str | None, ...], list[Matchup]] = {}
        for matchup in earlier:
            self._include(matchup)

    def _frozen_in(self, matchup: Matchup) -> set[str]:
        return {name for name in matchup.values() if name in self._policy_of}

    def _include(self, matchup: Matchup) -> None:
        self._seated += sorted(self._frozen_in(matchup))
        self._alike.setdefault(self._live_in(matchup), []).append(matchup)

    def _live_in(self, matchup: Matchup) -> tuple[str | None, ...]:
        return tuple(None if name in self._policy_of else name for name in matchup.values())

    def limited(self, matchup: Matchup, draw: int) -> Matchup:
        """Return `matchup`, or one within the limit, which the number `draw` chooses."""
        if (frozen := self._frozen_in(matchup)) and len(self._seated) + len(frozen) > self._limit:
            if alike := self._alike.get(self._live_in(matchup)):
                return alike[draw % len(alike)]
            matchup = {agent: self._instead(name, draw) for agent, name in matchup.items()}
        self._include(matchup)
        return matchup

    def _instead(self, name: str, draw: int) -> str:
        if name not in self._policy_of:
            return name
        others = [other for other in self._seated if self._policy_of[other] == self._policy_of[name]]
        # If no version of the policy is seated, the policy itself.
        return others[draw % len(others)] if others else self._policy_of[name]


class ResultLedger:
    """Takes each training episode's result once, by its environment and number.

    `stale` counts results that came too late or twice, `lost` episodes that began and had no result.
    """

    def __init__(self, num_envs: int) -> None:
        # The number of each environment's newest counted episode.
        self._newest = [-1] * num_envs
        self.stale = self.lost = 0

    def take(
        self, receipts: Sequence[Receipt], reset: Mapping[int, Collection[str]] | None = None
    ) -> list[EpisodeResult]:
        """Return the new results of a round, by tick and environment; that of a restarted episode has its first number.

        `reset` has the policies that were reset while an environment's episodes were played: their results are stale.
        """
        ended = [_as_dealt(result) for receipt in receipts for result in receipt.episodes]
        taken = []
        for result in sorted(ended, key=lambda result: (result.tick, result.env, result.episode)):
            newest = self._newest[result.env]
            if result.episode <= newest:
                self.stale += 1
                continue
            # An environment plays its episodes one after the other, so skipped episodes will have no result.
            self.lost += result.episode - newest - 1
            self._newest[result.env] = result.episode
            if reset and set(reset.get(result.env, ())).intersection(result.matchup.values()):
                self.stale += 1
                continue
            taken.append(result)
        return taken

    def expire(self, env_index: int, episode: int) -> None:
        """Mark the result of an environment's running episode as stale, for when it arrives."""
        if episode > self._newest[env_index]:
            self.lost += episode - self._newest[env_index] - 1
            self._newest[env_index] = episode

    def state(self) -> Tree:
        """Return the counts, and each environment's newest counted episode."""
        return {"newest": list(self._newest), "stale": self.stale, "lost": self.lost}

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned; new environments begin with episode 0."""
        for env_index, newest in enumerate(tree["newest"][: len(self._newest)]):
            self._newest[env_index] = min(newest, newest % RESTARTED_EPISODE)
        self.stale, self.lost = tree["stale"], tree["lost"]


def _as_dealt(result: EpisodeResult) -> EpisodeResult:
    """Return the result of a restarted episode with the number that was dealt."""
    if result.episode < RESTARTED_EPISODE:
        return result
    return replace(result, episode=result.episode % RESTARTED_EPISODE)
