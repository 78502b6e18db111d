"""Payoffs of a league: who wins a game, and outcomes by profile and by pair of members, with variances and decay."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, permutations
from typing import Any, Protocol

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import MatchmakerFailed
from marlflow.base.serialization import Tree
from marlflow.league.game_statistics import Outcomes, PairCell, ProfileCell, Returns
from marlflow.league.sides import Sides
from marlflow.matchmaking.matchmakers import called
from marlflow.sampling.receipts import EpisodeResult


class GameOutcome(Protocol):
    """Decides how a game ended, in place of the mean returns of its sides.

    It must depend on its arguments alone, so that a resumed run counts the same.
    """

    def __call__(self, result: EpisodeResult, sides: Mapping[str, Sequence[str]]) -> Mapping[str, float]:
        """Return the score of each side; the highest wins, and equal scores are a draw. `sides` has their agents."""
        ...


def scores_by(outcome: GameOutcome, sides: Sides, result: EpisodeResult) -> tuple[float, ...]:
    """Return the score of each side by `outcome`; raises MatchmakerFailed if it raises or does not give them."""
    agents = {
        name: [agent for role in sides.of_side(side) for agent in sides.roles[role].agents]
        for side, name in enumerate(sides.names)
    }
    with called(outcome, f"episode {result.episode} of env {result.env}", "outcome") as where:
        scores = outcome(result, agents)
    if (problem := _problem(scores, sides)) is not None:
        raise MatchmakerFailed(where, problem)
    return tuple(float(scores[name]) for name in sides.names)


def _problem(scores: Any, sides: Sides) -> str | None:
    example = ", ".join(f"{name!r}: {score}" for name, score in zip(sides.names, (1.0, 0.0, 0.0), strict=False))
    expected = f"not a score for each side, such as {{{example}}}"
    if not isinstance(scores, Mapping) or set(scores) != set(sides.names):
        return f"it gave {scores!r:.200}, {expected}"
    for name, score in scores.items():
        try:
            is_finite = math.isfinite(score)
        except TypeError:
            is_finite = False
        if not is_finite:
            return f"it gave side {name!r} the score {score!r:.80}, which is no finite number"
    return None


def trial_result(sides: Sides) -> EpisodeResult:
    """Return the result of an invented game in which every agent's return is 0, to try an outcome on."""
    agents = [agent for role in sides.roles for agent in role.agents]
    return EpisodeResult(env=0, episode=0, env_steps=1, returns=dict.fromkeys(agents, 0.0), matchup={})


Profile = tuple[str, ...]
"""One member for each role, in the order of the roles."""


@dataclass(frozen=True, slots=True)
class Game:
    """One finished game: a profile, the mean return of each role's agents, its length, and whether it was truncated.

    `scores` decide which side won; None: the mean return of each side's roles.
    """

    profile: Profile
    returns: tuple[float, ...]
    env_steps: int
    truncated: bool = False
    scores: tuple[float, ...] | None = None

    def side_scores(self, sides: Sides) -> tuple[float, ...]:
        """Return the score of each side."""
        if self.scores is not None:
            return self.scores
        return sides.side_means(self.returns)


def game_of(sides: Sides, profile: Profile, result: EpisodeResult, outcome: GameOutcome | None = None) -> Game:
    """Return an episode as a game of `profile`, with scores by `outcome`; an agent that never appeared has return 0.

    Raises MatchmakerFailed if `outcome` fails.
    """
    scores = None if outcome is None else scores_by(outcome, sides, result)
    return Game(profile, sides.role_means(result.returns), result.env_steps, result.truncated, scores)


