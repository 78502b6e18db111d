"""Games between members, counted: shares won, mean returns, by side; and returns of policies that play together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import NormalDist, median
from typing import Literal

from scipy.stats import t as student_t
from scipy.stats import trim_mean

from marlflow.base.return_units import Units
from marlflow.league.game_statistics import TIE_TOLERANCE
from marlflow.league.sides import Sides

CONFIDENCE = 0.95
_SUM_TOLERANCE = 1e-6
_Z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)

Outcome = Literal["win", "draw", "loss"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """An estimate with its 95 % confidence interval; `low` and `high` are None if there are too few games for one."""

    value: float
    low: float | None
    high: float | None


def wilson(successes: int, games: int) -> Estimate:
    """Return a proportion with its score interval (Wilson, 1927, JASA 22); `games` is at least 1.

    >>> estimate = wilson(8, 10)
    >>> estimate.value, round(estimate.low, 4), round(estimate.high, 4)
    (0.8, 0.4902, 0.9433)
    """
    share, z2 = successes / games, _Z * _Z
    middle = (share + z2 / (2 * games)) / (1 + z2 / games)
    half = _Z / (1 + z2 / games) * math.sqrt(share * (1 - share) / games + z2 / (4 * games * games))
    # Exact at the ends, where rounding would exclude the share itself.
    return Estimate(share, min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half)))


def mean_estimate(values: Sequence[float]) -> Estimate:
    """Return a mean with its interval by Student's t distribution; `values` has at least one.

    >>> mean_estimate([1.0, 1.0]), mean_estimate([3.0])
    (Estimate(value=1.0, low=1.0, high=1.0), Estimate(value=3.0, low=None, high=None))
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return Estimate(mean, None, None)
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = float(student_t.ppf((1 + CONFIDENCE) / 2, count - 1)) * math.sqrt(variance / count)
    return Estimate(mean, mean - half, mean + half)


def interquartile_mean(values: Sequence[float]) -> float:
    """Return the mean without the lowest and the highest quarter (Agarwal et al., 2021, NeurIPS).

    >>> interquartile_mean([0.0, 1.0, 2.0, 99.0]), interquartile_mean([1.0, 5.0])
    (1.5, 3.0)
    """
    return float(trim_mean(values, 0.25))


@dataclass(frozen=True, slots=True)
class ReturnStatistics:
    """Mean with its interval, interquartile mean and median of returns, over episodes."""

    mean: Estimate
    iqm: float
    median: float


def return_statistics(returns: Sequence[float]) -> ReturnStatistics:
    """Return the statistics of the returns of at least one episode."""
    return ReturnStatistics(mean_estimate(returns), interquartile_mean(returns), median(returns))


def side_scores(sides: Sides, returns: Mapping[str, float]) -> tuple[float, ...]:
    """Return the score of each side: the mean over its roles of the mean return of a role's agents.

    An agent that never appeared has return 0.
    """
    return sides.side_means(sides.role_means(returns))


def is_constant_sum(scores: Sequence[Sequence[float]]) -> bool:
    """Return whether the scores of all sides had the same sum in every game, so that one side gains what others lose.

    False if all sides have equal scores in every game, 0 included: a team that shares its rewards has such scores, and
    no side wins. A sum other than 0 counts only if there are at most three different scores, as those of a win, a draw
    and a loss: foragers who always find all of the food have such a sum, too, and do not play against each other. Nor
    does it count in a single game, which has one sum anyway.

    >>> is_constant_sum([[1.0, -1.0], [0.0, 0.0]]), is_constant_sum([[1.0, 1.0], [0.0, 0.0]]), is_constant_sum([])
    (True, False, False)
    >>> is_constant_sum([[0.0, 0.0]]), is_constant_sum([[200.0, 200.0]]), is_constant_sum([[1.0, 0.0], [0.5, 0.5]])
    (False, False, True)
    >>> is_constant_sum([[0.7, 0.3], [0.2, 0.8]]), is_constant_sum([[0.7, -0.7], [-0.2, 0.2]])
    (False, True)
    >>> is_constant_sum([[12.0, 8.0]]), is_constant_sum([[1.0, -1.0]])
    (False, True)
    """
    sums = [math.fsum(of_sides) for of_sides in scores]
    tolerance = _SUM_TOLERANCE * max(1.0, *(abs(score) for of_sides in scores for score in of_sides), 0.0)
    differ = any(max(of_sides) - min(of_sides) > tolerance for of_sides in scores)
    if not differ or max(sums) - min(sums) > tolerance:
        return False
    ordered = sorted(score for of_sides in scores for score in of_sides)
    different = 1 + sum(after - before > tolerance for before, after in pairwise(ordered))
    return abs(sums[0]) <= tolerance or (len(scores) > 1 and different <= 3)


