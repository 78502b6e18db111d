import torch

from marlflow.losses.policy_gradient import policy_gradient_loss


def test_against_a_table() -> None:
    logp, advantage = torch.tensor([-1.0, -0.5, 0.0]), torch.tensor([2.0, -4.0, 3.0])
    torch.testing.assert_close(policy_gradient_loss(logp, advantage), torch.tensor([2.0, -2.0, 0.0]))


def test_its_gradient_is_minus_the_advantage_and_reaches_nothing_else() -> None:
    logp, advantage = torch.tensor([-1.0, -0.5]).requires_grad_(), torch.tensor([2.0, -4.0]).requires_grad_()
    policy_gradient_loss(logp, advantage).sum().backward()
    assert logp.grad is not None
    assert logp.grad.tolist() == [-2.0, 4.0]
    assert advantage.grad is None
