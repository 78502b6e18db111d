"""Returns of policies that play together, over evaluation episodes, with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from marlflow.base.return_units import Units
from marlflow.league.comparison import (
    ComparedGame,
    Estimate,
    ReturnStatistics,
    is_constant_sum,
    mean_estimate,
    outcome,
    return_statistics,
    side_scores,
    wilson,
)
from marlflow.league.sides import Sides


@dataclass(frozen=True, slots=True)
class PolicyReturns:
    """The returns of a policy, per agent and episode (`mean`, `iqm`, `median`), and summed over its agents (`team`).

    `length` is the mean number of env steps of an episode, `agents` those that it played. `win`, `draw` and `loss` are
    shares of the episodes, if the sides' returns had the same sum in all of them, and the policy played one side.
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
    one episode are not independent. Without `sides`, nobody can win.
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
        _infos([game for game, _ in played], policy),
    )


def _infos(games: Sequence[ComparedGame], policy: str) -> dict[str, Estimate]:
    found: dict[str, list[float]] = {}
    for game in games:
        for name, by_agent in game.infos.items():
            if values := [value for agent, value in by_agent.items() if game.seating.get(agent) == policy]:
                found.setdefault(name, []).append(math.fsum(values) / len(values))
    return {name: mean_estimate(means) for name, means in found.items()}
