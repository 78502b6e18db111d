"""Results of training episodes: each is taken once, in one order, however they arrive."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.matchmaking.dealer import Dealer, ResultLedger
from marlflow.matchmaking.matchmakers import AllowedSeats
from marlflow.sampling.receipts import EpisodeResult, Receipt

NUM_ENVS = 4


def result(env: int, episode: int, tick: int = 0) -> EpisodeResult:
    return EpisodeResult(env, episode, 5, {}, tick)


def receipt(*results: EpisodeResult, worker: int = 0) -> Receipt:
    return Receipt(worker, 0, 0, results, {}, 0, 0.0, 0.0, 0.0)


@st.composite
def rounds(draw: st.DrawFn) -> list[list[EpisodeResult]]:
    """Rounds of results; of each environment some episodes are missing, and some come again later."""
    played: list[list[EpisodeResult]] = []
    following = [0] * NUM_ENVS
    for _ in range(draw(st.integers(1, 6))):
        results = []
        for env in range(NUM_ENVS):
            ticks = sorted(draw(st.sets(st.integers(0, 30), max_size=4)))
            for tick in ticks:
                if draw(st.booleans()):
                    results.append(result(env, following[env], tick))
                following[env] += 1
        again = draw(st.lists(st.sampled_from(earlier), max_size=3)) if (earlier := [*chain(*played)]) else []
        played.append([*results, *again])
    return played


@given(rounds(), st.randoms(use_true_random=False), st.integers(1, NUM_ENVS), st.integers(0, 6))
def test_order_and_counts_are_those_of_a_loop_over_all_whoever_was_fast(
    played: list[list[EpisodeResult]], random: Any, num_workers: int, kept_after: int
) -> None:
    ledger, taken = ResultLedger(NUM_ENVS), []
    for number, results in enumerate(played):
        if number == kept_after:
            kept = from_bytes(to_bytes(ledger.state()))
            ledger = ResultLedger(NUM_ENVS)
            ledger.load_state(kept)
        shares = [[one for one in results if one.env % num_workers == worker] for worker in range(num_workers)]
        for share in shares:
            random.shuffle(share)
        receipts = [receipt(*share, worker=worker) for worker, share in enumerate(shares)]
        random.shuffle(receipts)
        taken.append(ledger.take(receipts))
    seen: set[tuple[int, int]] = set()
    stale = 0
    for results, given_on in zip(played, taken, strict=True):
        new = {(one.env, one.episode) for one in results} - seen
        stale += len(results) - len(new)
        seen |= new
        assert {(one.env, one.episode) for one in given_on} == new
        assert [(one.tick, one.env) for one in given_on] == sorted((one.tick, one.env) for one in given_on)
    ended = [max((episode for env, episode in seen if env == number), default=-1) + 1 for number in range(NUM_ENVS)]
    assert (ledger.stale, ledger.lost) == (stale, sum(ended) - len(seen))


def test_a_result_of_an_episode_before_the_newest_is_late_even_if_it_never_came() -> None:
    ledger = ResultLedger(1)
    assert ledger.take([receipt(result(0, 2))]) == [result(0, 2)]
    assert ledger.lost == 2
    assert ledger.take([receipt(result(0, 1))]) == []
    assert (ledger.stale, ledger.lost) == (1, 2)


def test_with_more_envs_the_new_ones_begin_with_their_first_episodes() -> None:
    ledger, wider, narrower = ResultLedger(2), ResultLedger(3), ResultLedger(1)
    ledger.take([receipt(result(0, 0), result(1, 0))])
    for other in (wider, narrower):
        other.load_state(ledger.state())
    assert wider.take([receipt(result(0, 0), result(1, 1), result(2, 0))]) == [result(1, 1), result(2, 0)]
    assert narrower.take([receipt(result(0, 0), result(0, 1))]) == [result(0, 1)]


# -- the dealer -----------------------------------------------------------------------------------------------------

AGENTS = ("left", "right")


class Told(mf.RandomSeats):
    """Random seats; remembers its results, and fails at a lost game."""

    def __init__(self) -> None:
        super().__init__(["main"])
        self.told: list[list[EpisodeResult]] = []

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        if any(min(one.returns.values(), default=0.0) < 0 for one in results):
            raise ValueError("a sore loser")
        self.told.append(list(results))


def dealer_of(matchmaker: Told) -> Dealer:
    return Dealer(matchmaker, AllowedSeats(AGENTS, {"main": AGENTS}), NUM_ENVS, seed=1)


def test_a_matchmaker_is_told_what_ended_in_a_round_by_all_workers_at_once_and_only_then() -> None:
    matchmaker = Told()
    dealer = dealer_of(matchmaker)
    dealer.record_receipts([receipt(result(3, 0, 9), worker=1), receipt(result(0, 0, 9), result(1, 0, 4))])
    dealer.record_receipts([receipt(), receipt(worker=1)])
    other_matchmaker = Told()
    other = dealer_of(other_matchmaker)
    other.load_state(from_bytes(to_bytes(dealer.state())))
    for one in (dealer, other):
        one.record_receipts([receipt(result(0, 1, 2), result(3, 0, 3))])
    assert matchmaker.told == [[result(1, 0, 4), result(0, 0, 9), result(3, 0, 9)], [result(0, 1, 2)]]
    assert other_matchmaker.told == [[result(0, 1, 2)]]
    assert (dealer.results.stale, other.results.stale) == (1, 1)
    assert other.state() == {**dealer.state(), "score_s": other.score_s}


def test_a_matchmaker_that_fails_at_a_result_is_named() -> None:
    lost = EpisodeResult(0, 0, 5, {"left": -1.0})
    with pytest.raises(mf.MatchmakerFailed) as caught:
        dealer_of(Told()).record_receipts([receipt(lost)])
    assert caught.value.where == "matchmaker Told, observe"
    assert caught.value.reason == "it raised ValueError: a sore loser"
    first_line = caught.value.user_traceback.splitlines()[1]
    assert __file__ in first_line


def test_results_are_of_no_matter_to_other_matchmakers() -> None:
    dealer = Dealer(mf.RandomSeats(["main"]), AllowedSeats(AGENTS, {"main": AGENTS}), NUM_ENVS, seed=1)
    dealer.record_receipts([receipt(result(0, 0), result(0, 2, 3))])
    assert dealer.results.lost == 1


class Resetting(Told):
    """Asks for one reset of `main`."""

    asks = False

    def __call__(self, episode: object, agents: Sequence[str], generator: object) -> dict[str, str]:
        return dict.fromkeys(agents, "main" if episode.env else "other")  # type: ignore[attr-defined]

    def reset_policies(self) -> list[str]:
        return ["main"]

    def resets(self) -> list[mf.Reset]:
        asks, self.asks = self.asks, False
        return [mf.Reset("main", "fresh")] if asks else []


def test_a_running_episode_of_a_policy_that_is_reset_is_stale_and_all_others_count() -> None:
    matchmaker = Resetting()
    dealer = Dealer(matchmaker, AllowedSeats(AGENTS, dict.fromkeys(("main", "other"), AGENTS)), NUM_ENVS, seed=1)
    dealer.deal(1)
    dealer.record_receipts([replace(receipt(), next_episodes=dict.fromkeys(range(NUM_ENVS), 1))])
    matchmaker.asks = True
    assert dealer.renew({}, {}, {}) == [mf.Reset("main", "fresh")]
    dealer.record_receipts([receipt(result(0, 0), result(1, 0))])  # `other` plays environment 0, `main` the next
    dealer.record_receipts([receipt(result(1, 1))])
    assert matchmaker.told == [[result(0, 0)], [result(1, 1)]]
    assert (dealer.results.stale, dealer.results.lost) == (1, 0)