def outcome(scores: Sequence[float], side: int) -> Outcome:
    """Return whether a side has the best score alone (win), or among others (draw).

    >>> outcome([1.0, -1.0], 0), outcome([0.5, 0.5, 0.0], 1), outcome([0.5, 0.5, 0.0], 2)
    ('win', 'draw', 'loss')
    """
    difference = scores[side] - max(score for other, score in enumerate(scores) if other != side)
    if abs(difference) <= TIE_TOLERANCE:
        return "draw"
    return "win" if difference > 0 else "loss"


@dataclass(frozen=True, slots=True)
class ComparedGame:
    """One game of `member`, on `side`, against `opponent` on all other sides; a team that plays alone has no side.

    `seating` has the player of each agent, and `seed` is the seed of the environment's reset. Games of equal
    `fingerprint` had the same observations and actions. `scores`, by side, say who won if the returns do not.
    """

    member: str
    opponent: str
    side: int | None
    seed: int
    seating: Mapping[str, str]
    returns: Mapping[str, float]
    env_steps: int
    fingerprint: int = 0
    infos: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By info column and agent."""
    scores: Sequence[float] | None = None


@dataclass(frozen=True, slots=True)
class Results:
    """Outcomes of some games for one member: `score` is its side's return, `length` the mean number of env steps.

    `score`, `iqm` and `median` summarize returns per agent, `team` the sums over the side's agents in each game.
    `has_winners`: the sides' returns had the same sum in all games, so that winning is what returns measure, or the
    league's `outcome` said who won.
    `infos` are the means of info columns per agent of the side and game, over the games that have them.
    """

    games: int
    win: Estimate
    draw: Estimate
    loss: Estimate
    score: Estimate
    iqm: float
    median: float
    length: float
    has_winners: bool
    team: ReturnStatistics
    infos: Mapping[str, Estimate]

    @property
    def estimates(self) -> Mapping[str, Estimate]:
        """The shares of outcomes, and the `return` per agent and of the `team`."""
        returns = {"return": self.score, "team_return": self.team.mean}
        return {"win": self.win, "draw": self.draw, "loss": self.loss, **returns}

    def returns(self, units: Units) -> ReturnStatistics:
        """Return the statistics of returns in some units."""
        return self.team if units == "sum" else ReturnStatistics(self.score, self.iqm, self.median)


@dataclass(frozen=True, slots=True)
class Comparison:
    """All games of a member against an opponent; `by_side` has the results of its games on each side, by name.

    `results` is None if no game was finished; `lost` is the number of games that broke.
    """

    member: str
    opponent: str
    results: Results | None
    by_side: Mapping[str, Results]
    lost: int = 0


def results_of(sides: Sides, games: Iterable[ComparedGame]) -> Results | None:
    """Return the results of games, for the side that the member played in each; None without games."""
    outcomes, scores, sums, of_all, lengths, of_side, are_decided = [], [], [], [], [], [], False
    for game in games:
        assert game.side is not None, "a member plays a side"
        of_sides = side_scores(sides, game.returns)
        outcomes.append(outcome(of_sides if game.scores is None else game.scores, game.side))
        are_decided |= game.scores is not None
        scores.append(of_sides[game.side])
        played = {agent for role in sides.of_side(game.side) for agent in sides.roles[role].agents}
        sums.append(math.fsum(value for agent, value in game.returns.items() if agent in played))
        of_all.append(of_sides)
        lengths.append(game.env_steps)
        of_side.append((game, played))
    if not outcomes:
        return None
    win, draw, loss = (wilson(outcomes.count(kind), len(outcomes)) for kind in ("win", "draw", "loss"))
    per_agent = return_statistics(scores)
    return Results(
        len(outcomes),
        win,
        draw,
        loss,
        per_agent.mean,
        per_agent.iqm,
        per_agent.median,
        math.fsum(lengths) / len(lengths),
        are_decided or is_constant_sum(of_all),
        return_statistics(sums),
        _infos(of_side),
    )


def comparison(sides: Sides, member: str, opponent: str, games: Sequence[ComparedGame], asked: int) -> Comparison:
    """Return the results of the games of a pair; `asked` is the number that were to be played."""
    by_side = {name: results_of(sides, [g for g in games if g.side == side]) for side, name in enumerate(sides.names)}
    known = {name: results for name, results in by_side.items() if results is not None}
    return Comparison(member, opponent, results_of(sides, games), known, asked - len(games))


@dataclass(frozen=True, slots=True)
class PolicyReturns:
    """The returns of a policy, per agent and episode (`mean`, `iqm`, `median`), and summed over its agents (`team`).

    `length` is the mean number of env steps of an episode, `agents` the agents that it played. `win`, `draw` and `loss`
    are shares of the episodes, if the sides' returns had the same sum in all of them, and the policy played one side.
    `infos` are the means of info columns per agent and episode, over the episodes that have them.
    """

    policy: str
    agents: Sequence[str]
    episodes: int
    mean: Estimate
    iqm: float
    median: float
    team: ReturnStatistics
    length: float
    infos: Mapping[str, Estimate]
    win: Estimate | None = None
    draw: Estimate | None = None
    loss: Estimate | None = None

    def returns(self, units: Units) -> ReturnStatistics:
        """Return the statistics of its returns in some units."""
        return self.team if units == "sum" else ReturnStatistics(self.mean, self.iqm, self.median)


def policy_returns(games: Sequence[ComparedGame], sides: Sides | None) -> list[PolicyReturns]:
    """Return the returns of each policy, ordered by first seat.

    An episode counts for a policy if one of its agents took part. Intervals are over episodes, because the agents of
    one episode are not independent. Without `sides`, there are no wins, draws or losses.
    """
    policies = dict.fromkeys(policy for game in games for policy in game.seating.values())
    found = [_of_policy(policy, games) for policy in policies if any(_returns(policy, game) for game in games)]
    if sides is None or not is_constant_sum([side_scores(sides, game.returns) for game in games]):
        return found
    return [_with_outcomes(one, games, sides) for one in found]


def _with_outcomes(returns: PolicyReturns, games: Sequence[ComparedGame], sides: Sides) -> PolicyReturns:
    played = {role.side for role in sides.roles if set(role.agents) & set(returns.agents)}
    rivals = {agent for role in sides.roles if role.side in played for agent in role.agents} - set(returns.agents)
    if len(played) != 1 or rivals:
        return returns
    outcomes = [outcome(side_scores(sides, game.returns), *played) for game in games if _returns(returns.policy, game)]
    win, draw, loss = (wilson(outcomes.count(kind), len(outcomes)) for kind in ("win", "draw", "loss"))
    return replace(returns, win=win, draw=draw, loss=loss)


def _returns(policy: str, game: ComparedGame) -> Mapping[str, float]:
    return {agent: one for agent, one in game.returns.items() if game.seating.get(agent) == policy}


def _of_policy(policy: str, games: Sequence[ComparedGame]) -> PolicyReturns:
    played = [(game, of) for game in games if (of := _returns(policy, game))]
    sums = [math.fsum(of.values()) for _, of in played]
    per_agent = return_statistics([total / len(of) for total, (_, of) in zip(sums, played, strict=True)])
    return PolicyReturns(
        policy,
        list(dict.fromkeys(agent for _, of in played for agent in of)),
        len(played),
        per_agent.mean,
        per_agent.iqm,
        per_agent.median,
        return_statistics(sums),
        math.fsum(game.env_steps for game, _ in played) / len(played),
        _infos(played),
    )


def _infos(games: Iterable[tuple[ComparedGame, Collection[str]]]) -> dict[str, Estimate]:
    """Return the means of info columns over games, of some agents of each."""
    found: dict[str, list[float]] = {}
    for game, agents in games:
        for name, by_agent in game.infos.items():
            if values := [value for agent, value in by_agent.items() if agent in agents]:
                found.setdefault(name, []).append(math.fsum(values) / len(values))
    return {name: mean_estimate(means) for name, means in found.items()}
