import numpy as np
import pytest
import torch

from marlflow.learner.closed_form.imitation import cloning_gradient
from marlflow.losses.imitation import behavioral_cloning_loss
from marlflow.policy.categorical import log_prob_and_entropy


@pytest.mark.parametrize("masked", [False, True])
def test_closed_form_equals_autograd(masked: bool) -> None:
    rng = np.random.default_rng(3)
    rows, actions = 29, 4
    logits = torch.from_numpy(3.0 * rng.standard_normal((rows, actions))).float().requires_grad_()
    action = torch.from_numpy(rng.integers(0, actions, rows))
    mask = torch.from_numpy(rng.random((rows, actions)) < 0.6) if masked else None
    if mask is not None:
        mask[np.arange(rows), action] = True
        assert not mask.all()
    logp, entropy = log_prob_and_entropy(logits, action, mask)
    total = behavioral_cloning_loss(logp).mean()
    total.backward()
    terms, gradient = cloning_gradient(logits.detach().numpy(), action.numpy(), None if mask is None else mask.numpy())
    assert logits.grad is not None
    np.testing.assert_allclose(gradient, logits.grad.numpy(), atol=1e-7)
    assert mask is None or (gradient[~mask.numpy()] == 0.0).all()
    assert terms["policy"] == pytest.approx(total.item(), rel=1e-5)
    assert terms["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)
