import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.dense import Dense
from marlflow.policy.q import QNetwork
from marlflow.policy.tensors import as_tensor
from marlflow.policy.torso import CNN, MLP, build_torso
from tests.policy.row_random import row_random

ACTIONS = spaces.Discrete(3)
CAMERA = spaces.Dict(
    {
        "a_gear": spaces.Discrete(3, start=1),
        "b_camera": spaces.Box(0, 255, (5, 6, 3), np.uint8),
        "c_flags": spaces.MultiBinary(3),
        "d_speed": spaces.Box(-1.0, 1.0, (2,)),
        "e_lives": spaces.Box(0, 9, (2,), np.uint8),
        "f_far": spaces.Box(-9, 9, (), np.int64),
    }
)
BOARD = spaces.Tuple([spaces.MultiBinary((4, 4, 2)), spaces.Discrete(2), spaces.Box(-1.0, 1.0, (3, 3, 1))])


def seen_in(space: spaces.Space[Any], count: int) -> tuple[list[Any], torch.Tensor]:
    space.seed(count)
    samples = [space.sample() for _ in range(count)]
    rows = Spaces(space, ACTIONS).encoder().stack(samples)
    rows.flags.writeable = False
    return samples, as_tensor(rows)


def camera_numbers(sample: dict[str, Any]) -> list[float]:
    gear = [float(sample["a_gear"] == value) for value in (1, 2, 3)]
    pixels = (sample["b_camera"] / 255.0).ravel().tolist()
    others = [sample[key].ravel().tolist() for key in ("c_flags", "d_speed", "e_lives")]
    return gear + pixels + others[0] + others[1] + others[2] + [float(sample["f_far"])]


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_a_nested_observation_of_floats_is_seen_by_plain_layers() -> None:
    nested = Spaces(spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1.0, 1.0, (2,))), ACTIONS)
    torso, _ = build_torso(nested, MLP(), generator())
    assert type(torso) is Dense
    assert torso.layers[0].in_features == 5
    module = ActorCritic(nested, MLP(), MLP(), seed=0)
    assert module.actor.layers is not None


@pytest.mark.parametrize("count", [1, 4])
def test_an_mlp_sees_bytes_as_the_numbers_that_they_stand_for(count: int) -> None:
    samples, rows = seen_in(CAMERA, count)
    assert rows.dtype == torch.uint8
    torso, features = build_torso(Spaces(CAMERA, ACTIONS), MLP((8, 7)), generator())
    numbers = torch.tensor([camera_numbers(sample) for sample in samples])
    assert features == 7
    expected = torso.torso(numbers)
    torch.testing.assert_close(torso(rows), expected)
    with torch.inference_mode():
        torch.testing.assert_close(torso(rows), expected)
    plain, _ = MLP((8, 7)).build((numbers.shape[1],), generator())
    torch.testing.assert_close(torso(rows), plain(numbers))


def test_a_network_of_ones_own_sees_the_same_numbers() -> None:
    @dataclass(frozen=True)
    class Own:
        def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
            return nn.Identity(), obs_shape[0]

    samples, rows = seen_in(CAMERA, 3)
    torso, features = build_torso(Spaces(CAMERA, ACTIONS), Own(), generator())
    expected = torch.tensor([camera_numbers(sample) for sample in samples])
    assert features == expected.shape[1]
    torch.testing.assert_close(torso(rows), expected)


@pytest.mark.parametrize("count", [1, 4])
def test_a_cnn_sends_images_through_convolutions_and_joins_the_rest(count: int) -> None:
    samples, rows = seen_in(CAMERA, count)
    torso, features = build_torso(Spaces(CAMERA, ACTIONS), CNN((4,), (3,), (1,), (8,)), generator())
    assert features == 8
    pixels = np.stack([sample["b_camera"] for sample in samples])
    (convolutional,) = torso.parts
    planes = torch.tensor(pixels.transpose(0, 3, 1, 2) / 255.0, dtype=torch.float32)
    convolved = torch.relu(convolutional.convolutions[0](planes)).flatten(1)
    numbers = torch.tensor([camera_numbers(sample) for sample in samples])
    others = torch.cat([numbers[:, :3], numbers[:, 3 + pixels[0].size :]], 1)
    torch.testing.assert_close(torso(rows), torso.torso(torch.cat([convolved, others], 1)))


