"""The dealer of a run's matchups as a service, and the metrics of its league."""

from __future__ import annotations

from marlflow.base.serialization import Tree
from marlflow.driver.episode_metrics import mean
from marlflow.driver.matches import MatchTimes
from marlflow.driver.nash_conv import NashConvEvaluator
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.matchmaking.dealer import Dealer
from marlflow.observe.report import LeaguePlayerMetrics, LeagueReport, Report


class Dealing(Service):
    """Saves what `dealer` has dealt; reports the league that it deals for, if there is one."""

    def __init__(self, dealer: Dealer, metrics: RunMetrics, times: MatchTimes, nash_conv: NashConvEvaluator) -> None:
        self._dealer, self._metrics, self._times, self._nash_conv = dealer, metrics, times, nash_conv

    def state(self) -> Tree:
        return self._dealer.state()

    def load_state(self, state: Tree) -> None:
        self._dealer.load_state(state)

    def add_metrics(self, report: Report) -> None:
        if isinstance(self._dealer.matchmaker, LeagueMatchmaker):
            report["league"] = self._league(self._dealer.matchmaker)

    def _league(self, league: LeagueMatchmaker) -> LeagueReport:
        dealer, times, nash_conv = self._dealer, self._times, self._nash_conv
        sent = self._metrics.sent + league.matches.sent
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
