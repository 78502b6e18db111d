"""Matchmaking for self-play and leagues: the driver assigns policies to agents in each episode.

A `Matchmaker` is called once per training episode, in order, with that episode's random generator, so matchups do not
depend on the number of workers or their speed.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from marlflow.base.errors import ConfigInvalid, MatchmakerFailed
from marlflow.base.random import key
from marlflow.base.sentences import meant
from marlflow.base.serialization import Tree
from marlflow.sampling.episodes import EVALUATION
from marlflow.sampling.population import Population, PopulationChange, Reset
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import EpisodeResult, Evaluated


def matchmaker_name(matchmaker: object) -> str:
    """Return the name of a matchmaker's function or class."""
    named = matchmaker
    # functools.partial and _OfFunction have the function that they wrap in `func`, and a league its mode.
    while hasattr(named, "func"):
        named = named.func
    return str(getattr(named, "__qualname__", type(named).__name__))


class HasShape(Protocol):
    """A part of a run that says what its saved state has to look like."""

    def state_shape(self) -> Tree:
        """Return the shape; None: anything."""
        ...


_OWN = ("marlflow.matchmaking.", "marlflow.league.payoffs", "marlflow.league.dealing", "marlflow.league.mode_answers")


@contextmanager
def called(matchmaker: object, what: str, kind: str = "matchmaker") -> Iterator[str]:
    """Yield a description of a call of a matchmaker; an exception becomes MatchmakerFailed with this description."""
    where = f"{kind} {matchmaker_name(matchmaker)}, {what}"
    try:
        yield where
    except MatchmakerFailed:
        # Raised by a part of the matchmaker, such as a league's outcome, with a description of its own.
        raise
    except Exception as error:
        raise MatchmakerFailed(where, f"it raised {type(error).__name__}: {error}", _user_traceback(error)) from error


def loaded(part: HasShape) -> AbstractContextManager[object]:
    """Return the context of a call of `load_state`.

    A state without a shape is a user's own, and so are errors about it; others are the checkpoint's.
    """
    return called(part, "load_state") if part.state_shape() is None else nullcontext()


def _user_traceback(error: Exception) -> str:
    frame: TracebackType | None = error.__traceback__
    # The first frames belong to this module and its caller.
    while frame is not None and frame.tb_frame.f_globals.get("__name__", "").startswith(_OWN):
        frame = frame.tb_next
    return "".join(traceback.format_exception(type(error), error, frame, chain=False))


# Separates the random stream of matchups from the streams of environments and agents.
_STREAM = int.from_bytes(b"matchup", "big")
# The environment number of episodes dealt before a run, to learn which policies play.
TRIAL = -2


class EpisodeId(NamedTuple):
    """An episode by environment and number; `env` is -1 in evaluation, -2 in a trial before the run."""

    env: int
    episode: int


