import numpy as np
import pytest
import torch

from marlflow.learner.closed_form.q_learning import TransitionRows, q_learning_gradient
from marlflow.losses import q_learning


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("double", [False, True])
def test_closed_form_equals_autograd(double: bool, masked: bool) -> None:
    rng = np.random.default_rng(3)
    rows, actions = 29, 4
    q_tm1, online, frozen = (torch.from_numpy(3.0 * rng.standard_normal((rows, actions))).float() for _ in range(3))
    q_tm1.requires_grad_()
    mask = torch.from_numpy(rng.random((rows, actions)) < 0.6) if masked else None
    if mask is not None:
        mask[:, 0] = True
    action = torch.from_numpy(rng.integers(0, actions, rows))
    reward, discount, weight = (torch.from_numpy(rng.random(rows)).float() for _ in range(3))

    if double:
        target = q_learning.double_q_learning_target(reward, discount, online, frozen, mask)
    else:
        target = q_learning.q_learning_target(reward, discount, frozen, mask)
    error = q_learning.td_error(q_tm1, action, target)
    total = (q_learning.huber_loss(error, 1.0) * weight).mean()
    total.backward()

    arrays = TransitionRows(
        *(x.numpy() for x in (action, reward, discount, weight)), None if mask is None else mask.numpy()
    )
    selector = online if double else frozen
    terms, gradient, found = q_learning_gradient(
        q_tm1.detach().numpy(), selector.numpy(), frozen.numpy(), arrays, huber_delta=1.0
    )
    assert q_tm1.grad is not None
    np.testing.assert_allclose(gradient, q_tm1.grad.numpy(), atol=1e-7)
    np.testing.assert_allclose(found, error.detach().numpy(), atol=1e-6)
    assert terms["td"] == pytest.approx(total.item(), rel=1e-5)
    assert terms["td_error_mean"] == pytest.approx(error.abs().mean().item(), rel=1e-5)
