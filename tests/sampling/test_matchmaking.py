"""Matchups as the driver deals them: once per episode, in order, the same however the environments are spread."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import ConfigInvalid, MatchmakerFailed
from marlflow.base.spaces import Spaces
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.matchmaking.dealer import Dealer, DealtWorkers
from marlflow.matchmaking.matchmakers import AllowedSeats, EpisodeId, Matchmaker, RandomSeats, deal_one
from marlflow.policy.scripted import RandomActor
from marlflow.sampling.protocol import EvaluationRequest, Request, Round
from marlflow.sampling.receipts import EpisodeResult, Evaluated, Receipt
from tests.sampling.workers import rollout_worker
from tests.sentences import refusals

AGENTS = ("left", "right")
SEATS = AllowedSeats(AGENTS, {"main": AGENTS, "rival": AGENTS, "lefty": ("left",)})


class Asked(Matchmaker):
    """Assigns policies by a counter of its calls, so that each answer differs."""

    def __init__(self) -> None:
        self.episodes: list[EpisodeId] = []

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        self.episodes.append(episode)
        first = len(self.episodes) % 2 == 0
        return dict(zip(agents, ("main", "rival") if first else ("rival", "main"), strict=True))


def receipt(following: Mapping[int, int], lengths: Sequence[int] = (), worker: int = 0) -> Receipt:
    ended = tuple(EpisodeResult(0, number, length, {}) for number, length in enumerate(lengths))
    return Receipt(worker, 0, 0, ended, {}, 0, 0.0, 0.0, 0.0, next_episodes=following)


# -- the dealer -----------------------------------------------------------------------------------------------------


@st.composite
def collects(draw: st.DrawFn) -> tuple[int, list[tuple[int, list[int], list[int]]]]:
    """Number of envs, and per collect its ticks, how many of its matchups each env begins, and lengths of episodes."""
    num_envs = draw(st.integers(1, 4))
    begun = st.lists(st.integers(0, 6), min_size=num_envs, max_size=num_envs)
    one = st.tuples(st.integers(1, 12), begun, st.lists(st.integers(1, 9), max_size=3))
    return num_envs, draw(st.lists(one, max_size=8))


@given(collects())
def test_every_episode_is_asked_for_once_and_gets_what_was_dealt_for_it(drawn: Any) -> None:
    num_envs, rounds = drawn
    asked = Asked()
    dealer = Dealer(asked, SEATS, num_envs, seed=1)
    following = dict.fromkeys(range(num_envs), 0)
    dealt_for: dict[EpisodeId, Any] = {}
    for ticks, begun, lengths in rounds:
        dealt = dealer.deal(ticks)
        assert list(dealt) == list(range(num_envs))
        for env_index, matchups in dealt.items():
            for offset, matchup in enumerate(matchups):
                episode = EpisodeId(env_index, following[env_index] + offset)
                assert dealt_for.setdefault(episode, matchup) is matchup
            following[env_index] += min(begun[env_index], len(matchups))
        dealer.record_receipts([receipt(following, lengths)])
    assert len(asked.episodes) == len(set(asked.episodes)) == len(dealt_for)
    for env_index in range(num_envs):
        numbers = [episode.episode for episode in asked.episodes if episode.env == env_index]
        assert numbers == list(range(len(numbers)))


@given(st.integers(1, 40), st.lists(st.integers(1, 15), min_size=1, max_size=60), st.integers(0, 14))
def test_envs_have_a_matchup_for_each_reset_if_no_episode_is_shorter_than_the_shortest_so_far(
    ticks: int, lengths: list[int], age: int
) -> None:
    dealer = Dealer(RandomSeats(["main", "rival"]), SEATS, num_envs=1, seed=1)
    dealer.record_receipts([receipt({0: 0}, lengths)])
    shortest, resets = min(lengths), 0
    # The worst case: the present episode, of any age, ends at once, and all that follow are as short as any was.
    left = max(1, shortest - age)
    for _ in range(ticks):
        left -= 1
        if left == 0:
            resets += 1
            left = shortest
    assert len(dealer.deal(ticks)[0]) >= resets


def test_before_any_episode_has_ended_each_env_step_may_end_one() -> None:
    dealer = Dealer(RandomSeats(["main", "rival"]), SEATS, num_envs=2, seed=1)
    assert [len(matchups) for matchups in dealer.deal(7).values()] == [7, 7]
    dealer.record_receipts([receipt({0: 3}, [4, 9]), receipt({1: 0}, [6], worker=1)])
    assert [len(matchups) for matchups in dealer.deal(9).values()] == [3, 3]
    dealer.record_receipts([receipt({0: 3, 1: 0}, [3])])
    assert [len(matchups) for matchups in dealer.deal(7).values()] == [3, 3]


@given(st.integers(0, 2**40), st.integers(1, 5), st.integers(1, 9))
def test_what_is_dealt_depends_on_seed_env_and_episode_alone(seed: int, num_envs: int, ticks: int) -> None:
    matchmaker = RandomSeats(["main", "rival"])
    together = Dealer(matchmaker, SEATS, num_envs, seed).deal(ticks)
    by_one = Dealer(matchmaker, SEATS, num_envs, seed)
    for episode in range(ticks):
        piece = by_one.deal(1)
        for env_index in range(num_envs):
            assert piece[env_index][0] == together[env_index][episode]
            assert piece[env_index][0] == deal_one(matchmaker, SEATS, EpisodeId(env_index, episode), seed)
        by_one.record_receipts([receipt(dict.fromkeys(range(num_envs), episode + 1))])


def test_evaluation_has_episodes_of_its_own_which_are_the_same_each_time() -> None:
    dealer = Dealer(RandomSeats(["main", "rival"]), SEATS, num_envs=1, seed=5)
    dealt = dealer.deal_evaluation(range(40))
    assert dealt == dealer.deal_evaluation(range(40))
    assert dealt != dealer.deal(40)[0]
    assert dealt[7:9] == dealer.deal_evaluation(range(7, 9))


def test_equal_matchups_travel_once() -> None:
    dealt = Dealer(RandomSeats(["main", "rival"]), SEATS, num_envs=8, seed=1).deal(50)
    assert len({id(matchup) for matchups in dealt.values() for matchup in matchups}) == 2
    assert len(pickle.dumps(dealt)) < 4 * 8 * 50


# -- what can be wrong ----------------------------------------------------------------------------------------------


def told(matchup: Any) -> str:
    def strange(episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Any:
        return matchup

    with pytest.raises(MatchmakerFailed) as caught:
        Dealer(strange, SEATS, num_envs=1, seed=1).deal(1)
    where = caught.value.where
    assert where.startswith("matchmaker told.<locals>.strange, ")
    assert where.endswith("env 0, episode 0")
    return caught.value.reason


@pytest.mark.parametrize(
    ("matchup", "reason"),
    [
        (None, "it dealt None, not a mapping {agent: policy}"),
        ({"left": "main"}, "it seated no policy as agent 'right'"),
        (
            {"left": "main", "right": "main", "rigth": "main"},
            "it seated agent 'rigth', which does not exist; did you mean 'right'?",
        ),
        (
            {"left": "main", "right": "rivl"},
            "it seated 'rivl' as agent 'right', and there is no such policy; did you mean 'rival'?",
        ),
        (
            {"left": "main", "right": ["main"]},
            "it seated ['main'] as agent 'right', and there is no such policy; did you mean 'main'?",
        ),
        (
            {"left": "main", "right": "lefty"},
            "it seated policy 'lefty' as agent 'right', but the policy has the spaces of left",
        ),
        (
            {"left": "zzz"},
            "it seated 'zzz' as agent 'left', and there is no such policy; the policies are main, rival, lefty; "
            "it seated no policy as agent 'right'",
        ),
    ],
)
def test_a_matchup_that_cannot_be_played_is_named_with_its_episode(matchup: Any, reason: str) -> None:
    assert told(matchup) == reason


def test_what_a_matchmaker_raises_is_shown_with_its_own_lines_only() -> None:
    def breaks(episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> Mapping[str, str]:
        raise KeyError(f"no opponent for {episode.episode}")

    with pytest.raises(MatchmakerFailed) as caught:
        Dealer(breaks, SEATS, num_envs=1, seed=1).deal_evaluation([3])
    assert caught.value.where.endswith("breaks, evaluation, episode 3")
    assert caught.value.reason == "it raised KeyError: 'no opponent for 3'"
    first, second, *_ = caught.value.user_traceback.splitlines()
    assert first == "Traceback (most recent call last):"
    assert __file__ in second


# -- seats at random ------------------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.integers(1, 12), st.integers(0, 2**32))
def test_all_are_seated_as_often_as_each_other(policies: int, agents: int, seed: int) -> None:
    names = [f"policy_{number}" for number in range(policies)]
    seats = RandomSeats(names)(EpisodeId(0, 0), [f"agent_{n}" for n in range(agents)], np.random.default_rng(seed))
    assert list(seats) == [f"agent_{number}" for number in range(agents)]
    counts = [list(seats.values()).count(name) for name in names]
    assert max(counts) - min(counts) <= 1


def test_every_order_of_seats_is_as_likely() -> None:
    generator, counts = np.random.default_rng(1), dict[tuple[str, ...], int]()
    for _ in range(3_000):
        order = tuple(RandomSeats(["a", "b", "c"])(EpisodeId(0, 0), ["x", "y", "z"], generator).values())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    # Chi-squared with 5 degrees of freedom exceeds 20.5 once in a thousand; the generator's seed is fixed.
    assert sum((count - 500) ** 2 / 500 for count in counts.values()) < 20.5


@pytest.mark.parametrize(
    ("policies", "problem"),
    [
        ([], "policies is empty; name the policies to assign"),
        (["a", "b", "a"], "policies has 'a' more than once; name each one once"),
    ],
)
def test_seats_are_for_policies_that_are_named_once(policies: list[str], problem: str) -> None:
    assert refusals(ConfigInvalid, RandomSeats, policies) == [problem]


# -- with workers ---------------------------------------------------------------------------------------------------


class Played:
    """Workers of one environment that begin two episodes in each collect."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self.evaluated: Any = None
        self.under_way = 0

    async def collect(self, request: Request, assign: Any = None) -> Round:
        await asyncio.sleep(0)
        request = assign(request, [0])
        assert request.matchups is not None
        self.begun += request.matchups[0][:2]
        return Round(request.round, [receipt({0: len(self.begun)}, [1])], [])

    async def collect_next(self, request: Request | None, assign: Any = None) -> Round:
        raise AssertionError("matchups are dealt in rounds")

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        self.evaluated = request.matchups
        return Evaluated(())


