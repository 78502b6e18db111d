import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.q import QActor
from marlflow.policy.tensors import as_tensor

SEEN = Spaces(spaces.Box(-1.0, 1.0, (5,)), spaces.Discrete(3))


def reference(sizes: list[int], activation: type[nn.Module], parameters: list[torch.Tensor]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for index, (inputs, outputs) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(inputs, outputs))
        layers.append(activation() if index < len(sizes) - 2 else nn.Identity())
    found = nn.Sequential(*layers)
    with torch.no_grad():
        for own, given in zip(found.parameters(), parameters, strict=True):
            own.copy_(given)
    return found


@pytest.mark.parametrize(("activation", "module"), [("tanh", nn.Tanh), ("relu", nn.ReLU)])
def test_mlp_equals_torchs_own_layers_in_either_pass(activation, module) -> None:
    network = mf.QNetwork(SEEN, mf.MLP((7, 6), activation), dueling=False, seed=0)
    expected = reference([5, 7, 6, 3], module, list(network.parameters()))
    obs = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(obs), expected(obs))
    for one in (network, expected):
        one(obs).square().sum().backward()
    for own, theirs in zip(network.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(own.grad, theirs.grad)
    with torch.inference_mode():
        torch.testing.assert_close(network(obs), expected(obs))


def test_a_copy_runs_on_its_own_parameters() -> None:
    network = mf.QNetwork(SEEN, mf.MLP((4,)), dueling=False, seed=0)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    obs = torch.ones(2, 5)
    assert not network(obs).any()
    assert other(obs).any()
    with torch.inference_mode():
        torch.testing.assert_close(other.actor.outputs(obs, None)[0], other(obs))


class Doubled:
    """Outputs twice as large as those of the class after it."""

    def forward(self, obs: torch.Tensor) -> torch.Tensor:
        return 2.0 * super().forward(obs)


def test_actors_of_a_subclass_act_by_its_forward() -> None:
    obs = np.ones((2, 5), np.float32)
    for actor in (ActorCritic(SEEN, mf.MLP(), None, 0).actor, mf.QNetwork(SEEN, mf.MLP(), dueling=False, seed=0).actor):
        plain, kind = actor.outputs_of(obs), type(actor)
        own = type("Own", (Doubled, kind), {})
        if kind is QActor:
            doubled = own(actor.torso, actor.head)
        else:
            doubled = own(actor.torso, actor.head.in_features, 3, torch.Generator())
            doubled.head.load_state_dict(actor.head.state_dict())
        np.testing.assert_allclose(doubled.outputs_of(obs), 2.0 * plain, rtol=1e-6)


def test_weights_start_orthogonal_by_seed() -> None:
    one, same, other = (ActorCritic(SEEN, mf.MLP(), None, seed).actor.flat() for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    weight = ActorCritic(SEEN, mf.MLP((64, 64)), None, 0).actor.torso.layers[1].weight.detach()
    torch.testing.assert_close(weight @ weight.t(), 2.0 * torch.eye(64), atol=1e-4, rtol=0.0)


def test_cnn_sees_channels_last_and_scales_bytes() -> None:
    torso, features = mf.CNN((2,), (3,), (1,), (4,)).build((5, 6, 3), torch.Generator().manual_seed(0))
    assert features == 4
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    planes = torch.tensor(pixels.transpose(0, 3, 1, 2) / 255.0, dtype=torch.float32)
    convolutional, dense = torso
    convolved = torch.relu(convolutional.convolutions[0](planes))
    torch.testing.assert_close(torso(as_tensor(pixels)), dense(convolved.flatten(1)))


@pytest.mark.parametrize(("height", "stride"), [(5, 1), (5, 2), (6, 2), (2, 1)])
def test_cnn_with_padding_convolves_the_image_with_zeros_around(height: int, stride: int) -> None:
    generator = torch.Generator().manual_seed(0)
    torso, _ = mf.CNN((2,), (5,), (stride,), (4,), padding="same").build((height, 7, 3), generator)
    image = np.random.default_rng(0).normal(size=(2, height, 7, 3)).astype(np.float32)
    convolution, dense = torso[0].convolutions[0], torso[1]
    weight, around = convolution.weight.detach().numpy(), np.pad(image, ((0, 0), (2, 2), (2, 2), (0, 0)))
    seen = np.lib.stride_tricks.sliding_window_view(around, (5, 5), (1, 2))[:, ::stride, ::stride]
    convolved = np.einsum("nhwcij,ocij->nohw", seen, weight)
    assert convolved.shape == (2, 2, -(-height // stride), -(-7 // stride))
    torch.testing.assert_close(torso(as_tensor(image)), dense(torch.relu(torch.tensor(convolved)).flatten(1)))


def test_a_cnn_without_padding_is_described_as_before_there_was_any() -> None:
    plain = (
        "CNN(channels=(32, 64, 64), kernel_sizes=(8, 4, 3), strides=(4, 2, 1), hidden_sizes=(512,), activation='relu')"
    )
    assert repr(mf.CNN()) == plain
    padded = mf.CNN((2,), (3,), (1,), (4,), padding="same")
    same = "CNN(channels=(2,), kernel_sizes=(3,), strides=(1,), hidden_sizes=(4,), activation='relu', padding='same')"
    assert repr(padded) == same
    own = type("Own", (mf.CNN,), {})
    assert repr(own((2,), (3,), (1,), (4,), padding="same")) == same.replace("CNN", "Own"), (
        "a subclass has its own name"
    )


def test_small_whole_numbers_are_not_taken_for_pixels() -> None:
    torso, _ = mf.CNN((2,), (2,), (1,), (4,)).build((3, 3, 1), torch.Generator().manual_seed(0))
    board = torch.ones((1, 3, 3, 1), dtype=torch.int8)
    torch.testing.assert_close(torso(board), torso(board.float()))


def test_an_image_that_does_not_fit_is_refused() -> None:
    generator = torch.Generator()
    with pytest.raises(mf.ConfigInvalid, match="use MLP"):
        mf.CNN().build((4,), generator)
    with pytest.raises(
        mf.ConfigInvalid, match="a kernel of 8 x 8 does not fit observation, 6 x 7; give the model"
    ) as small:
        mf.CNN().build((6, 7, 2), generator)
    assert str(small.value).endswith("channels=[32,64] kernel_sizes=[3,3] strides=[1,1] padding=same, or use MLP")
    mf.CNN(channels=[32, 64], kernel_sizes=[3, 3], strides=[1, 1], padding="same").build((2, 2, 2), generator)
    with pytest.raises(mf.ConfigInvalid, match="8 x 9, of which the layers before leave 1 x 1; give the model smaller"):
        mf.CNN().build((8, 9, 3), generator)
    with pytest.raises(mf.ConfigInvalid, match="padding=same needs odd kernel_sizes, not 8"):
        mf.CNN(padding="same").build((84, 84, 3), generator)
    with pytest.raises(mf.ConfigInvalid, match="as many channels"):
        mf.CNN(channels=(1,)).build((84, 84, 3), generator)


def test_actions_without_an_actor_are_refused() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"Tuple"):
        ActorCritic(Spaces(spaces.Box(-1.0, 1.0, (5,)), spaces.Tuple([spaces.Discrete(2)])), mf.MLP(), None, 0)
