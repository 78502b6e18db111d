"""Modes of a league: they choose the rivals of the live policy that a game is dealt for.

A mode returns the member for each rival role. A user's own mode derives from `LeagueMode`, and is named by `_target_`.
Modes that deal snapshots also deal the fixed policies of `league.members`; a window or a fraction of the newest
snapshots does not count them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.ranges import Count, Noise, Share
from marlflow.base.serialization import Tree
from marlflow.league.matches import Matches
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs, Profile
from marlflow.sampling.population import Reset

Weighting = Literal["hard", "variance", "linear", "capped"]
NEGLIGIBLE = 1e-10


class LeagueView:
    """The view that a mode has of the league: its members and the outcomes of training games."""

    def __init__(self, members: Members, payoffs: Payoffs) -> None:
        self.members = members
        self.payoffs = payoffs
        self._chances: dict[tuple[str, ...], Array] = {}
        self._changes = payoffs.changes

    def chances(self, policy: str, rivals: Sequence[str]) -> Array:
        """Return the probabilities [N] that a member beats each of `rivals`; do not write to them."""
        # Many games are dealt between changes of the payoffs.
        if self._changes != self.payoffs.changes:
            self._chances.clear()
            self._changes = self.payoffs.changes
        key = (policy, *rivals)
        if key not in self._chances:
            self._chances[key] = np.array([self.payoffs.win_probability(policy, rival) for rival in rivals])
        return self._chances[key]

    def live(self, policy: str, role: int, generator: np.random.Generator) -> str | None:
        """Return `policy` if it can play a role, else a live policy that can, at random; None if none can."""
        if self.members.plays(policy, role):
            return policy
        return pick(self.members.live_in(role), generator) if self.members.live_in(role) else None


class LeagueMode:
    """Base class of modes: override `rival`, or `profile` to deal all games by it, and others as needed.

    The others do nothing by default. Before each round, the run calls a mode for the matches of its meta-game, for
    snapshots, and for resets after these.
    """

    @property
    def has_snapshot_rules(self) -> bool:
        """Whether it overrides `snapshots_due`, which adds to the league's rules for snapshots."""
        return type(self).snapshots_due is not LeagueMode.snapshots_due

    @property
    def has_meta_game(self) -> bool:
        """Whether it overrides `matches_wanted`: then matches are played until the payoffs of the meta-game are known.

        The matches of the league's own rules are not played.
        """
        return type(self).matches_wanted is not LeagueMode.matches_wanted

    @property
    def seats_all_roles(self) -> bool:
        """Whether it overrides `profile`, which chooses whole matchups; shares of games then have no effect."""
        return type(self).profile is not LeagueMode.profile

    def problems(self, members: Members) -> Sequence[str]:
        """Return why this mode cannot run with these members and sides."""
        return ()

    def learns_from(self) -> Mapping[str, Sequence[str]]:
        """Return the policies whose rows each policy learns from, unless the configuration sets `learns_from`."""
        return {}

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        """Return the member for a rival `role` in a game dealt for `policy`; None leaves the choice to the league."""
        raise NotImplementedError

    def profile(self, view: LeagueView, generator: np.random.Generator) -> Sequence[str]:
        """Return the member for each role of a game; a mode that overrides this deals all games by it."""
        raise NotImplementedError

    def snapshots_due(self, view: LeagueView, agent_steps: Mapping[str, int]) -> Collection[str]:
        """Return the live policies to take a snapshot of; other names have no effect.

        `agent_steps` counts since the last snapshot of a policy that the mode asked for, or the start. Called once
        before each round.
        """
        return ()

    def may_reset(self, policy: str) -> bool:
        """Return whether `policy` is ever reset."""
        return False

    def reset_after_snapshot(self, policy: str, generator: np.random.Generator) -> Reset | None:
        """Return the reset of `policy`, whose snapshot was just taken, or None.

        In a mode with `snapshots_due`, called for the snapshots that it asked for.
        """
        return None

    def matches_wanted(self, members: Members, matches: Matches) -> Mapping[Profile, int]:
        """Return the games that the meta-game needs next, by profile; empty if its payoffs are known."""
        return {}

    def solve(self, members: Members, payoffs: Payoffs) -> None:
        """Compute the meta-strategies from the payoffs of matches, if members are new."""

    def solution(self, members: Members) -> Sequence[Mapping[str, float]] | None:
        """Return the probability of each member in the mixture of each role; None if the mode has no result yet.

        Without a result of the mode, the result of the league is its live policies.
        """
        return None

    def state(self) -> Tree:
        """Return everything that later games depend on."""
        return None

    def state_shape(self) -> Tree:
        """Return what a state has to look like, see `differences_of_shape`; None: anything that `load_state` takes."""
        return None

    def load_state(self, tree: Tree) -> None:
        """Restore what `state` returned; called if it was not None."""


