import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy import scratch
from marlflow.policy.actor_critic import ActorCritic, DensePass
from marlflow.policy.q import QNetwork, QPass
from marlflow.policy.tensors import as_tensor
from marlflow.policy.torso import CNN, MLP

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
    network = QNetwork(SEEN, MLP((7, 6), activation), dueling=False, seed=0)
    expected = reference([5, 7, 6, 3], module, list(network.parameters()))
    obs = torch.randn(11, 5, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(obs), expected(obs))
    with torch.inference_mode():
        torch.testing.assert_close(network(obs), expected(obs))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_in_closed_form_equal_autograd(activation, shared: bool) -> None:
    torso = MLP((7, 6), activation)
    module = ActorCritic(SEEN, torso, None if shared else torso, seed=0)
    generator = torch.Generator().manual_seed(1)
    obs, d_logits, d_value = (torch.randn(*size, generator=generator) for size in ((11, 5), (11, 3), (11,)))
    logits, value = module(obs)
    torch.autograd.backward([logits, value], [d_logits, d_value])
    expected = [parameter.grad.clone() for parameter in module.parameters()]
    for parameter in module.parameters():
        parameter.grad.fill_(99.0)
    assert DensePass.fits(module)
    with torch.inference_mode():
        ahead = DensePass(module, obs)
        ahead.pull(d_logits, d_value)
    torch.testing.assert_close(ahead.outputs, logits.detach())
    torch.testing.assert_close(ahead.value, value.detach())
    for parameter, gradient in zip(module.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("shared", [False, True])
def test_passes_at_once_do_not_share_scratch_memory(activation, shared: bool) -> None:
    # So many rows that outputs are in memory that is used again; other numbers of rows have the same arrays.
    torso = MLP((64, 70), activation)
    generator = torch.Generator().manual_seed(1)
    rows = (300, 512, 257)
    modules = [ActorCritic(SEEN, torso, None if shared else torso, seed) for seed in range(len(rows))]
    inputs = [[torch.randn(*size, generator=generator) for size in ((n, 5), (n, 3), (n,))] for n in rows]
    expected = []
    for module, (obs, d_logits, d_value) in zip(modules, inputs, strict=True):
        torch.autograd.backward(module(obs), [d_logits, d_value])
        expected.append([parameter.grad.clone() for parameter in module.parameters()])
    for _ in range(2):
        with torch.inference_mode():
            passes = [DensePass(module, obs) for module, (obs, _, _) in zip(modules, inputs, strict=True)]
            for ahead, (_, d_logits, d_value) in zip(passes, inputs, strict=True):
                ahead.pull(d_logits, d_value)
        for module, gradients in zip(modules, expected, strict=True):
            for parameter, gradient in zip(module.parameters(), gradients, strict=True):
                torch.testing.assert_close(parameter.grad, gradient, atol=1e-4, rtol=1e-4)
                parameter.grad.fill_(99.0)


def test_scratch_memory_has_one_holder_at_a_time() -> None:
    first, second = scratch.take(300, 64), scratch.take(300, 64)
    assert first.data_ptr() != second.data_ptr()
    assert scratch.take(2, 64) is None, "so small that a new one is cheaper"
    scratch.give_back(first)
    again = scratch.take(500, 64)
    assert again.data_ptr() == first.data_ptr()
    assert again.shape == (500, 64)
    assert again.is_contiguous()
    scratch.give_back(again)
    assert scratch.take(513, 64).data_ptr() != first.data_ptr(), "300 to 512 rows have one size, 513 has another"


def test_a_copy_runs_on_its_own_parameters() -> None:
    network = QNetwork(SEEN, MLP((4,)), dueling=False, seed=0)
    other = copy.deepcopy(network)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    obs = torch.ones(2, 5)
    assert not network(obs).any()
    assert other(obs).any()
    for parameter in other.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with torch.inference_mode():
        torch.testing.assert_close(QPass(other, obs).q, other(obs))


def test_what_may_compute_something_else_is_left_to_autograd() -> None:
    class Own(ActorCritic):
        pass

    several = Spaces(spaces.Box(-1.0, 1.0, (5,)), spaces.MultiDiscrete([2, 3]))
    modules = [Own(SEEN, MLP(), None, 0), ActorCritic(several, MLP(), None, 0), ActorCritic(SEEN, MLP(), None, 0)]
    assert not any(DensePass.fits(module) for module in modules)
    assert not QPass.fits(QNetwork(SEEN, MLP(), dueling=True, seed=0))


def test_weights_start_orthogonal_by_seed() -> None:
    one, same, other = (ActorCritic(SEEN, MLP(), None, seed).actor.flat() for seed in (0, 0, 1))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    weight = ActorCritic(SEEN, MLP((64, 64)), None, 0).actor.torso.layers[1].weight.detach()
    torch.testing.assert_close(weight @ weight.t(), 2.0 * torch.eye(64), atol=1e-4, rtol=0.0)


def test_cnn_sees_channels_last_and_scales_bytes() -> None:
    torso, features = CNN((2,), (3,), (1,), (4,)).build((5, 6, 3), torch.Generator().manual_seed(0))
    assert features == 4
    pixels = np.random.default_rng(0).integers(0, 256, (2, 5, 6, 3), dtype=np.uint8)
    pixels.flags.writeable = False
    planes = torch.tensor(pixels.transpose(0, 3, 1, 2) / 255.0, dtype=torch.float32)
    convolutional, dense = torso
    convolved = torch.relu(convolutional.convolutions[0](planes))
    torch.testing.assert_close(torso(as_tensor(pixels)), dense(convolved.flatten(1)))


def test_small_whole_numbers_are_not_taken_for_pixels() -> None:
    torso, _ = CNN((2,), (2,), (1,), (4,)).build((3, 3, 1), torch.Generator().manual_seed(0))
    board = torch.ones((1, 3, 3, 1), dtype=torch.int8)
    torch.testing.assert_close(torso(board), torso(board.float()))


def test_an_image_that_does_not_fit_is_refused() -> None:
    generator = torch.Generator()
    with pytest.raises(ConfigInvalid, match="use MLP"):
        CNN().build((4,), generator)
    with pytest.raises(
        ConfigInvalid, match="a kernel of 8 x 8 does not fit observation, 6 x 7; give the model"
    ) as small:
        CNN().build((6, 7, 2), generator)
    assert str(small.value).endswith("channels=[32,64] kernel_sizes=[3,3] strides=[1,1], or use MLP")
    CNN(channels=[32, 64], kernel_sizes=[3, 3], strides=[1, 1]).build((6, 7, 2), generator)
    with pytest.raises(ConfigInvalid, match="8 x 9, of which the layers before leave 1 x 1; give the model smaller"):
        CNN().build((8, 9, 3), generator)
    with pytest.raises(ConfigInvalid, match="does not fit observation, 2 x 2; use MLP"):
        CNN().build((2, 2, 1), generator)
    with pytest.raises(ConfigInvalid, match="as many channels"):
        CNN(channels=(1,)).build((84, 84, 3), generator)


def test_actions_without_an_actor_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match=r"Tuple"):
        ActorCritic(Spaces(spaces.Box(-1.0, 1.0, (5,)), spaces.Tuple([spaces.Discrete(2)])), MLP(), None, 0)