def test_each_collect_begins_where_the_last_one_ended() -> None:
    workers, matchmaker = Played(), RandomSeats(["main", "rival"])
    dealt = DealtWorkers(workers, Dealer(matchmaker, SEATS, num_envs=1, seed=9), ticks=5)
    for number in range(10):
        assert asyncio.run(dealt.collect(Request(number, {}, {}))).number == number
    assert workers.begun == [deal_one(matchmaker, SEATS, EpisodeId(0, episode), 9) for episode in range(20)]
    asyncio.run(dealt.evaluate(EvaluationRequest(range(3), {})))
    assert len(workers.evaluated) == 3


def test_reward_after_an_agents_end_is_counted_for_who_played_it_in_that_episode() -> None:
    class Tip(CartPoleTeam):
        """Two env steps; in the second `cart_1`, which ended in the first, still receives 5."""

        def step(self, actions: dict[str, int]) -> Any:
            seen, rewards, terminations, truncations, infos = super().step(actions)
            if self._cycles == 1:
                terminations["cart_1"], self.agents = True, ["cart_0"]
            else:
                rewards["cart_1"] = 5.0
            return seen, rewards, terminations, truncations, infos

    actors = {name: RandomActor(Discrete(2)) for name in ("x", "y")}
    space = CartPoleTeam(2).observation_space("cart_0")
    worker = rollout_worker(
        lambda: Tip(2, max_cycles=2),
        [0],
        None,
        actors,
        seed=0,
        spaces=dict.fromkeys(actors, Spaces(space, Discrete(2))),
    )
    seated = {"cart_0": "x", "cart_1": "y"}, {"cart_0": "y", "cart_1": "x"}
    receipt, _ = worker.collect(3, Request(matchups={0: [*seated, seated[0]]}))
    assert [episode.matchup for episode in receipt.episodes] == [seated[0]]
    assert {name: made.reward_unattributed for name, made in receipt.policies.items()} == {"x": 0.0, "y": 5.0}
