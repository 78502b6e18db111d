"""Utterances of a batch of tokens, and their advantages, against plain loops over the conversations."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.batches.utterances import UtteranceLayout, utterance_layout
from marlflow.replay.utterances import UtteranceReplay
from tests.algorithms.conversations import LENGTH, SPACES, Decision, batch_of, fragments, rows, seen, segments_of

DISCOUNT = 0.9
WEIGHTS = np.random.default_rng(0).standard_normal((4, SPACES.obs_shape[0]))

end_tokens = st.sampled_from([None, 1])


def replay(layout: UtteranceLayout, capacity: int = 100) -> UtteranceReplay:
    return UtteranceReplay(layout, capacity, DISCOUNT, 0, "replay")


class Critics:
    """Values that are linear in what is seen."""

    def q(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(WEIGHTS[:2].astype(np.float32)) @ obs.T

    def v(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(WEIGHTS[2:].astype(np.float32)) @ obs.T


def learner(layout: UtteranceLayout, updates: int = 0) -> Any:
    module = SimpleNamespace(layout=layout, critics=Critics())
    return SimpleNamespace(module=module, device=torch.device("cpu"), updates=updates, version=3)


def whole(decision: Decision) -> list[int]:
    """What was said with this token, the last of its utterance."""
    return [*decision.said, decision.action]


@given(st.data())
def test_utterances_are_those_of_a_plain_loop(data: st.DataObject) -> None:
    end_token = data.draw(end_tokens)
    segments = segments_of(*data.draw(fragments(end_token)))
    if not segments:
        return
    layout = utterance_layout(SPACES, end_token)
    made = mf.NStep(1, DISCOUNT)(mf.Utterances()(batch_of(segments), replay(layout)))
    expected, lengths = [], []
    for *_, segment in segments:
        ended = [decision for decision in segment if decision.ends_utterance]
        lengths += [len(ended)] if ended else []
        for decision in ended:
            after = float(decision.after["context"][0])
            factor = 0.0 if decision.terminated else DISCOUNT
            expected.append((decision.context, whole(decision), decision.reward, factor, after))
    assert made.segments["length"].tolist() == lengths
    assert made.rows == len(expected)
    lasts = np.cumsum(lengths) - 1
    for row, (context, said, reward, factor, after) in enumerate(expected):
        np.testing.assert_array_equal(made["obs"][row], rows([seen(context, [])])[0])
        assert made["action"][row].tolist() == [token + 1 for token in said] + [0] * (LENGTH - len(said))
        assert made["window_reward"][row] == np.float32(reward)
        assert made["window_discount"][row] == np.float32(factor)
        if factor:
            is_last = row in lasts
            following = made.segments["bootstrap_obs"][np.searchsorted(lasts, row)] if is_last else made["obs"][row + 1]
            np.testing.assert_array_equal(following, rows([seen(after, [])])[0])
    store = replay(layout)
    inserted = mf.Insert()(made, store)
    assert (inserted.rows, inserted.stored) == (len(expected), len(expected))


@given(st.data())
def test_tokens_have_the_advantage_of_their_utterance_as_in_a_plain_loop(data: st.DataObject) -> None:
    end_token = data.draw(end_tokens)
    segments = segments_of(*data.draw(fragments(end_token)))
    if not segments:
        return
    batch, layout = batch_of(segments), utterance_layout(SPACES, end_token)
    estimated = mf.UtteranceAdvantage()(batch, learner(layout))
    expected = list[tuple[Array, float, float]]()
    lengths = list[int]()
    for lane, episode, first, segment in segments:
        # The trajectory from this segment on, as far as the batch has it.
        later = {
            start + k: decision
            for other, number, start, part in segments
            if (other, number) == (lane, episode)
            for k, decision in enumerate(part)
        }
        kept = 0
        for k, decision in enumerate(segment):
            moment = first + k
            while moment in later and not later[moment].ends_utterance:
                moment += 1
            if moment in later:
                shown, silent = rows([seen(decision.context, whole(later[moment])), seen(decision.context, [])])
                q, v = min(WEIGHTS[:2] @ shown), min(WEIGHTS[2:] @ silent)
                expected.append((rows([seen(decision.context, decision.said)])[0], q, v))
                kept += 1
        lengths += [kept] if kept else []
    assert estimated.segments["length"].tolist() == lengths
    np.testing.assert_array_equal(
        estimated["obs"], np.array([obs for obs, *_ in expected]).reshape(-1, *SPACES.obs_shape)
    )
    for name, values in {
        "value_target": [q for _, q, _ in expected],
        "value": [v for *_, v in expected],
        "advantage": [q - v for _, q, v in expected],
    }.items():
        np.testing.assert_allclose(estimated[name], values, rtol=1e-4, atol=1e-5)
    assert set(estimated.segments["estimated_by"].tolist()) <= {3}


def test_the_actor_waits_for_the_critics_and_gets_no_rows() -> None:
    layout = utterance_layout(SPACES, None)
    tokens = [Decision(0.5, [0] * k, 0, float(k == 2), k == 2, after=seen(0.5, [0] * ((k + 1) % 3))) for k in range(3)]
    batch = batch_of([(0, 0, 0, tokens)])
    assert mf.UtteranceAdvantage(10)(batch, learner(layout, updates=9)).rows == 0
    assert mf.UtteranceAdvantage(10)(batch, learner(layout, updates=10)).rows == 3


def broken(change: str) -> list[Decision]:
    tokens = [Decision(0.5, [0] * k, 0, float(k == 2), k == 2, after=seen(0.5, [0] * ((k + 1) % 3))) for k in range(3)]
    if change == "reward":
        tokens[1].reward = 1.0
    elif change == "shown":
        tokens[1].said = [1]
    elif change == "context":
        tokens[1].context = 0.25
    elif change == "gap":
        tokens[0].said = [-1, 0]
    elif change == "bootstrap":
        tokens = tokens[:2]
        tokens[1].after = seen(0.5, [])
    return tokens


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("reward", "a reward came before the end of an utterance"),
        ("shown", r"shows \[2, 0, 0\] where \[1, 0, 0\] was expected; set end_token"),
        ("context", "an observation changes while an utterance is said"),
        ("gap", "has a token after a 0"),
        ("bootstrap", r"shows \[0, 0, 0\] where \[1, 1, 0\] was expected"),
    ],
)
def test_conversations_that_break_the_rules_are_refused(change: str, sentence: str) -> None:
    with pytest.raises(mf.InvalidInput, match=sentence):
        mf.Utterances()(batch_of([(0, 0, 0, broken(change))]), replay(utterance_layout(SPACES, None)))


def test_a_batch_without_a_whole_utterance_stores_nothing() -> None:
    layout = utterance_layout(SPACES, None)
    store = replay(layout)
    half = [Decision(0.5, [], 0, 0.0, ends_utterance=False, after=seen(0.5, [0]))]
    made = mf.NStep(1, DISCOUNT)(mf.Utterances()(batch_of([(0, 0, 0, half)]), store))
    assert (made.rows, mf.Insert()(made, store).stored) == (0, 0)
    with pytest.raises(mf.InvalidInput, match="no utterance has ended in the first batch: raise batch_agent_steps"):
        store.draw(1)
