"""Matchmaking for self-play and leagues: the driver assigns policies to agents in each episode.

A `Matchmaker` is called once per training episode, in order, with that episode's random generator, so matchups do not
depend on the number of workers or their speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, MatchmakerFailed
from marlflow.base.items import Weights
from marlflow.base.near import meant
from marlflow.base.random import key
from marlflow.base.serialization import Tree
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.episodes import EVALUATION
from marlflow.sampling.matchmaker_failures import called
from marlflow.sampling.population import (
    Population,
    PopulationChange,
    PopulationMatchmaker,
    Reset,
    ResettingMatchmaker,
)
from marlflow.sampling.protocol import FrozenPolicy, Matchup, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated, Receipt
from marlflow.sampling.results import ResultLedger, ResultsMatchmaker

# Number of distinct matchups that are shared between episodes.
_MOST_SHARED = 4096
# Separates the random stream of matchups from the streams of environments and agents.
_STREAM = int.from_bytes(b"matchup", "big")
# The environment number of episodes dealt before a run, to learn which policies play.
TRIAL = -2


class EpisodeId(NamedTuple):
    """An episode by environment and number; `env` is -1 in evaluation, -2 in a trial before the run."""

    env: int
    episode: int


class Matchmaker(Protocol):
    """Assigns policies to the agents of one episode.

    {"player_0": "main", "player_1": "rival"} = matchmaker(EpisodeId(3, 7), ["player_0", "player_1"], rng)
    """

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        """Return a policy or frozen version for each of `agents`, all declared agents."""
        ...


@runtime_checkable
class StatefulMatchmaker(Matchmaker, Protocol):
    """A matchmaker whose state is saved in checkpoints."""

    def state(self) -> Tree:
        """Return the state as a tree (see `base.serialization`)."""
        ...

    def load_state(self, tree: Tree) -> None:
        """Restore what `state` returned."""
        ...


class RandomSeats:
    """Assigns `policies` to agents at random, equally often or once more per episode.

    Every policy must fit every agent. Raises ConfigInvalid for no or repeated policies.

    >>> RandomSeats(["main", "rival"])(EpisodeId(0, 0), ["player_0", "player_1"], np.random.default_rng(2))
    {'player_0': 'rival', 'player_1': 'main'}
    """

    def __init__(self, policies: Sequence[str]) -> None:
        if not policies:
            raise ConfigInvalid(["policies is empty; name those that are to be seated"])
        if twice := [name for name in dict.fromkeys(policies) if list(policies).count(name) > 1]:
            raise ConfigInvalid([f"policies has {', '.join(map(repr, twice))} more than once; name each one once"])
        self._policies = tuple(policies)

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        del episode
        each, left = divmod(len(agents), len(self._policies))
        drawn = generator.permutation(len(self._policies))[:left]
        seats = [*self._policies * each, *(self._policies[number] for number in drawn)]
        return {agent: seats[place] for agent, place in zip(agents, generator.permutation(len(agents)), strict=True)}


@dataclass(frozen=True, slots=True)
class AllowedSeats:
    """All `agents` of an environment, and the agents that each policy `fits`."""

    agents: Sequence[str]
    fits: Mapping[str, Collection[str]]

    def problems(self, matchup: Any) -> Iterator[str]:
        """Yield why a matchup cannot be played."""
        if not isinstance(matchup, Mapping):
            yield f"it dealt {matchup!r}, not a mapping {{agent: policy}}"
            return
        for agent in matchup:
            if agent not in self.agents:
                yield f"it seated agent {agent!r}, which does not exist{meant(str(agent), self.agents, 'there are')}"
        for agent in self.agents:
            if agent not in matchup:
                yield f"it seated nobody as agent {agent!r}"
                continue
            policy = matchup[agent]
            if not isinstance(policy, str) or policy not in self.fits:
                remedy = meant(str(policy), self.fits, "the policies are")
                yield f"it seated {policy!r} as agent {agent!r}, and there is no such policy{remedy}"
            elif agent not in self.fits[policy]:
                fitting = ", ".join(self.fits[policy])
                yield f"it seated policy {policy!r} as agent {agent!r}, but the policy's spaces are those of {fitting}"


def deal_one(matchmaker: Matchmaker, seats: AllowedSeats, episode: EpisodeId, seed: int) -> dict[str, str]:
    """Return an episode's matchup; raises MatchmakerFailed if it cannot be played."""
    generator = np.random.default_rng(key(seed, *episode, _STREAM))
    with called(matchmaker, _describe(episode)) as where:
        dealt = matchmaker(episode, tuple(seats.agents), generator)
    if problems := list(seats.problems(dealt)):
        raise MatchmakerFailed(where, "; ".join(problems))
    return {agent: dealt[agent] for agent in seats.agents}