class Matchmaker:
    """Base class of matchmakers: override `__call__`, and others as needed; every other method does nothing.

    {"player_0": "main", "player_1": "rival"} = matchmaker(EpisodeId(3, 7), ["player_0", "player_1"], rng)

    A function that is called like this is a matchmaker, too.
    """

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        """Return a policy or a frozen entry for each of `agents`, which are all declared agents."""
        raise NotImplementedError

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Return the policies to freeze and the frozen entries to forget; called before each round.

        `published` has the version of each learning policy, `agent_steps` the agent steps that it has sampled.
        """
        return PopulationChange()

    def reset_policies(self) -> Collection[str]:
        """Return the policies that it may ever reset, which are checked before the run."""
        return ()

    def resets(self) -> Sequence[Reset]:
        """Return the policies to reset before the next round.

        Called before each round, after `change_population`, which can freeze the version before the reset.
        """
        return ()

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        """Count the training episodes that ended in one round, each once, in the order of their ends."""

    def matches_due(self) -> EvaluationRequest | None:
        """Return the games to play before the next round, without weights; None if there are none."""
        return None

    def observe_matches(self, evaluated: Evaluated) -> None:
        """Count the results of the games that `matches_due` returned."""

    def state(self) -> Tree:
        """Return the state to save in checkpoints, as a tree (see `base.serialization`)."""
        return None

    def state_shape(self) -> Tree:
        """Return what a state has to look like, see `differences_of_shape`; None: anything that `load_state` takes."""
        return None

    def load_state(self, tree: Tree) -> None:
        """Restore what `state` returned; called if it was not None."""


MatchmakerFunction: TypeAlias = Callable[[EpisodeId, Sequence[str], np.random.Generator], Mapping[str, str]]


@dataclass(frozen=True)
class _OfFunction(Matchmaker):
    func: MatchmakerFunction

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        return self.func(episode, agents, generator)


def matchmaker_of(given: MatchmakerFunction) -> Matchmaker:
    """Return a matchmaker, or a function as one."""
    return given if isinstance(given, Matchmaker) else _OfFunction(given)


@dataclass(frozen=True)
class RandomSeats(Matchmaker):
    """Assigns `policies` to agents at random, equally often or once more per episode.

    Every policy must fit every agent. Raises ConfigInvalid for no or repeated policies.

    >>> RandomSeats(["main", "rival"])(EpisodeId(0, 0), ["player_0", "player_1"], np.random.default_rng(2))
    {'player_0': 'rival', 'player_1': 'main'}
    """

    policies: Sequence[str]

    def __post_init__(self) -> None:
        names = tuple(self.policies)
        if not names:
            raise ConfigInvalid(["policies is empty; name the policies to assign"])
        if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
            raise ConfigInvalid([f"policies has {', '.join(map(repr, twice))} more than once; name each one once"])
        object.__setattr__(self, "policies", names)

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        del episode
        each, left = divmod(len(agents), len(self.policies))
        drawn = generator.permutation(len(self.policies))[:left]
        seats = [*tuple(self.policies) * each, *(self.policies[number] for number in drawn)]
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
                yield f"it seated no policy as agent {agent!r}"
                continue
            policy = matchup[agent]
            if not isinstance(policy, str) or policy not in self.fits:
                remedy = meant(str(policy), self.fits, "the policies are")
                yield f"it seated {policy!r} as agent {agent!r}, and there is no such policy{remedy}"
            elif agent not in self.fits[policy]:
                fitting = ", ".join(self.fits[policy])
                yield f"it seated policy {policy!r} as agent {agent!r}, but the policy has the spaces of {fitting}"


def deal_one(matchmaker: Matchmaker, seats: AllowedSeats, episode: EpisodeId, seed: int) -> dict[str, str]:
    """Return an episode's matchup; raises MatchmakerFailed if it cannot be played."""
    generator = np.random.default_rng(key(seed, *episode, _STREAM))
    with called(matchmaker, _describe(episode)) as where:
        dealt = matchmaker(episode, tuple(seats.agents), generator)
    if problems := list(seats.problems(dealt)):
        raise MatchmakerFailed(where, "; ".join(problems))
    return {agent: dealt[agent] for agent in seats.agents}


def change_of(
    matchmaker: Matchmaker,
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


def resets_of(matchmaker: Matchmaker, population: Population) -> Sequence[Reset]:
    """Return the matchmaker's resets; raises MatchmakerFailed if they cannot be made."""
    with called(matchmaker, "resets") as where:
        may_reset, resets = matchmaker.reset_policies(), matchmaker.resets()
    if problems := list(dict.fromkeys(population.reset_problems(resets, may_reset))):
        raise MatchmakerFailed(where, "; ".join(problems))
    return resets


def matches_of(matchmaker: Matchmaker) -> EvaluationRequest | None:
    """Return the matches that are due; raises MatchmakerFailed if it raises."""
    with called(matchmaker, "matches_due"):
        return matchmaker.matches_due()


def count_matches(matchmaker: Matchmaker, evaluated: Evaluated) -> None:
    """Have results of matches counted; raises MatchmakerFailed if it raises."""
    with called(matchmaker, "observe_matches"):
        matchmaker.observe_matches(evaluated)


def _describe(episode: EpisodeId) -> str:
    named = {EVALUATION: "evaluation", TRIAL: "trial"}
    return f"{named.get(episode.env, f'env {episode.env}')}, episode {episode.episode}"
