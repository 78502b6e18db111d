import torch

from marlflow.losses.deterministic_policy_gradient import clipped_double_q_target, critics_loss

REWARD, DISCOUNT = torch.tensor([1.0, 1.0, -2.0]), torch.tensor([0.5, 0.9, 0.0])
Q = torch.tensor([[4.0, -1.0, 5.0], [2.0, 3.0, 7.0]])


def test_the_target_takes_the_least_critic() -> None:
    torch.testing.assert_close(clipped_double_q_target(REWARD, DISCOUNT, Q), torch.tensor([2.0, 0.1, -2.0]))
    torch.testing.assert_close(clipped_double_q_target(REWARD, DISCOUNT, Q[:1]), torch.tensor([3.0, 0.1, -2.0]))


def test_the_loss_against_a_table_and_a_loop() -> None:
    target = torch.tensor([3.0, 1.0, 5.0])
    torch.testing.assert_close(critics_loss(Q, target), torch.tensor([1.0, 4.0, 2.0]))
    q, target = torch.randn(3, 20, generator=torch.Generator().manual_seed(0)), torch.linspace(-2.0, 2.0, 20)
    expected = [sum((float(q[k, row]) - float(target[row])) ** 2 / 2 for k in range(3)) for row in range(20)]
    torch.testing.assert_close(critics_loss(q, target), torch.tensor(expected))


def test_no_gradient_reaches_a_target() -> None:
    assert not clipped_double_q_target(REWARD, DISCOUNT, Q.clone().requires_grad_()).requires_grad