def test_a_cnn_has_convolutions_of_its_own_for_each_image_of_any_dtype() -> None:
    samples, rows = seen_in(BOARD, 3)
    assert rows.dtype == torch.float32
    torso, _ = build_torso(Spaces(BOARD, ACTIONS), CNN((2,), (2,), (1,), (4,)), generator())
    found = []
    for part, image in zip(torso.parts, (0, 2), strict=True):
        planes = torch.tensor(np.stack([sample[image] for sample in samples]), dtype=torch.float32).permute(0, 3, 1, 2)
        found.append(torch.relu(part.convolutions[0](planes)).flatten(1))
    turn = torch.tensor([[float(sample[1] == 0), float(sample[1] == 1)] for sample in samples])
    torch.testing.assert_close(torso(rows), torso.torso(torch.cat([*found, turn], 1)))


def test_a_cnn_says_which_part_it_cannot_see() -> None:
    with pytest.raises(ConfigInvalid, match=r"does not fit observation\['b_camera'\], 5 x 6; give"):
        build_torso(Spaces(CAMERA, ACTIONS), CNN(), generator())
    vectors = spaces.Dict(a=spaces.Box(0.0, 1.0, (4,)), b=spaces.Discrete(2))
    with pytest.raises(ConfigInvalid, match=r"nothing of that form is among observation\['a'\]: \(4,\), .* use MLP"):
        build_torso(Spaces(vectors, ACTIONS), CNN(), generator())
    with pytest.raises(ConfigInvalid, match=r"observation\['chat'\] is a Text"):
        build_torso(Spaces(spaces.Dict(chat=spaces.Text(4)), ACTIONS), MLP(), generator())


@pytest.mark.parametrize("torso", [MLP((6,)), CNN((2,), (3,), (1,), (6,))])
@pytest.mark.parametrize("shared", [False, True])
def test_policies_of_packed_rows_act_and_learn(torso, shared: bool) -> None:
    _, rows = seen_in(CAMERA, 5)
    module = ActorCritic(Spaces(CAMERA, ACTIONS), torso, None if shared else torso, seed=0)
    logits, value = copy.deepcopy(module)(rows)
    torch.testing.assert_close((logits, value), module(rows))
    torch.testing.assert_close(module.critic(rows), value)
    (logits.square().sum() + value.sum()).backward()
    acted = module.actor.act(rows.numpy(), None, None, "explore", row_random(5))
    assert acted.action.shape == (5,)
    (module(rows)[0].square().sum() + module(rows)[1].sum()).backward()
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0.0, name


@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64])
def test_whole_numbers_are_floats_to_a_network_in_either_pass(dtype) -> None:
    board = Spaces(spaces.Box(0, 1, (2, 3), dtype), ACTIONS)
    network = QNetwork(board, MLP((7,)), dueling=False, seed=0)
    rows = board.encoder().stack([np.eye(2, 3, index).astype(dtype) for index in range(3)])
    assert rows.dtype == dtype
    expected = network(torch.from_numpy(rows.astype(np.float32)).flatten(1)).detach()
    seen = as_tensor(rows)
    torch.testing.assert_close(network(seen).detach(), expected)
    with torch.inference_mode():
        torch.testing.assert_close(network(seen), expected)
        torch.testing.assert_close(network.actor.outputs(seen, None)[0], expected)
    torch.testing.assert_close(network(seen.index_select(0, torch.tensor([2, 0]))).detach(), expected[[2, 0]])
    assert network.actor.act(rows, None, None, "greedy", row_random(3)).action.tolist() == expected.argmax(1).tolist()


def test_a_box_of_one_number_without_a_shape_is_seen() -> None:
    single = Spaces(spaces.Box(-1.0, 1.0, ()), ACTIONS)
    network = QNetwork(single, MLP((4,)), dueling=False, seed=0)
    rows = single.encoder().stack([0.5, np.float32(-1.0)])
    assert rows.shape == (2,)
    expected = network(torch.tensor([[0.5], [-1.0]])).detach()
    torch.testing.assert_close(network(as_tensor(rows)).detach(), expected)
    with torch.inference_mode():
        torch.testing.assert_close(network.actor.outputs(as_tensor(rows), None)[0], expected)