def change_of(
    matchmaker: PopulationMatchmaker,
    population: Population,
    published: Mapping[str, int],
    agent_steps: Mapping[str, int],
) -> PopulationChange:
    """Return the matchmaker's change; raises MatchmakerFailed if it cannot be applied."""
    with called(matchmaker, "change_population") as where:
        change = matchmaker.change_population(dict(published), dict(agent_steps))
    if problems := list(population.problems(change, published)):
        raise MatchmakerFailed(where, "; ".join(problems))
    return change


def resets_of(matchmaker: ResettingMatchmaker, population: Population) -> Sequence[Reset]:
    """Return the matchmaker's resets; raises MatchmakerFailed if they cannot be made."""
    with called(matchmaker, "resets") as where:
        may_reset, resets = matchmaker.reset_policies(), matchmaker.resets()
    if problems := list(dict.fromkeys(population.reset_problems(resets, may_reset))):
        raise MatchmakerFailed(where, "; ".join(problems))
    return resets


def _describe(episode: EpisodeId) -> str:
    named = {EVALUATION: "evaluation", TRIAL: "trial"}
    return f"{named.get(episode.env, f'env {episode.env}')}, episode {episode.episode}"


class Dealer:
    """Deals matchups for a run's `num_envs` environments.

    dealer.renew(weights, schedules, agent_steps); request = dealer.with_matchups(request, ticks=25)
    receipts = ...; dealer.record_receipts(receipts)
    """

    def __init__(self, matchmaker: Matchmaker, seats: AllowedSeats, num_envs: int, seed: int) -> None:
        self._agents = tuple(seats.agents)
        self._seed = seed
        self._population = Population(seats.fits)
        self.matchmaker = matchmaker
        self._seats = seats
        # By environment: the matchups of its next episodes, and the number of the first of these.
        self._dealt: list[deque[Matchup]] = [deque() for _ in range(num_envs)]
        self._first = [0] * num_envs
        # The matchup of each environment's last begun episode.
        self._running: list[Matchup] = [{}] * num_envs
        # Env steps of the shortest episode so far.
        self._shortest = 1
        self._any_ended = False
        self._shared: dict[tuple[str, ...], Matchup] = {}
        self.results = ResultLedger(num_envs)
        # Seconds for dealing, and for counting results.
        self.deal_s = self.score_s = 0.0

    @property
    def entries(self) -> dict[str, FrozenPolicy]:
        """All frozen entries that are dealt or that running episodes may use."""
        return self._population.entries

    def renew(
        self,
        weights: Mapping[str, Weights],
        schedules: Mapping[str, Mapping[str, float]],
        agent_steps: Mapping[str, int],
    ) -> Sequence[Reset]:
        """Let the matchmaker freeze and forget entries; return the policies that it resets.

        After a change, unbegun episodes are dealt again. Raises MatchmakerFailed.
        """
        began_s = perf_counter()
        matchmaker, change = self.matchmaker, PopulationChange()
        if isinstance(matchmaker, PopulationMatchmaker):
            versions = {name: published.version for name, published in weights.items()}
            change = change_of(matchmaker, self._population, versions, agent_steps)
            self._population.apply(change, weights, schedules)
        resets = resets_of(matchmaker, self._population) if isinstance(matchmaker, ResettingMatchmaker) else ()
        reset = {one.policy for one in resets}
        for env_index, running in enumerate(self._running):
            # Its outcome is of the policy as it was before, and must not count for the policy as it begins again.
            if reset & set(running.values()):
                self.results.expire(env_index, self._first[env_index] - 1)
        if change.freeze or change.forget or resets:
            self._seats = AllowedSeats(self._agents, self._population.fits)
            self._dealt = [deque() for _ in self._dealt]
        self.deal_s += perf_counter() - began_s
        return resets

    def with_matchups(self, request: Request, ticks: int) -> Request:
        """Add matchups for `ticks` env steps and changes of the table of weights to `request`."""
        began_s = perf_counter()
        matchups = self.deal(ticks)
        frozen = self._population.send(matchup for dealt in matchups.values() for matchup in dealt)
        forget = self._population.take_leaving(frozen, self._running)
        self.deal_s += perf_counter() - began_s
        return replace(request, matchups=matchups, frozen=frozen, forget=forget)

    def deal(self, ticks: int) -> dict[int, list[Matchup]]:
        """Return each environment's next matchups, for `ticks` env steps by the shortest episode so far."""
        # An environment that has more, shorter episodes waits for the next round.
        count = 1 + (ticks - 1) // self._shortest
        for env_index, dealt in enumerate(self._dealt):
            while len(dealt) < count:
                dealt.append(self._deal_episode(EpisodeId(env_index, self._first[env_index] + len(dealt))))
        return {env_index: [*dealt][:count] for env_index, dealt in enumerate(self._dealt)}

    def record_receipts(self, receipts: Sequence[Receipt]) -> None:
        """Drop the matchups of begun episodes, and tell the matchmaker how ended ones ended; unused are dealt again."""
        self._observe(receipts)
        for receipt in receipts:
            for episode in receipt.episodes:
                length = max(1, episode.env_steps)
                self._shortest = min(self._shortest, length) if self._any_ended else length
                self._any_ended = True
            for env_index, following in receipt.next_episodes.items():
                while self._first[env_index] < following:
                    self._running[env_index] = self._dealt[env_index].popleft()
                    self._first[env_index] += 1

    def _observe(self, receipts: Sequence[Receipt]) -> None:
        results = self.results.take(receipts)
        if not results or not isinstance(self.matchmaker, ResultsMatchmaker):
            return
        began_s = perf_counter()
        with called(self.matchmaker, "observe"):
            self.matchmaker.observe(results)
        self.score_s += perf_counter() - began_s

    def deal_evaluation(self, episodes: Sequence[int]) -> list[Matchup]:
        """Return the matchups of evaluation episodes."""
        return [self._deal_episode(EpisodeId(EVALUATION, episode)) for episode in episodes]

    def frozen_in(self, matchups: Sequence[Matchup]) -> dict[str, FrozenPolicy]:
        """Return the frozen entries in `matchups`."""
        return self._population.send(matchups)

    def state(self) -> Tree:
        """Return unused matchups, episode lengths, and the matchmaker's state if any."""
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
            "matchmaker": self.matchmaker.state() if isinstance(self.matchmaker, StatefulMatchmaker) else None,
        }

    def load_state(self, tree: Tree, entries: Mapping[str, FrozenPolicy]) -> None:
        """Restore what `state` returned; new environments begin with episode 0.

        Raises CheckpointUnusable if a matchup cannot be played.
        """
        self._population.load_state(tree["population"], entries)
        self._seats = AllowedSeats(self._agents, self._population.fits)
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
        if tree["matchmaker"] is not None and isinstance(self.matchmaker, StatefulMatchmaker):
            self.matchmaker.load_state(tree["matchmaker"])

    def _to_matchup(self, names: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._agents, names, strict=False))

    def _deal_episode(self, episode: EpisodeId) -> Matchup:
        return self._shared_matchup(deal_one(self.matchmaker, self._seats, episode, self._seed))

    def _shared_matchup(self, dealt: dict[str, str]) -> Matchup:
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        return self._shared.setdefault(tuple(dealt.values()), dealt)


class DealtWorkers:
    """Workers whose collects, of `ticks` env steps per environment, use dealt matchups."""

    def __init__(self, workers: Workers, dealer: Dealer, ticks: int) -> None:
        self._workers = workers
        self._dealer = dealer
        self._ticks = ticks

    async def collect(self, request: Request) -> Round:
        result = await self._workers.collect(self._dealer.with_matchups(request, self._ticks))
        # Before the next request: it must not deal episodes that have begun.
        self._dealer.record_receipts(result.receipts)
        return result

    async def collect_next(self, request: Request | None) -> Round:
        raise TypeError("matchups are dealt in rounds of all workers")

    under_way = 0

    async def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationModes = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        if matchups is None:
            matchups = self._dealer.deal_evaluation(episodes)
        return await self._workers.evaluate(episodes, weights, matchups, mode, self._dealer.frozen_in(matchups))
