"""The state of a dealer: a new one continues from it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.matchmaking.dealer import Dealer
from marlflow.matchmaking.matchmakers import AllowedSeats, EpisodeId
from tests.sampling.test_matchmaking import AGENTS, SEATS, Asked, collects, receipt


class Remembering(Asked):
    """An `Asked` that knows how often it was asked also after a resume."""

    def state(self) -> list[list[int]]:
        return [list(episode) for episode in self.episodes]

    def load_state(self, tree: list[list[int]]) -> None:
        self.episodes = [EpisodeId(*episode) for episode in tree]


@given(collects(), st.integers(0, 8))
def test_a_dealer_that_takes_up_what_is_kept_deals_as_the_one_that_went_on(drawn: Any, kept_after: int) -> None:
    num_envs, rounds = drawn
    dealer = Dealer(Remembering(), SEATS, num_envs, seed=1)
    following = dict.fromkeys(range(num_envs), 0)
    other = None
    for number, (ticks, begun, lengths) in enumerate(rounds):
        if number == kept_after:
            other = Dealer(Remembering(), SEATS, num_envs, seed=1)
            other.load_state(from_bytes(to_bytes(dealer.state())))
        dealt = dealer.deal(ticks)
        assert other is None or other.deal(ticks) == dealt
        following = {
            env_index: first + min(begun[env_index], len(dealt[env_index])) for env_index, first in following.items()
        }
        for one in (dealer, other):
            if one is not None:
                one.record_receipts([receipt(following, lengths)])
    # Seconds are no part of what is dealt.
    assert other is None or {**other.state(), "score_s": 0.0} == {**dealer.state(), "score_s": 0.0}


def test_a_dealer_refuses_matchups_that_can_no_longer_be_played() -> None:
    dealer = Dealer(Asked(), SEATS, 1, seed=1)
    dealer.deal(1)
    without = Dealer(Asked(), AllowedSeats(AGENTS, {"main": AGENTS, "lefty": ("left",)}), 1, seed=1)
    with pytest.raises(CheckpointUnusable, match=r"it seated 'rival' .*, and there is no such policy"):
        without.load_state(dealer.state())


def test_a_dealer_of_more_envs_begins_with_their_first_episodes() -> None:
    dealer = Dealer(Asked(), SEATS, 1, seed=1)
    dealer.deal(1)
    dealer.record_receipts([receipt({0: 1})])
    asked = Asked()
    wider = Dealer(asked, SEATS, 2, seed=1)
    wider.load_state(dealer.state())
    wider.deal(1)
    assert asked.episodes == [EpisodeId(0, 1), EpisodeId(1, 0)]
