"""Metrics of a league, for reports."""

from __future__ import annotations

from marlflow.driver.episode_metrics import mean
from marlflow.driver.matches import MatchTimes
from marlflow.driver.nash_conv import NashConvMetrics
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.observe.report import LeaguePlayerMetrics, LeagueReport
from marlflow.sampling.dealer import Dealer
from marlflow.sampling.receipts import MembersSent


def league_metrics(
    dealer: Dealer | None, sent: MembersSent, times: MatchTimes, nash_conv: NashConvMetrics
) -> LeagueReport | None:
    """Return the metrics of the league that `dealer` deals for; None if there is none.

    `sent` has the snapshots sent to workers in training.
    """
    if dealer is None or not isinstance(dealer.matchmaker, LeagueMatchmaker):
        return None
    league = dealer.matchmaker
    sent += league.matches.sent
    return {
        "members": len(league.members),
        "epoch": league.epoch,
        "games": league.games,
        "games_stale": dealer.results.stale,
        "games_lost": dealer.results.lost,
        "matches": league.matches.payoffs.games_counted,
        "members_sent": sent.members,
        "bytes_sent": sent.size_bytes,
        "cache_hits": sent.hits,
        "deal_s": dealer.deal_s,
        "score_s": dealer.score_s,
        "match_s": times.match_s,
        "solve_s": times.solve_s,
        "nash_conv_s": nash_conv.spent_s,
        "nash_conv": nash_conv.value,
        "nash_conv_env_steps": nash_conv.env_steps,
        "players": {policy: _player(league, policy) for policy in league.members.incarnations},
        "meta": {role: dict(mixture) for role, mixture in league.meta_strategies.items()},
    }


def _player(league: LeagueMatchmaker, policy: str) -> LeaguePlayerMetrics:
    members, payoffs, rating = league.members, league.payoffs, league.ratings[policy]
    opponents = payoffs.opponents(policy)
    chances = [payoffs.win_probability(policy, opponent) for opponent in opponents]
    return {
        "snapshots": sum(snapshot.policy == policy for snapshot in members.snapshots.values()),
        "resets": members.incarnations[policy],
        "incarnation": members.incarnations[policy],
        "games": sum(cell.games for profile, cell in payoffs.cells.items() if policy in profile),
        "win_rate_mean": mean(chances),
        "win_rate_min": min(chances, default=None),
        "opponents_distinct": len(opponents),
        "rating_mu": rating.mu,
        "rating_sigma": rating.sigma,
    }
