"""Critics: several that differ, over vectors, images and nested observations."""

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

from marlflow.base.spaces import Spaces
from marlflow.policy.critics import ActionCritics, BoxCritics, ConcatFirst, TorsoFirst
from marlflow.policy.torso import CNN, MLP, TorsoConfig

BOX = gym.Box(-2.0, 2.0, (2, 1), np.float32)
PIXELS = gym.Box(0, 255, (12, 12, 1), np.uint8)
SMALL_CNN = CNN(channels=(4,), kernel_sizes=(3,), strides=(3,), hidden_sizes=(16,))


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def rows(spaces: Spaces, count: int = 5) -> torch.Tensor:
    spaces.observation.seed(0)
    return torch.from_numpy(spaces.encoder().stack([spaces.observation.sample() for _ in range(count)]))


@pytest.mark.parametrize(
    ("observation", "model", "join"),
    [
        (gym.Box(-1.0, 1.0, (3,)), MLP((8, 8)), ConcatFirst),
        (gym.Discrete(4), MLP((8,)), ConcatFirst),
        (gym.Dict(near=gym.Box(-1.0, 1.0, (2,)), kind=gym.Discrete(3)), MLP((8,)), ConcatFirst),
        (PIXELS, SMALL_CNN, TorsoFirst),
        (gym.Dict(seen=PIXELS, speed=gym.Box(-1.0, 1.0, (2,))), SMALL_CNN, TorsoFirst),
        (gym.Dict(seen=PIXELS, speed=gym.Box(-1.0, 1.0, (2,))), MLP((8,)), TorsoFirst),
    ],
)
def test_critics_of_a_box_see_the_observation_and_the_action(
    observation: gym.Space, model: TorsoConfig, join: type
) -> None:
    spaces = Spaces(observation, BOX)
    critics = BoxCritics(spaces, model, 2, generator())
    assert all(isinstance(each, join) for each in critics.joins)
    obs, action = rows(spaces), torch.rand(5, 2, generator=generator(), requires_grad=True)
    q = critics(obs, action)
    assert q.shape == (2, 5)
    torch.testing.assert_close(critics.first(obs, action), q[0])
    q.sum().backward()
    assert action.grad is not None
    assert action.grad.all()
    assert q[0].tolist() != pytest.approx(q[1].tolist())
    # Each row's value is its own observation's.
    turned = critics(obs.flip(0), action.flip(0))
    torch.testing.assert_close(turned.flip(1), q, rtol=1e-4, atol=1e-5)
    assert critics(obs.flip(0), action)[0].tolist() != pytest.approx(q[0].tolist())


def test_critics_of_discrete_actions_value_each() -> None:
    spaces = Spaces(gym.Box(-1.0, 1.0, (3,)), gym.Discrete(4))
    critics = ActionCritics(spaces, MLP((8,)), 3, generator())
    q = critics(rows(spaces))
    assert q.shape == (3, 5, 4)
    assert len({tuple(values.flatten().tolist()) for values in q}) == 3
    with torch.no_grad():  # where layers run outside autograd
        torch.testing.assert_close(critics(rows(spaces)), q)
