"""Metrics of a league, for reports."""

from __future__ import annotations

from marlflow.driver.episode_metrics import mean
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.observe.report import LeaguePlayerMetrics, LeagueReport
from marlflow.sampling.dealer import Dealer


def league_metrics(dealer: Dealer | None) -> LeagueReport | None:
    """Return the metrics of the league that `dealer` deals for; None if there is none."""
    if dealer is None or not isinstance(dealer.matchmaker, LeagueMatchmaker):
        return None
    league = dealer.matchmaker
    return {
        "members": len(league.members),
        "epoch": league.epoch,
        "games": league.games,
        "games_stale": dealer.results.stale,
        "games_lost": dealer.results.lost,
        "deal_s": dealer.deal_s,
        "score_s": dealer.score_s,
        "players": {policy: _player(league, policy) for policy in league.members.incarnations},
    }


def _player(league: LeagueMatchmaker, policy: str) -> LeaguePlayerMetrics:
    members, payoffs = league.members, league.payoffs
    opponents = payoffs.opponents(policy)
    chances = [payoffs.win_probability(policy, opponent) for opponent in opponents]
    return {
        "snapshots": sum(snapshot.policy == policy for snapshot in members.snapshots.values()),
        "incarnation": members.incarnations[policy],
        "games": sum(cell.games for profile, cell in payoffs.cells.items() if policy in profile),
        "win_rate_mean": mean(chances),
        "win_rate_min": min(chances, default=None),
        "opponents_distinct": len(opponents),
    }
