"""A message arrives token by token, only the speaker sees the class, and both are paid if the listener names it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest

from marlflow.base.arrays import Array
from marlflow.env.games import token_signal
from marlflow.env.games.token_signal import LISTENER, SPEAKER, TokenSignal


def played(env: TokenSignal, seed: int, message: Sequence[int], named: int) -> tuple[int, list[Array], Array, float]:
    """Return the class, what the speaker saw at each decision, what the listener saw, and what both were paid."""
    env.reset(seed=seed)
    seen: list[Array] = []
    paid = {SPEAKER: 0.0, LISTENER: 0.0}
    for token in message:
        assert env.agent_selection == SPEAKER
        seen.append(env.observe(SPEAKER))
        env.step(token)
        assert not any(env.terminations.values())
        assert set(env.rewards.values()) == {0.0}
    assert env.agent_selection == LISTENER
    heard = env.observe(LISTENER)
    env.step(named)
    assert env.terminations == {SPEAKER: True, LISTENER: True}
    assert not any(env.truncations.values())
    for agent in env.agent_iter():
        observation, reward, *_ = env.last()
        assert env.observation_space(agent).contains(observation)
        paid[agent] += reward
        env.step(None)
    assert env.agents == []
    assert paid[SPEAKER] == paid[LISTENER]
    return int(seen[0][0]), seen, heard, paid[SPEAKER]


def test_the_listener_hears_the_message_alone_and_both_are_paid_once_if_it_names_the_class() -> None:
    env, message = token_signal.env(num_classes=3, vocabulary_size=4, length=3), (3, 0, 2)
    classes = set()
    for seed, named in product(range(20), range(3)):
        prompt, seen, heard, paid = played(env, seed, message, named)
        # 0 is padding, then come the tokens of the vocabulary, then those of the classes.
        assert prompt in range(5, 8)
        prefixes = [[prompt, 0, 0, 0], [prompt, 4, 0, 0], [prompt, 4, 1, 0]]
        np.testing.assert_array_equal(seen, prefixes)
        np.testing.assert_array_equal(heard, [4, 1, 3])
        assert paid == float(named == prompt - 5)
        classes.add(prompt)
    assert classes == {5, 6, 7}


def test_a_code_is_always_right_and_silence_is_right_by_chance() -> None:
    env = token_signal.env()
    right = []
    for seed in range(400):
        env.reset(seed=seed)
        shown = int(env.observe(SPEAKER)[0]) - 9
        assert played(env, seed, (shown, 0, 0, 0), shown)[-1] == 1.0
        right.append(played(env, seed, (0, 0, 0, 0), 3)[-1])
    # Four standard deviations of the mean of 400 with chance 1/8.
    assert np.mean(right) == pytest.approx(1 / 8, abs=4 * np.sqrt(1 / 8 * 7 / 8 / 400))


def test_a_seed_gives_the_same_classes_in_the_episodes_after_it_too() -> None:
    def classes() -> list[int]:
        env, drawn = token_signal.env(), []
        for seed in (7, *[None] * 30):
            env.reset(seed=seed)
            drawn.append(int(env.observe(SPEAKER)[0]))
        return drawn

    assert classes() == classes()
    assert len(set(classes())) == 8


@pytest.mark.parametrize("action", [8, -1, None])
def test_an_action_outside_its_space_is_refused(action: int | None) -> None:
    env = token_signal.env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"speaker_0 acts in Discrete\(8\), not by"):
        env.step(action)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"num_classes": 1}, "at least 2 classes"),
        ({"length": 0}, "messages of 1 token"),
        ({"num_classes": 9, "length": 1}, "cannot tell 9 classes apart; raise length or vocabulary_size"),
    ],
)
def test_games_that_cannot_be_played_are_refused(arguments: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        token_signal.env(**arguments)
