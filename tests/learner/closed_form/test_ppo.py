import numpy as np
import pytest
import torch
from torch import Tensor

from marlflow.learner.closed_form.ppo import PPORows, ppo_gradient
from marlflow.losses import ppo
from marlflow.policy.categorical import log_prob_and_entropy


def minibatch(seed: int, masked: bool) -> tuple[Tensor, Tensor, PPORows]:
    rng = np.random.default_rng(seed)
    rows, actions = 37, 5
    mask = rng.random((rows, actions)) < 0.5
    action = rng.integers(0, actions, rows)
    mask[np.arange(rows), action] = True
    columns = rng.standard_normal((4, rows)).astype(np.float32)
    logits = torch.from_numpy(2.0 * rng.standard_normal((rows, actions))).float().requires_grad_()
    value = torch.from_numpy(rng.standard_normal(rows)).float().requires_grad_()
    return logits, value, PPORows(action, columns[0] - 1.5, *columns[1:], mask if masked else None)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("value_clip_range", [None, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_closed_form_equals_autograd(seed: int, value_clip_range: float | None, masked: bool) -> None:
    logits, value, rows = minibatch(seed, masked)
    terms, by_logits, by_value = ppo_gradient(
        logits.detach().numpy(),
        value.detach().numpy(),
        rows,
        clip_range=0.2,
        value=0.5,
        entropy=0.05,
        value_clip_range=value_clip_range,
    )

    action, behavior_logp, advantage, target, behavior_v = (torch.from_numpy(column) for column in rows[:5])
    mask = None if rows.mask is None else torch.from_numpy(rows.mask)
    logp, entropy = log_prob_and_entropy(logits, action, mask)
    policy = ppo.clipped_surrogate_loss(logp, behavior_logp, advantage, 0.2).mean()
    if value_clip_range is None:
        values = ppo.value_loss(value, target).mean()
    else:
        values = ppo.clipped_value_loss(value, behavior_v, target, value_clip_range).mean()
    (policy + 0.5 * values - 0.05 * entropy.mean()).backward()

    kl = ppo.approximate_kl(logp, behavior_logp).mean()
    expected = {"policy": policy, "value": values, "entropy": entropy.mean(), "kl": kl}
    assert terms == pytest.approx({name: term.item() for name, term in expected.items()}, rel=1e-5, abs=1e-6)
    assert logits.grad is not None
    assert value.grad is not None
    np.testing.assert_allclose(by_logits, logits.grad.numpy(), atol=1e-7)
    np.testing.assert_allclose(by_value, value.grad.numpy(), atol=1e-7)
    if mask is not None:
        assert not by_logits[~mask.numpy()].any()
