"""Who plays whom, dealt per episode on the driver: matchups go out with each collect, as data, and come back unused.

A `Matchmaker` is a function of the user's. It is asked once for each training episode, in order, and what it is given
of randomness belongs to that episode: so what is dealt depends neither on the number of workers nor on their speed.
"""

from __future__ import annotations

import traceback
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from marlflow.base.errors import CheckpointUnusable, ConfigInvalid, MatchmakerFailed
from marlflow.base.items import Weights
from marlflow.base.kept import Tree
from marlflow.base.near import meant
from marlflow.base.random import key
from marlflow.policy.actor import EvaluationMode
from marlflow.rollout.episodes import EVALUATION
from marlflow.rollout.fragment import Evaluated, Receipt
from marlflow.rollout.population import Population, PopulationChange, PopulationMatchmaker
from marlflow.rollout.protocol import FrozenPolicy, Matchup, Request, Round, Workers

# Beyond so many different matchups, equal ones are no longer one object.
_MOST_SHARED = 4096
# Keeps the randomness of matchups apart from that of environments and agents.
_STREAM = int.from_bytes(b"matchup", "big")
# The copy of the episodes that are dealt before a run, to see who would play.
TRIAL = -2


class EpisodeId(NamedTuple):
    """Which episode of which copy, counted from 0; evaluation is copy -1, and a trial before the run copy -2."""

    copy: int
    episode: int


class Matchmaker(Protocol):
    """Deals one episode.

    {"player_0": "main", "player_1": "rival"} = matchmaker(EpisodeId(copy=3, episode=7), ["player_0", "player_1"], rng)

    One that remembers something from episode to episode has `state` and `load_state` too, as in KeptMatchmaker; one
    that freezes versions of policies, to seat them as well, `change_population`, as in PopulationMatchmaker.
    """

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        """A policy, or a frozen version of one, for each of `agents`, which are all that the environment declares."""
        ...


@runtime_checkable
class KeptMatchmaker(Matchmaker, Protocol):
    """A matchmaker with a state of its own, which is kept in checkpoints."""

    def state(self) -> Tree:
        """All that it remembers, as base.kept writes it."""
        ...

    def load_state(self, tree: Tree) -> None:
        """Goes on from what `state` gave."""
        ...


class RandomSeats:
    """Seats `policies` at random in each episode, all as often as each other, or once more where that cannot be.

    With as many agents as policies each policy has one seat. Every policy must fit every agent. Raises ConfigInvalid
    if there are no policies, or one stands there twice.

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
        """As many seats for each policy as go round, the rest drawn, all in a new order."""
        del episode
        each, left = divmod(len(agents), len(self._policies))
        drawn = generator.permutation(len(self._policies))[:left]
        seats = [*self._policies * each, *(self._policies[number] for number in drawn)]
        return {agent: seats[place] for agent, place in zip(agents, generator.permutation(len(agents)), strict=True)}


@dataclass(frozen=True, slots=True)
class Seats:
    """All `agents` of an environment, and the agents that each policy `fits`."""

    agents: Sequence[str]
    fits: Mapping[str, Collection[str]]

    def problems(self, matchup: Any) -> Iterator[str]:
        """Why it cannot be played."""
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


def deal_one(matchmaker: Matchmaker, seats: Seats, episode: EpisodeId, seed: int) -> dict[str, str]:
    """The matchup of one episode of a run with `seed`; raises MatchmakerFailed if there is none that can be played."""
    where = f"matchmaker {matchmaker_name(matchmaker)}, {_words(episode)}"
    generator = np.random.default_rng(key(seed, *episode, _STREAM))
    try:
        dealt = matchmaker(episode, tuple(seats.agents), generator)
    except Exception as error:
        raise MatchmakerFailed(where, f"it raised {type(error).__name__}: {error}", _own_traceback(error)) from error
    if problems := list(seats.problems(dealt)):
        raise MatchmakerFailed(where, "; ".join(problems))
    return {agent: dealt[agent] for agent in seats.agents}


def change_of(
    matchmaker: PopulationMatchmaker,
    population: Population,
    published: Mapping[str, int],
    agent_steps: Mapping[str, int],
) -> PopulationChange:
    """The change of `population` that a matchmaker wants; raises MatchmakerFailed if there is none that can be made."""
    where = f"matchmaker {matchmaker_name(matchmaker)}, change_population"
    try:
        change = matchmaker.change_population(dict(published), dict(agent_steps))
    except Exception as error:
        raise MatchmakerFailed(where, f"it raised {type(error).__name__}: {error}", _own_traceback(error)) from error
    if problems := list(population.problems(change, published)):
        raise MatchmakerFailed(where, "; ".join(problems))
    return change


def matchmaker_name(matchmaker: object) -> str:
    """What a matchmaker is called in messages: its function's name, or its class's."""
    named = getattr(matchmaker, "func", matchmaker)  # of a functools.partial
    return str(getattr(named, "__qualname__", type(named).__name__))


def _words(episode: EpisodeId) -> str:
    named = {EVALUATION: "evaluation", TRIAL: "trial"}
    return f"{named.get(episode.copy, f'copy {episode.copy}')}, episode {episode.episode}"


def _own_traceback(error: Exception) -> str:
    """As text, from the first frame that is the matchmaker's."""
    frame: TracebackType | None = error.__traceback__
    while frame is not None and frame.tb_frame.f_code in (deal_one.__code__, change_of.__code__):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