def pick(names: Sequence[str], generator: np.random.Generator, weights: Array | None = None) -> str:
    """Return one of `names` at random, by `weights` [N] that sum to 1, or each as likely as any other."""
    if weights is None:
        return names[int(generator.integers(len(names)))]
    # By inverse CDF, several times faster than Generator.choice. The sum may be rounded to less than 1.
    cumulative = np.add.accumulate(weights)
    return names[int(np.searchsorted(cumulative, generator.random() * cumulative[-1], side="right"))]


@dataclass(frozen=True)
class NaiveSelfPlay(LeagueMode):
    """The live policy of each role, and no snapshots (Tesauro, 1995)."""

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        return view.live(policy, role, generator)


@dataclass(frozen=True)
class LatestPast(LeagueMode):
    """The live policy with probability `live`, else one of the newest `window` snapshots, each as likely as any other.

    The defaults are as in ML-Agents.
    """

    live: Share = 0.5  #: share of games against the learning policy; the rest against snapshots
    window: Count = 10  #: newest snapshots that are met, each equally often

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        rivals = [*view.members.added_in(role), *view.members.past_in(role)[-self.window :]]
        if not rivals or generator.random() < self.live:
            return view.live(policy, role, generator)
        return pick(rivals, generator)


@dataclass(frozen=True)
class DeltaUniform(LeagueMode):
    """One of the newest snapshots, from the fraction `delta` of their number on: 1 is the newest, 0 all of them.

    Bansal et al., 2018, arXiv:1710.03748.
    """

    delta: Share = 0.5  #: from this part of the snapshots on; 0: all of them, 1: the newest alone

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        past = view.members.past_in(role)
        first = min(max(1, int(np.ceil(self.delta * len(past)))), len(past))
        rivals = [*view.members.added_in(role), *past[max(0, first - 1) :]]
        return pick(rivals, generator) if rivals else None


@dataclass(frozen=True)
class Fictitious(LeagueMode):
    """One of all snapshots, each as likely as any other (fictitious self-play: Heinrich et al., 2015)."""

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        rivals = [*view.members.added_in(role), *view.members.past_in(role)]
        return pick(rivals, generator) if rivals else None


@dataclass(frozen=True)
class PFSP(LeagueMode):
    """Prioritized fictitious self-play: snapshots that are hard to beat more often (Vinyals et al., 2019, Methods)."""

    past: Share = 0.8  #: share of games against snapshots; the rest against the learning policy
    #: of snapshots by the probability x to win: hard (1 - x)^power, variance x (1 - x), linear 1 - x,
    #: capped min(0.5, 1 - x)
    weighting: Weighting = "hard"
    power: Noise = 2.0  #: exponent of hard

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        rivals = [*view.members.added_in(role), *view.members.past_in(role)]
        if not rivals or generator.random() >= self.past:
            return view.live(policy, role, generator)
        return pick(rivals, generator, pfsp_weights(view.chances(policy, rivals), self.weighting, self.power))


def pfsp_weights(chances: Array, weighting: Weighting = "hard", power: float = 2.0) -> Array:
    """Return the probability [N] of each rival, from the probabilities [N] to beat it; uniform if all weights are 0.

    >>> pfsp_weights(np.array([1.0, 0.5, 0.0])).tolist()
    [0.0, 0.2, 0.8]
    """
    lost = 1.0 - chances
    weights = {
        "hard": lost**power,
        "variance": chances * lost,
        "linear": lost,
        "capped": np.minimum(0.5, lost),
    }[weighting]
    total = float(weights.sum())
    if total < NEGLIGIBLE:
        return np.full(len(chances), 1.0 / len(chances))
    normalized: Array = weights / total
    return normalized
