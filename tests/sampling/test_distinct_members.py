"""How many different frozen entries a worker is dealt, and that the limit favors none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from marlflow.batches.items import Weights
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import AllowedSeats, EpisodeId, Matchmaker
from marlflow.sampling.population import PopulationChange
from marlflow.sampling.protocol import Matchup, Request
from marlflow.sampling.receipts import Receipt

AGENTS = ("left", "right")
WORKERS = ((0, 2, 4), (1, 3, 5))


class Uniform(Matchmaker):
    """Seats `main` on one seat, and any of `count` frozen versions of `main` and `other` on the other one."""

    def __init__(self, count: int) -> None:
        self.names = {f"{policy}@{number}": policy for policy in ("main", "other") for number in range(count)}
        self.new = dict(self.names)

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        new, self.new = self.new, {}
        return PopulationChange(new)

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Matchup:
        seats = ["main", list(self.names)[generator.integers(len(self.names))]]
        return dict(zip(agents, seats[:: -1 if episode.episode % 2 else 1], strict=True))


def played(limit: int | None, entries: int, rounds: Sequence[int]) -> list[dict[int, list[Matchup]]]:
    """The matchups of each worker's requests, if its environments begin `rounds[n]` episodes in round n."""
    fits = dict.fromkeys(("main", "other"), AGENTS)
    matchmaker = Uniform(entries)
    dealer = Dealer(matchmaker, AllowedSeats(AGENTS, fits), 6, 3, WORKERS, distinct_members=limit)
    dealer.renew(dict.fromkeys(fits, Weights(0, None)), {}, {})
    requests, following = [], dict.fromkeys(range(6), 0)
    for begun in rounds:
        for worker in WORKERS:
            matchups = dealer.with_matchups(Request(0, {}, {}), 5, worker).matchups
            assert matchups is not None
            requests.append({env: list(of_env) for env, of_env in matchups.items()})
        following = {env: first + begun for env, first in following.items()}
        dealer.record_receipts([Receipt(0, 1, 1, (), {}, 0, 0.0, 0.0, 0.0, dict(following))])
    return requests


@given(st.integers(2, 6), st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_request_has_no_more_than_the_limit_and_the_same_seats(limit: int, entries: int, rounds: list[int]) -> None:
    limited, free = played(limit, entries, rounds), played(None, entries, rounds)
    for found, expected in zip(limited, free, strict=True):
        names = {name for of_env in found.values() for matchup in of_env for name in matchup.values() if "@" in name}
        assert len(names) <= limit
        for env, of_env in found.items():
            for matchup, unlimited in zip(of_env, expected[env], strict=True):
                live, as_dealt = (
                    {agent for agent, name in one.items() if name == "main"} for one in (matchup, unlimited)
                )
                assert as_dealt <= live


def test_over_many_rounds_all_entries_are_dealt_as_often() -> None:
    # The first of each environment's matchups is the one that begins.
    requests = played(3, 4, [1] * 3_000)
    games = Counter(name for one in requests for of_env in one.values() for name in of_env[0].values() if "@" in name)
    assert len(games) == 8
    # Games of one round share entries, so one environment is looked at, the last, every few rounds.
    apart = [list(one.values())[-1][0] for one in requests[1::20]]
    counts = Counter(name for matchup in apart for name in matchup.values() if "@" in name)
    assert chisquare([counts[name] for name in games]).pvalue > 0.001
    assert max(games.values()) < 1.15 * min(games.values())
