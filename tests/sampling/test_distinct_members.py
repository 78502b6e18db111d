"""How many different frozen entries a worker is dealt, and that the limit favors none of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
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


class Drawn(Matchmaker):
    """Seats `main` on one seat, and on the other one of `count` frozen versions of `main` and `other`, by `weights`."""

    def __init__(self, count: int, weights: Sequence[float] | None = None) -> None:
        self.weights = weights
        self.names = {f"{policy}@{number}": policy for policy in ("main", "other") for number in range(count)}
        self.new = dict(self.names)

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        new, self.new = self.new, {}
        return PopulationChange(new)

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Matchup:
        seats = ["main", generator.choice(list(self.names), p=self.weights).item()]
        return dict(zip(agents, seats[:: -1 if episode.episode % 2 else 1], strict=True))


def played(
    limit: int | None, entries: int, rounds: Sequence[int], weights: Sequence[float] | None = None
) -> list[dict[int, list[Matchup]]]:
    """The matchups of each worker's requests, if its environments begin `rounds[n]` episodes in round n."""
    fits = dict.fromkeys(("main", "other"), AGENTS)
    matchmaker = Drawn(entries, weights)
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


def seated(matchups: Sequence[Matchup]) -> list[str]:
    return [name for matchup in matchups for name in matchup.values() if "@" in name]


@given(st.integers(2, 6), st.integers(1, 6), st.lists(st.integers(0, 5), min_size=1, max_size=12))
def test_a_request_has_no_more_than_the_limit_and_the_same_seats(limit: int, entries: int, rounds: list[int]) -> None:
    limited, free = played(limit, entries, rounds), played(None, entries, rounds)
    for found, expected in zip(limited, free, strict=True):
        assert len({name for of_env in found.values() for name in seated(of_env)}) <= limit
        for env, of_env in found.items():
            for matchup, unlimited in zip(of_env, expected[env], strict=True):
                live, as_dealt = (
                    {agent for agent, name in one.items() if name == "main"} for one in (matchup, unlimited)
                )
                assert as_dealt <= live


@pytest.mark.parametrize(
    "weights", [[1 / 8] * 8, [0.6, *[0.4 / 7] * 7], [0.01, 0.7, 0.2, 0.01, 0.02, 0.02, 0.02, 0.02]]
)
def test_over_many_rounds_all_entries_are_dealt_as_often_as_they_are_drawn(weights: list[float]) -> None:
    # All matchups of a request begin, so that no draw is dealt again in the next round.
    requests = played(3, 4, [5] * 3_000, weights)
    games = Counter(name for one in requests for of_env in one.values() for name in seated(of_env))
    expected = dict(zip(Drawn(4).names, weights, strict=True))
    # Games of one round share entries, so one game of each is counted.
    counts = Counter(name for one in requests for name in seated(list(one.values())[-1][:1]))
    total = sum(counts.values())
    assert chisquare([counts[name] for name in expected], [total * share for share in expected.values()]).pvalue > 0.001
    for name, share in expected.items():
        assert games[name] / sum(games.values()) == pytest.approx(share, abs=0.015)
