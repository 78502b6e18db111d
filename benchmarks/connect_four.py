"""Games of connect four between members of runs and scripted players, in both seats, with confidence intervals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import marlflow as mf
from marlflow.league.comparison import Results
from marlflow.policy.actor import EvaluationMode

_Z = 1.96


@dataclass(frozen=True, slots=True)
class Score:
    """Wins, draws and losses of one member against another."""

    wins: int
    draws: int
    losses: int

    @property
    def games(self) -> int:
        """The number of games."""
        return self.wins + self.draws + self.losses

    @property
    def win_rate(self) -> float:
        """The share of games won, a draw being half a win."""
        return (self.wins + self.draws / 2) / self.games

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of Wilson (1927) for the win rate.

        Half a win for a draw has less variance than a win or a loss, so with draws the interval is too wide.

        >>> [round(bound, 3) for bound in Score(9, 0, 1).interval]
        [0.596, 0.982]
        """
        n, p = self.games, self.win_rate
        middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
        half = _Z / (1 + _Z**2 / n) * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
        return middle - half, middle + half

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.win_rate:.3f} [{low:.3f}, {high:.3f}]"


Scores = Mapping[tuple[str, str], Score]
"""The score of the first of each pair."""


def scores(
    run_dir: Path,
    members: Sequence[str],
    against: Sequence[str],
    games: int,
    seed: int,
    mode: EvaluationMode = "sampled",
) -> Scores:
    """Return the score of each of `members` against each of `against`, over `games` games in each of the two seats.

    Names are as in `mf.evaluate` of the run. Games have no random opening.
    """
    found = mf.evaluate(run_dir, None, members, against, 2 * games, seed, mode, env={"wrappers": []})
    return {(one.member, one.opponent): _score(one.results) for one in found.comparisons if one.results is not None}


def _score(results: Results) -> Score:
    wins, draws, losses = (round(one.value * results.games) for one in (results.win, results.draw, results.loss))
    return Score(wins, draws, losses)


def round_robin(run_dir: Path, names: Sequence[str], games: int, seed: int) -> Scores:
    """Return the score of each pair of `names`, over `games` games in each seat."""
    found: dict[tuple[str, str], Score] = {}
    for number, name in enumerate(names[:-1], 1):
        found |= scores(run_dir, [name], names[number:], games, seed)
    return found


def standings(names: Sequence[str], scores: Scores) -> Iterator[tuple[str, Score]]:
    """Yield each name with the sum of its games, best first."""
    sums = {}
    for name in names:
        own = [score if pair[0] == name else _mirrored(score) for pair, score in scores.items() if name in pair]
        sums[name] = Score(sum(s.wins for s in own), sum(s.draws for s in own), sum(s.losses for s in own))
    yield from sorted(sums.items(), key=lambda item: -item[1].win_rate)


def _mirrored(score: Score) -> Score:
    return Score(score.losses, score.draws, score.wins)
