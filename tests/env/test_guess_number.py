"""Guessing numbers: replies, ends and the best return, against plain loops and all strategies."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from marlflow.env.games.guess_number import RIGHT, TOO_HIGH, TOO_LOW, parallel_env


def best_return(numbers: int, guesses: int) -> float:
    """Return the best expected return of a game of these many numbers and guesses, by dynamic programming."""
    # Entry n: the least expected number of wrong guesses, times n, if n numbers are possible.
    cost = [0.0] * (numbers + 1)
    for _ in range(guesses):
        cost = [
            min((cost[low] + cost[n - 1 - low] + n - 1 for low in range(n)), default=0.0) for n in range(numbers + 1)
        ]
    return -cost[numbers] / numbers


def tokens_of(number: int, letters: int, length: int) -> list[int]:
    return [number // letters**place % letters for place in reversed(range(length))]


def played(env: Any, seed: int, choose: Any) -> tuple[list[int], list[int], float]:
    """Play one episode; return guesses and replies as shown, and the return."""
    observations, _ = env.reset(seed=seed)
    guesses, replies, gained = list[int](), list[int](), 0.0
    while env.agents:
        guess = choose(guesses, replies)
        for place, token in enumerate(tokens_of(guess, 2, 3)):
            shown = observations["guesser_0"]["utterance"]
            assert shown.tolist() == [t + 1 for t in tokens_of(guess, 2, 3)[:place]] + [0] * (3 - place)
            assert env.observation_space("guesser_0").contains(observations["guesser_0"])
            observations, rewards, terminations, truncations, _ = env.step({"guesser_0": token})
            assert not truncations["guesser_0"]
            assert terminations["guesser_0"] == (not env.agents)
            if place < 2:
                assert (rewards["guesser_0"], env.agents) == (0.0, ["guesser_0"])
        gained += rewards["guesser_0"]
        guesses.append(guess)
        conversation = observations["guesser_0"]["conversation"].reshape(-1, 4)
        assert conversation[len(guesses) - 1, :3].tolist() == [t + 1 for t in tokens_of(guess, 2, 3)]
        assert not conversation[len(guesses) :].any()
        replies.append(int(conversation[len(guesses) - 1, 3]))
        assert rewards["guesser_0"] == (0.0 if replies[-1] == RIGHT else -1.0)
    return guesses, replies, gained


def bisection(guesses: list[int], replies: list[int]) -> int:
    low, high = 0, 7
    for guess, reply in zip(guesses, replies, strict=True):
        low, high = (low, guess - 1) if reply == TOO_HIGH else (guess + 1, high)
    return (low + high) // 2


def test_replies_are_true_and_bisection_has_the_best_return() -> None:
    found: dict[int, float] = {}
    for seed in range(200):
        guesses, replies, gained = played(parallel_env(), seed, bisection)
        secret = guesses[-1]
        assert replies == [RIGHT if g == secret else TOO_HIGH if g > secret else TOO_LOW for g in guesses]
        assert found.setdefault(secret, gained) == gained
    assert len(found) == 8
    assert sum(found.values()) / 8 == best_return(8, 4) == -1.625


def test_who_is_never_right_terminates_after_the_last_guess() -> None:
    for seed in range(30):
        guesses, replies, gained = played(parallel_env(), seed, lambda guesses, replies: 7 * (len(guesses) % 2))
        assert (len(guesses), gained) == (4, -4.0) if RIGHT not in replies else replies[-1] == RIGHT


@pytest.mark.parametrize(("numbers", "guesses"), [(1, 1), (4, 2), (5, 3), (8, 3), (8, 4), (9, 2)])
def test_the_best_return_is_that_of_all_strategies(numbers: int, guesses: int) -> None:
    @cache
    def wrong(low: int, high: int, left: int) -> int:
        # The least sum of wrong guesses over the numbers low to high.
        if not left or low > high:
            return 0
        rest = high - low
        return min(wrong(low, g - 1, left - 1) + wrong(g + 1, high, left - 1) + rest for g in range(low, high + 1))

    assert best_return(numbers, guesses) == pytest.approx(-wrong(0, numbers - 1, guesses) / numbers)


def test_a_guess_may_stop_early() -> None:
    env = parallel_env(may_stop=True)
    for seed in range(20):
        env.reset(seed=seed)
        env.step({"guesser_0": 1})
        observations, rewards, *_ = env.step({"guesser_0": 2})  # "1", which is 100, the number 4
        shown = observations["guesser_0"]["conversation"].reshape(-1, 4)[0]
        assert shown[:3].tolist() == [2, 3, 0]
        assert (shown[3] == RIGHT) == (rewards["guesser_0"] == 0.0) == (not env.agents)
        assert not observations["guesser_0"]["utterance"].any()


def test_agents_guess_numbers_of_their_own() -> None:
    env, ended = parallel_env(2), set()
    for seed in range(40):
        env.reset(seed=seed)
        for token in (0, 1, 1):
            env.step(dict.fromkeys(env.agents, token))
        ended.add(tuple(env.agents))
    assert len(ended) >= 3
    with pytest.raises(ValueError, match="letters=1 at least 2"):
        parallel_env(letters=1)


def test_guesses_at_random() -> None:
    random = np.random.default_rng(0)
    returns = [played(parallel_env(), seed, lambda *_: int(random.integers(8)))[2] for seed in range(3000)]
    expected = -sum((7 / 8) ** (k + 1) for k in range(4))
    assert expected == pytest.approx(-2.897, abs=1e-3)
    assert np.mean(returns) == pytest.approx(expected, abs=0.1)
