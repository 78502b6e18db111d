import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.categorical import log_prob_and_entropy, sample
from tests.policy.row_random import row_random

LARGEST = 1.0 - 2.0**-53
LOGITS = arrays.arrays(np.float32, (6, 4), elements=st.floats(-80.0, 80.0, width=32))
MASKS = arrays.arrays(np.bool_, (6, 4)).map(lambda mask: mask | ~mask.any(1, keepdims=True))
UNIFORM = arrays.arrays(np.float64, 6, elements=st.sampled_from([0.0, 2.0**-53, 0.25, 0.5, 0.99, LARGEST]))


def naive_probabilities(logits: list[float], mask: list[bool]) -> list[float]:
    highest = max(x for x, legal in zip(logits, mask, strict=True) if legal)
    weights = [math.exp(x - highest) if legal else 0.0 for x, legal in zip(logits, mask, strict=True)]
    return [weight / sum(weights) for weight in weights]


@given(LOGITS, MASKS, UNIFORM)
def test_sampling_is_the_inverse_of_the_naive_distribution(logits, mask, uniform) -> None:
    action, logp = sample(logits, mask, uniform)
    for row, (chosen, u) in enumerate(zip(action, uniform, strict=True)):
        probabilities = naive_probabilities(logits[row].astype(float).tolist(), mask[row].tolist())
        assert mask[row, chosen]
        cumulative = np.cumsum(probabilities)
        assert cumulative[chosen] - probabilities[chosen] - 1e-5 <= u <= cumulative[chosen] + 1e-5
        assert logp[row] == pytest.approx(math.log(max(probabilities[chosen], 1e-300)), abs=1e-3)
    assert (action.dtype, logp.dtype) == (np.int64, np.float32)


@given(LOGITS, MASKS)
def test_greedy_takes_the_likeliest_legal_action(logits, mask) -> None:
    action, _ = sample(logits, mask, None)
    expected = [max(np.flatnonzero(mask[row]), key=lambda a: logits[row, a]) for row in range(len(mask))]
    assert action.tolist() == expected


@given(LOGITS, MASKS, st.integers(0, 10))
def test_learner_and_actor_agree_on_log_probabilities(logits, mask, seed) -> None:
    action, logp = sample(logits, mask, np.random.default_rng(seed).random(6))
    trained, _ = log_prob_and_entropy(torch.from_numpy(logits), torch.from_numpy(action), torch.from_numpy(mask))
    np.testing.assert_allclose(trained.numpy(), logp, atol=2e-5)


@given(LOGITS, MASKS)
def test_entropy_and_its_gradient_are_finite_and_leave_illegal_actions_out(logits, mask) -> None:
    leaf = torch.from_numpy(logits).requires_grad_()
    action = torch.from_numpy(mask.argmax(1))
    logp, entropy = log_prob_and_entropy(leaf, action, torch.from_numpy(mask))
    for row in range(6):
        p = [x for x in naive_probabilities(logits[row].astype(float).tolist(), mask[row].tolist()) if x > 0.0]
        assert entropy[row].item() == pytest.approx(-sum(x * math.log(x) for x in p), abs=1e-4)
    (logp.sum() + entropy.sum()).backward()
    assert leaf.grad is not None
    assert bool(torch.isfinite(leaf.grad).all())
    assert not leaf.grad.numpy()[~mask].any()


def test_a_row_without_a_legal_action_and_a_diverged_network_are_errors() -> None:
    with pytest.raises(mf.MarlflowError, match="no legal action"):
        sample(np.zeros((2, 2), np.float32), np.array([[True, True], [False, False]]), np.zeros(2))
    with pytest.raises(mf.MarlflowError, match="not finite"):
        sample(np.full((1, 2), np.nan, np.float32), None, np.zeros(1))


def test_frequencies_are_the_probabilities() -> None:
    logits = np.log(np.array([0.1, 0.2, 0.7], np.float32))
    uniform = row_random(20_000).uniform()
    action, _ = sample(np.tile(logits, (20_000, 1)), None, uniform)
    np.testing.assert_allclose(np.bincount(action) / 20_000, [0.1, 0.2, 0.7], atol=0.01)


def test_published_weights_act_alike() -> None:
    seen = Spaces(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(4))
    one, other = (ActorCritic(seen, mf.MLP(), mf.MLP(), seed=seed).actor for seed in (1, 2))
    obs = np.random.default_rng(0).standard_normal((50, 3)).astype(np.float32)
    generators = [row_random(50) for _ in range(3)]
    expected = one.act(obs, None, "kept", "explore", generators[0])
    assert not np.array_equal(other.act(obs, None, None, "explore", generators[1]).behavior_logp, expected[1])
    published = one.flat()
    published.flags.writeable = False
    other.load_flat(published)
    found = other.act(obs, None, "kept", "explore", generators[2])
    for before, after in zip(expected, found, strict=True):
        assert np.array_equal(before, after)
    with pytest.raises(mf.WeightsMismatch, match="expected a flat vector of"):
        other.load_flat(published[1:])
