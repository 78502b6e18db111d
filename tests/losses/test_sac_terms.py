import math

import pytest
import torch

from marlflow.losses import sac

REWARD, DISCOUNT, ALPHA = torch.tensor([1.0, 1.0, 3.0]), torch.tensor([0.5, 0.5, 0.0]), torch.tensor(0.2)
Q = torch.tensor([[5.0, 6.0, 7.0], [4.0, 8.0, 9.0]])
LOGP = torch.tensor([-1.0, 2.0, -5.0])
# Two actions, the second worth more to the first critic and less to the second one.
Q_ALL = torch.tensor([[[1.0, 5.0], [2.0, 2.0]], [[3.0, 4.0], [0.0, 8.0]]])
LOGITS = torch.tensor([[0.0, math.log(3.0)], [0.0, 0.0]])


def random_rows(seed: int = 0, rows: int = 30, actions: int = 4) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Values of two critics, logits, and a mask with at least one legal action."""
    generator = torch.Generator().manual_seed(seed)
    mask = torch.rand(rows, actions, generator=generator) < 0.5
    mask[torch.arange(rows), torch.randint(actions, (rows,), generator=generator)] = True
    q = 3.0 * torch.randn(2, rows, actions, generator=generator)
    return q, 2.0 * torch.randn(rows, actions, generator=generator), mask


def naive_softmax(logits: list[float], legal: list[bool]) -> list[float]:
    weights = [math.exp(logit) if may else 0.0 for logit, may in zip(logits, legal, strict=True)]
    return [weight / sum(weights) for weight in weights]


def test_sampled_terms_against_a_table() -> None:
    target = sac.soft_q_target(REWARD, DISCOUNT, Q, LOGP, ALPHA)
    torch.testing.assert_close(target, torch.tensor([3.1, 3.8, 3.0]))
    loss = sac.soft_policy_loss(Q, LOGP, ALPHA)
    torch.testing.assert_close(loss, torch.tensor([-4.2, -5.6, -8.0]))
    tempered = sac.temperature_loss(torch.tensor(-2.0), LOGP - 1.0)
    torch.testing.assert_close(tempered, torch.tensor([-4.0, 2.0, -12.0]))


def test_sampled_terms_against_loops() -> None:
    q, logits, _ = random_rows()
    q_t, logp, reward, discount = q[..., 0], logits[:, 1], logits[:, 2], torch.sigmoid(logits[:, 3])
    rows = range(len(logp))
    worst = [min(float(q_t[0, row]), float(q_t[1, row])) for row in rows]
    targets = [float(reward[r]) + float(discount[r]) * (worst[r] - 0.3 * float(logp[r])) for r in rows]
    alpha = torch.tensor(0.3)
    torch.testing.assert_close(sac.soft_q_target(reward, discount, q_t, logp, alpha), torch.tensor(targets))
    losses = [0.3 * float(logp[r]) - worst[r] for r in rows]
    torch.testing.assert_close(sac.soft_policy_loss(q_t, logp, alpha), torch.tensor(losses))
    tempered = [-0.7 * (float(logp[r]) + 1.5) for r in rows]
    torch.testing.assert_close(sac.temperature_loss(torch.tensor(0.7), logp + 1.5), torch.tensor(tempered))


def test_expected_terms_against_a_table() -> None:
    p, logp = sac.legal_probabilities(LOGITS, None)
    torch.testing.assert_close(p, torch.tensor([[0.25, 0.75], [0.5, 0.5]]))
    # Least values: [1, 4] and [0, 2].
    entropy = torch.tensor([-0.25 * math.log(0.25) - 0.75 * math.log(0.75), math.log(2.0)])
    value = torch.tensor([3.25, 1.0]) + ALPHA * entropy
    target = sac.expected_soft_q_target(REWARD[:2], DISCOUNT[:2], Q_ALL, p, logp, ALPHA)
    torch.testing.assert_close(target, REWARD[:2] + 0.5 * value)
    torch.testing.assert_close(sac.expected_soft_policy_loss(Q_ALL, p, logp, ALPHA), -value)


def test_expected_terms_over_the_legal_actions_against_loops() -> None:
    q, logits, mask = random_rows(seed=1)
    p, logp = sac.legal_probabilities(logits, mask)
    targets, losses = [], []
    for row in range(len(mask)):
        value = 0.0
        for action, chance in enumerate(naive_softmax(logits[row].tolist(), mask[row].tolist())):
            assert float(p[row, action]) == pytest.approx(chance, rel=1e-5)
            if chance > 0.0:
                worst = min(float(q[0, row, action]), float(q[1, row, action]))
                value += chance * (worst - 0.4 * math.log(chance))
        targets.append(2.0 + 0.9 * value)
        losses.append(-value)
    alpha, ones = torch.tensor(0.4), torch.ones(len(mask))
    found = sac.expected_soft_q_target(2.0 * ones, 0.9 * ones, q, p, logp, alpha)
    torch.testing.assert_close(found, torch.tensor(targets))
    torch.testing.assert_close(sac.expected_soft_policy_loss(q, p, logp, alpha), torch.tensor(losses))


def test_illegal_actions_have_no_probability_value_or_gradient() -> None:
    q, logits, mask = random_rows(seed=2)
    logits.requires_grad_()
    losses = []
    for bonus in (0.0, 1e9):
        p, logp = sac.legal_probabilities(logits + bonus * ~mask, mask)
        assert not p[~mask].any()
        losses.append(sac.expected_soft_policy_loss(q + bonus * ~mask, p, logp, torch.tensor(50.0)))
    torch.testing.assert_close(losses[0], losses[1])
    losses[0].sum().backward()
    assert logits.grad is not None
    assert bool(torch.isfinite(logits.grad).all())
    assert not logits.grad[~mask].any()
    assert logits.grad[mask & (mask.sum(-1, keepdim=True) > 1)].all()


def test_a_row_without_a_legal_action_is_worth_nothing() -> None:
    p, logp = sac.legal_probabilities(torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool))
    target = sac.expected_soft_q_target(REWARD[2:], DISCOUNT[2:], Q_ALL[:, :1], p, logp, ALPHA)
    assert not p.any()
    torch.testing.assert_close(target, torch.tensor([3.0]))


def test_the_temperature_rises_while_the_entropy_is_too_low() -> None:
    for entropy, sign in ((0.5, -1.0), (2.0, 1.0)):
        log_temperature = torch.tensor(0.1, requires_grad=True)
        sac.temperature_loss(log_temperature, torch.tensor([1.0 - entropy])).mean().backward()
        assert log_temperature.grad is not None
        assert math.copysign(1.0, float(log_temperature.grad)) == sign


def test_gradients_flow_where_they_should() -> None:
    alpha = torch.tensor(0.3, requires_grad=True)
    q, logits, mask = random_rows(seed=3)
    q.requires_grad_()
    p, logp = sac.legal_probabilities(logits.requires_grad_(), mask)
    assert not sac.expected_soft_q_target(REWARD[:1], DISCOUNT[:1], q, p, logp, alpha).requires_grad
    assert not sac.soft_q_target(REWARD[:1], DISCOUNT[:1], q[..., 0], logp[:, 0], alpha).requires_grad
    sac.expected_soft_policy_loss(q, p, logp, alpha).sum().backward()
    assert q.grad is None
    assert alpha.grad is None
    sac.soft_policy_loss(q[..., 0], logp[:, 0].detach(), alpha).sum().backward()
    assert q.grad is not None
    assert alpha.grad is None