class Payoffs:
    """Games by profile (`cells`) and by pair of members in two roles (`pairs`), both updated with each game.

    `decay` applies to games with a live policy, whose strength changes; games between frozen members do not decay.
    With `symmetric`, a game counts for every order of its sides, which have equal roles: all orders share one cell, and
    sides that the same members play have the mean of their returns.

    >>> from marlflow.league.sides import default_sides
    >>> sides = default_sides(["player_0", "player_1"])
    >>> payoffs = Payoffs(sides, live=["main"], prior_games=4)
    >>> payoffs.add(Game(("main", "main@1"), (1.0, -1.0), env_steps=9))
    >>> payoffs.win_probability("main", "main@1")
    0.6
    """

    def __init__(
        self,
        sides: Sides,
        live: Collection[str] = (),
        decay: float = 0.99,
        prior_games: float = 4.0,
        symmetric: bool = False,
    ) -> None:
        self.sides = sides
        self.live = set(live)
        self.decay = decay
        self.prior_games = prior_games
        self.symmetric = symmetric
        self.cells: dict[Profile, ProfileCell] = {}
        self.pairs: dict[tuple[int, str, int, str], PairCell] = {}
        self.past: dict[str, dict[Profile, ProfileCell]] = {}
        self.changes = 0
        """Counts changes of the tables, so that results computed from them can be cached; not saved."""
        self._roles_of = [sides.of_side(side) for side in range(len(sides.names))]
        self._by_pair: dict[tuple[str, str], list[PairCell]] = {}
        # By member and other: games in which they were rivals.
        self._games: Counter[tuple[str, str]] = Counter()

    def emptied(self) -> Payoffs:
        """Return a table without games, with the same settings."""
        return Payoffs(self.sides, self.live, self.decay, self.prior_games, self.symmetric)

    def add(self, game: Game) -> None:
        """Count a game. A member against itself has returns and no outcomes."""
        self.changes += 1
        if self.symmetric:
            game = self._in_order(game)
        profile = game.profile
        decay = self.decay if any(member in self.live for member in profile) else 1.0
        cell = self.cells.get(profile)
        if cell is None:
            sides = range(len(self.sides.names))
            cell = ProfileCell([Returns() for _ in profile], {pair: Outcomes() for pair in combinations(sides, 2)})
            self.cells[profile] = cell
        cell.games += 1
        cell.truncated += game.truncated
        cell.env_steps += game.env_steps
        for returns, value in zip(cell.roles, game.returns, strict=True):
            returns.add(value, decay)
        scores = game.side_scores(self.sides)
        for (i, j), outcomes in cell.pairs.items():
            first, second = ([profile[role] for role in self._roles_of[side]] for side in (i, j))
            if first != second:
                outcomes.add(scores[i] - scores[j], decay)
        self._add_pairs(game, scores, decay)

    def _in_order(self, game: Game) -> Game:
        """Return a game of interchangeable sides as its cell counts it."""
        order = self._sides_in_cell(game.profile)
        roles = self._roles_in_cell(game.profile)
        profile, scores = tuple(game.profile[role] for role in roles), game.side_scores(self.sides)
        means = list(game.returns)
        for same in self._played_alike(game.profile):
            for place in zip(*(self._roles_of[side] for side in same), strict=True):
                mean = math.fsum(game.returns[role] for role in place) / len(place)
                for role in place:
                    means[role] = mean
        returns = tuple(means[role] for role in roles)
        return replace(game, profile=profile, returns=returns, scores=tuple(scores[side] for side in order))

    def _played_alike(self, profile: Profile) -> list[list[int]]:
        """Return the sides that the same members play."""
        sides: dict[Profile, list[int]] = {}
        for side, roles in enumerate(self._roles_of):
            sides.setdefault(tuple(profile[role] for role in roles), []).append(side)
        return [same for same in sides.values() if len(same) > 1]

    def _sides_in_cell(self, profile: Profile) -> list[int]:
        """Return the sides of `profile` in the order in which its cell has them."""
        sides = range(len(self._roles_of))
        if not self.symmetric:
            return list(sides)
        return sorted(sides, key=lambda side: [profile[role] for role in self._roles_of[side]])

    def _roles_in_cell(self, profile: Profile) -> list[int]:
        """Return the roles of `profile` in the order in which its cell has them."""
        in_order = chain(*(self._roles_of[side] for side in self._sides_in_cell(profile)))
        return [role for _, role in sorted(zip(chain(*self._roles_of), in_order, strict=True))]

    def key(self, profile: Profile) -> Profile:
        """Return the profile whose cell counts the games of `profile`: another order of its sides, if symmetric."""
        return tuple(profile[role] for role in self._roles_in_cell(profile)) if self.symmetric else profile

    def cell(self, profile: Profile) -> ProfileCell | None:
        """Return the cell that counts the games of a profile; None if it was not played."""
        return self.cells.get(self.key(profile))

    def _add_pairs(self, game: Game, scores: Sequence[float], decay: float) -> None:
        roles, profile = self.sides.roles, game.profile
        rivals: dict[tuple[str, str], int] = {}
        for one, other in permutations(range(len(roles)), 2):
            pair = self._pair(one, profile[one], other, profile[other])
            pair.games += 1
            pair.returns.add(game.returns[one], decay)
            if roles[one].side != roles[other].side and profile[one] != profile[other]:
                key = profile[one], profile[other]
                if key not in rivals:
                    # Once for each game, and in all seats, since win probabilities are of all seats together.
                    for earlier in self._by_pair[key]:
                        earlier.outcomes.fade(decay)
                rivals[key] = 1
                pair.outcomes.add(scores[roles[one].side] - scores[roles[other].side], 1.0)
        self._games.update(rivals)

    def _pair(self, role: int, member: str, other_role: int, other: str) -> PairCell:
        key = (role, member, other_role, other)
        pair = self.pairs.get(key)
        if pair is None:
            pair = self.pairs[key] = PairCell()
            if self.sides.roles[role].side != self.sides.roles[other_role].side:
                self._by_pair.setdefault((member, other), []).append(pair)
        return pair

    @property
    def games_counted(self) -> int:
        """The number of games, including games before a reset."""
        tables = (self.cells, *self.past.values())
        return sum(cell.games for cells in tables for cell in cells.values())

    def games(self, member: str, other: str) -> int:
        """Return the games of two members against each other, in all roles; a member against itself has none."""
        return self._games[member, other]

    def opponents(self, member: str) -> list[str]:
        """Return all other members that a member has played against."""
        return [other for one, other in self._by_pair if one == member and other != member and self.games(one, other)]

    def win_probability(self, member: str, other: str) -> float:
        """Return the probability that `member` beats `other`, with draws as half a win; 0.5 against itself."""
        if not (games := self.games(member, other)):
            return 0.5
        total, pairs = Outcomes(), self._by_pair[member, other]
        for pair in pairs:
            total.decayed_wins += pair.outcomes.decayed_wins
            total.decayed_draws += pair.outcomes.decayed_draws
            total.decayed_losses += pair.outcomes.decayed_losses
        # A game counts once for each pair of roles in which they are rivals.
        counted = sum(pair.outcomes.games for pair in pairs)
        return total.win_probability(self.prior_games * counted / games)

    def beats_all(self, member: str, rivals: Collection[str], chance: float, min_games: int) -> bool:
        """Return whether `member` beats each of some rivals more often than `chance`, after `min_games` with each."""
        return bool(rivals) and all(
            self.games(member, rival) >= min_games and self.win_probability(member, rival) > chance for rival in rivals
        )

    def returns(self, profile: Profile) -> tuple[Array, Array]:
        """Return mean returns [roles] of a profile and their standard errors; nan and inf where it was not played."""
        means, errors = np.full(len(profile), np.nan), np.full(len(profile), np.inf)
        roles = self._roles_in_cell(profile)
        if (cell := self.cell(profile)) is not None:
            means[roles] = [returns.decayed_mean for returns in cell.roles]
            errors[roles] = [returns.standard_error for returns in cell.roles]
        return means, errors

    def matrices(self, members: Sequence[Sequence[str]]) -> Array:
        """Return mean returns [roles, K_1, ..., K_roles] over all profiles of `members`, given by role."""
        shape = tuple(len(names) for names in members)
        means = np.full((len(shape), *shape), np.nan)
        for index in np.ndindex(shape):
            profile = tuple(names[number] for names, number in zip(members, index, strict=True))
            means[(slice(None), *index)] = self.returns(profile)[0]
        return means

    def reset(self, member: str, incarnation: int) -> None:
        """Move all games of a live policy, which is reset, to `past[<member>:<incarnation>]`; it begins without games.

        With three roles or more, pairs of other members keep their outcomes in these games.
        """
        self.changes += 1
        moved = {profile: cell for profile, cell in self.cells.items() if member in profile}
        self.past[f"{member}:{incarnation}"] = moved
        for profile in moved:
            del self.cells[profile]
        self.pairs = {key: pair for key, pair in self.pairs.items() if member not in (key[1], key[3])}
        self._by_pair = {key: pairs for key, pairs in self._by_pair.items() if member not in key}
        self._games = Counter({key: count for key, count in self._games.items() if member not in key})

    def state(self) -> Tree:
        """Return all tables as arrays."""
        rivals = {"rivals": [[*names, count] for names, count in self._games.items()]}
        # Left out if it says nothing new, so that checkpoints of versions without it can be resumed.
        return ({} if self._games == self._games_by_role() else rivals) | {
            "cells": _cells_as_tree(self.cells),
            "pairs": _pairs_as_tree(self.pairs),
            "past": {name: _cells_as_tree(cells) for name, cells in self.past.items()},
        }

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned."""
        self.changes += 1
        count = len(self.sides.names)
        self.cells = _cells_from_tree(tree["cells"], count)
        self.past = {name: _cells_from_tree(cells, count) for name, cells in tree["past"].items()}
        self.pairs = {}
        self._by_pair = {}
        for (role, member, other_role, other), pair in _pairs_from_tree(tree["pairs"]).items():
            made = self._pair(role, member, other_role, other)
            made.outcomes, made.returns, made.games = pair.outcomes, pair.returns, pair.games
        self._games = self._games_by_role()
        if "rivals" in tree:
            self._games = Counter({(one, other): count for one, other, count in tree["rivals"]})

    def _games_by_role(self) -> Counter[tuple[str, str]]:
        """Count the games of rivals, as often as they have roles in which they are."""
        counts = {names: sum(pair.outcomes.games for pair in pairs) for names, pairs in self._by_pair.items()}
        return Counter({names: count for names, count in counts.items() if count})


def _numbers(item: Returns | Outcomes) -> list[float]:
    return [getattr(item, name) for name in item.__slots__]


def _cells_as_tree(cells: Mapping[Profile, ProfileCell]) -> Tree:
    return {
        "profiles": [list(profile) for profile in cells],
        "counts": np.array([[c.games, c.truncated, c.env_steps] for c in cells.values()], np.int64).reshape(-1, 3),
        "returns": np.array([[_numbers(role) for role in cell.roles] for cell in cells.values()], np.float64),
        "outcomes": np.array([[_numbers(o) for o in cell.pairs.values()] for cell in cells.values()], np.float64),
    }


def _cells_from_tree(tree: Any, sides: int) -> dict[Profile, ProfileCell]:
    cells = {}
    rows = zip(
        tree["profiles"], tree["counts"].tolist(), tree["returns"].tolist(), tree["outcomes"].tolist(), strict=True
    )
    for profile, counts, returns, outcomes in rows:
        pairs = dict(zip(combinations(range(sides), 2), map(_outcomes, outcomes), strict=True))
        cells[tuple(profile)] = ProfileCell([_returns(values) for values in returns], pairs, *counts)
    return cells


def _pairs_as_tree(pairs: Mapping[tuple[int, str, int, str], PairCell]) -> Tree:
    return {
        "keys": [list(key) for key in pairs],
        "games": np.array([pair.games for pair in pairs.values()], np.int64),
        "returns": np.array([_numbers(pair.returns) for pair in pairs.values()], np.float64),
        "outcomes": np.array([_numbers(pair.outcomes) for pair in pairs.values()], np.float64),
    }


def _pairs_from_tree(tree: Any) -> dict[tuple[int, str, int, str], PairCell]:
    rows = zip(tree["keys"], tree["games"].tolist(), tree["returns"].tolist(), tree["outcomes"].tolist(), strict=True)
    return {
        (role, member, other_role, other): PairCell(_outcomes(outcomes), _returns(returns), games)
        for (role, member, other_role, other), games, returns, outcomes in rows
    }


def _returns(values: Sequence[float]) -> Returns:
    return Returns(int(values[0]), *values[1:])


def _outcomes(values: Sequence[float]) -> Outcomes:
    return Outcomes(*map(int, values[:3]), *values[3:])
