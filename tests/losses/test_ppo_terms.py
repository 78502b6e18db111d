import math

import torch

from marlflow.losses import policy_gradient


def test_surrogate_against_a_table() -> None:
    ratios = torch.tensor([1.0, 1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = torch.tensor([2.0, 1.0, -1.0, 1.0, -1.0, 3.0])
    loss = policy_gradient.clipped_surrogate_loss(ratios.log(), torch.zeros(6), advantage, 0.2)
    torch.testing.assert_close(loss, torch.tensor([-2.0, -1.2, 1.5, -0.5, 0.8, -3.3]))


def test_surrogate_has_no_gradient_where_it_is_clipped() -> None:
    logp = torch.tensor([1.5, 1.5, 0.5, 0.5]).log().requires_grad_()
    policy_gradient.clipped_surrogate_loss(
        logp, torch.zeros(4), torch.tensor([1.0, -1.0, 1.0, -1.0]), 0.2
    ).sum().backward()
    assert logp.grad is not None
    torch.testing.assert_close(logp.grad, torch.tensor([0.0, 1.5, -0.5, 0.0]))


def test_a_ratio_beyond_float32_has_a_loss_and_no_gradient_where_it_is_clipped() -> None:
    logp = torch.tensor([80.0, 89.0, 1e4, 81.0]).requires_grad_()
    advantage = torch.tensor([1.0, 1.0, 1.0, -1.0])
    loss = policy_gradient.clipped_surrogate_loss(logp, torch.zeros(4), advantage, 0.2)
    loss.sum().backward()
    torch.testing.assert_close(loss[:3], torch.full((3,), -1.2))
    assert logp.grad is not None
    assert logp.grad[:3].tolist() == [0.0, 0.0, 0.0]
    # A negative advantage is not clipped from above.
    assert logp.grad[3] == loss[3] == torch.tensor(81.0).exp()


def test_value_losses_against_a_table() -> None:
    value, target = torch.tensor([1.0, 3.0, 0.0]), torch.tensor([2.0, 0.0, 0.0])
    torch.testing.assert_close(policy_gradient.value_loss(value, target), torch.tensor([0.5, 4.5, 0.0]))
    behavior = torch.tensor([0.0, 3.0, 1.0])
    clipped = policy_gradient.clipped_value_loss(value, behavior, target, 0.5)
    torch.testing.assert_close(clipped, torch.tensor([0.5 * 1.5**2, 4.5, 0.5 * 0.5**2]))


def test_divergence_is_zero_at_equality_and_positive_elsewhere() -> None:
    kl = policy_gradient.approximate_kl(torch.tensor([0.0, math.log(2.0), math.log(0.5)]), torch.zeros(3))
    torch.testing.assert_close(kl, torch.tensor([0.0, 1.0 - math.log(2.0), -0.5 + math.log(2.0)]))
