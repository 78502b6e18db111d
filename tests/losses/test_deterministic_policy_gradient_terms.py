import torch

from marlflow.losses.deterministic_policy_gradient import deterministic_policy_loss, smoothed_action


def test_smoothing_against_a_table() -> None:
    action = torch.tensor([[0.0, 0.9], [-1.0, 0.5]])
    noise = torch.tensor([[1.0, 1.0], [-4.0, 9.0]])
    expected = torch.tensor([[0.2, 1.0], [-1.0, 1.0]])
    torch.testing.assert_close(smoothed_action(action, noise, scale=0.2, clip=0.5), expected)
    torch.testing.assert_close(smoothed_action(action, noise, scale=0.2, clip=0.1)[0], torch.tensor([0.1, 1.0]))


def test_smoothing_against_a_loop() -> None:
    generator = torch.Generator().manual_seed(1)
    action, noise = 2.0 * torch.rand(50, 3, generator=generator) - 1.0, torch.randn(50, 3, generator=generator)
    expected = [
        [max(-1.0, min(1.0, a + max(-0.3, min(0.3, 0.4 * z)))) for a, z in zip(row, draws, strict=True)]
        for row, draws in zip(action.tolist(), noise.tolist(), strict=True)
    ]
    torch.testing.assert_close(smoothed_action(action, noise, scale=0.4, clip=0.3), torch.tensor(expected))


def test_the_policy_climbs_its_critic() -> None:
    action = torch.tensor([0.5, -0.25], requires_grad=True)
    value = -(action - 1.0).square()
    loss = deterministic_policy_loss(value)
    torch.testing.assert_close(loss, torch.tensor([0.25, 1.5625]))
    loss.sum().backward()
    torch.testing.assert_close(action.grad, torch.tensor([-1.0, -2.5]))