class Dealer:
    """Deals the matchups of a run's `copies`, of policies and of frozen versions of them.

    dealer.renew(weights, schedules, agent_steps); asked = dealer.asked(request, ticks=25)
    receipts = ...; dealer.returned(receipts)
    """

    def __init__(self, matchmaker: Matchmaker, seats: Seats, copies: int, seed: int) -> None:
        self._matchmaker, self._agents, self._seed = matchmaker, tuple(seats.agents), seed
        self._population = Population(seats.fits)
        self._seats = seats
        # Of each copy: those of its next episodes that were dealt, and the number of the first of them.
        self._dealt: list[deque[Matchup]] = [deque() for _ in range(copies)]
        self._first = [0] * copies
        self._running: list[Matchup] = [{}] * copies  # of the last episode that each copy has begun
        self._shortest = 1  # env steps
        self._any_ended = False
        self._shared: dict[tuple[str, ...], Matchup] = {}

    @property
    def entries(self) -> dict[str, FrozenPolicy]:
        """All frozen entries that are dealt, or that running episodes may seat."""
        return self._population.entries

    def renew(
        self,
        weights: Mapping[str, Weights],
        schedules: Mapping[str, Mapping[str, float]],
        agent_steps: Mapping[str, int],
    ) -> None:
        """Asks the matchmaker which frozen entries there are to be, given what is published before a round.

        When they change, episodes that have not begun are dealt anew. Raises MatchmakerFailed.
        """
        if not isinstance(self._matchmaker, PopulationMatchmaker):
            return
        versions = {name: published.version for name, published in weights.items()}
        change = change_of(self._matchmaker, self._population, versions, agent_steps)
        if change.freeze or change.forget:
            self._population.apply(change, weights, schedules)
            self._seats = Seats(self._agents, self._population.fits)
            self._dealt = [deque() for _ in self._dealt]

    def asked(self, request: Request, ticks: int) -> Request:
        """`request` with the matchups of a round of `ticks` env steps, and the changes of the table of weights."""
        matchups = self.deal(ticks)
        frozen = self._population.seated(one for dealt in matchups.values() for one in dealt)
        return replace(request, matchups=matchups, frozen=frozen, forget=self._population.leave(self._running))

    def deal(self, ticks: int) -> dict[int, list[Matchup]]:
        """For each copy the matchups of its next episodes: as many as it may begin in `ticks` env steps.

        That is judged by the shortest episode so far. A copy that begins one more than that has to wait.
        """
        count = 1 + (ticks - 1) // self._shortest
        for copy, dealt in enumerate(self._dealt):
            while len(dealt) < count:
                dealt.append(self._ask(EpisodeId(copy, self._first[copy] + len(dealt))))
        return {copy: [*dealt][:count] for copy, dealt in enumerate(self._dealt)}

    def returned(self, receipts: Sequence[Receipt]) -> None:
        """A collect is done: what has begun is forgotten, what was not used is dealt again."""
        for receipt in receipts:
            for episode in receipt.episodes:
                length = max(1, episode.env_steps)
                self._shortest = min(self._shortest, length) if self._any_ended else length
                self._any_ended = True
            for copy, following in receipt.next_episodes.items():
                while self._first[copy] < following:
                    self._running[copy] = self._dealt[copy].popleft()
                    self._first[copy] += 1

    def deal_evaluation(self, episodes: Sequence[int]) -> list[Matchup]:
        """The matchups of evaluation episodes, in the order of `episodes`."""
        return [self._ask(EpisodeId(EVALUATION, episode)) for episode in episodes]

    def seated(self, matchups: Sequence[Matchup]) -> dict[str, FrozenPolicy]:
        """The frozen entries that `matchups` seat."""
        return self._population.seated(matchups)

    def state(self) -> Tree:
        """What was dealt and not used, what is known of lengths, and the matchmaker's own state if it has any."""
        return {
            "first": list(self._first),
            "dealt": [[list(matchup.values()) for matchup in dealt] for dealt in self._dealt],
            "running": [list(matchup.values()) for matchup in self._running],
            "shortest": self._shortest,
            "any_ended": self._any_ended,
            "population": self._population.state(),
            "matchmaker": self._matchmaker.state() if isinstance(self._matchmaker, KeptMatchmaker) else None,
        }

    def load_state(self, tree: Tree, entries: Mapping[str, FrozenPolicy]) -> None:
        """Goes on from what `state` gave, with its frozen `entries`; copies that are new begin with episode 0.

        Raises CheckpointUnusable if something was dealt that cannot be played.
        """
        self._population.load_state(tree["population"], entries)
        self._seats = Seats(self._agents, self._population.fits)
        kept = [[self._seated(names) for names in dealt] for dealt in tree["dealt"]]
        if problems := [text for dealt in kept for matchup in dealt for text in self._seats.problems(matchup)]:
            raise CheckpointUnusable([f"of the matchups that were dealt: {text}" for text in dict.fromkeys(problems)])
        found = zip(tree["first"], kept, tree["running"], strict=True)
        for copy, (first, dealt, running) in enumerate(found):
            if copy < len(self._first):
                self._first[copy], self._dealt[copy] = first, deque(map(self._one, dealt))
                self._running[copy] = self._seated(running)
        self._shortest, self._any_ended = tree["shortest"], tree["any_ended"]
        if tree["matchmaker"] is not None and isinstance(self._matchmaker, KeptMatchmaker):
            self._matchmaker.load_state(tree["matchmaker"])

    def _seated(self, names: Sequence[str]) -> dict[str, str]:
        return dict(zip(self._agents, names, strict=False))

    def _ask(self, episode: EpisodeId) -> Matchup:
        return self._one(deal_one(self._matchmaker, self._seats, episode, self._seed))

    def _one(self, dealt: dict[str, str]) -> Matchup:
        """Equal matchups are one object, which then travels once."""
        if len(self._shared) >= _MOST_SHARED:
            self._shared.clear()
        return self._shared.setdefault(tuple(dealt.values()), dealt)


class DealtWorkers:
    """Workers whose every collect, of `ticks` env steps of each copy, goes with the matchups that a dealer deals."""

    def __init__(self, workers: Workers, dealer: Dealer, ticks: int) -> None:
        self._workers, self._dealer, self._ticks = workers, dealer, ticks

    async def collect(self, request: Request) -> Round:
        """One round. The dealer knows what came of it before anybody asks for the next."""
        made = await self._workers.collect(self._dealer.asked(request, self._ticks))
        self._dealer.returned(made.receipts)
        return made

    async def collect_next(self, request: Request | None) -> Round:
        """Matchups are dealt to all copies at once, in rounds; a run that asks for this does not start."""
        raise TypeError("matchups are dealt in rounds of all workers")

    under_way = 0

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes, with matchups of their own and the frozen entries that those seat."""
        if matchups is None:
            matchups = self._dealer.deal_evaluation(episodes)
        return await self._workers.evaluate(episodes, weights, matchups, mode, self._dealer.seated(matchups))
