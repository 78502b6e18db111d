import torch

from marlflow.losses import q_learning

Q_SELECTOR = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, 1.0], [0.0, 0.0, 9.0]])
Q_VALUE = torch.tensor([[5.0, 6.0, 7.0], [8.0, 9.0, 1.0], [2.0, 3.0, 4.0]])
MASK = torch.tensor([[True, True, False], [True, True, True], [False, False, False]])
REWARD, DISCOUNT = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.5, 0.5, 0.0])


def test_targets_against_a_table() -> None:
    plain = q_learning.q_learning_target(REWARD, DISCOUNT, Q_VALUE, None)
    torch.testing.assert_close(plain, torch.tensor([4.5, 5.5, 1.0]))
    double = q_learning.double_q_learning_target(REWARD, DISCOUNT, Q_SELECTOR, Q_VALUE, None)
    torch.testing.assert_close(double, torch.tensor([4.5, 5.0, 1.0]))


def test_illegal_actions_are_in_no_target() -> None:
    plain = q_learning.q_learning_target(REWARD, DISCOUNT, Q_VALUE, MASK)
    torch.testing.assert_close(plain, torch.tensor([4.0, 5.5, 1.0]))
    double = q_learning.double_q_learning_target(REWARD, DISCOUNT, Q_SELECTOR, Q_VALUE, MASK)
    torch.testing.assert_close(double, torch.tensor([4.0, 5.0, 1.0]))


def test_huber_against_a_table_and_a_loop() -> None:
    loss = q_learning.huber_loss(torch.tensor([0.0, 0.5, -0.5, 1.0, 3.0, -3.0]), 1.0)
    torch.testing.assert_close(loss, torch.tensor([0.0, 0.125, 0.125, 0.5, 2.5, 2.5]))
    errors = torch.linspace(-4.0, 4.0, 33).tolist()
    expected = [0.5 * e * e if abs(e) <= 2.0 else 2.0 * (abs(e) - 1.0) for e in errors]
    torch.testing.assert_close(q_learning.huber_loss(torch.tensor(errors), 2.0), torch.tensor(expected))
