"""A network whose layers a user has changed acts by the layers that learn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.learner.compute import ON_CPU
from marlflow.policy.actor import NetworkActor
from marlflow.policy.box import SquashedGaussianActor
from marlflow.policy.dense import plain_layers
from marlflow.policy.stacked import RowGroups, members_of
from tests.policy.row_random import row_random

SEEN = gym.Box(-1.0, 1.0, (5,))
KINDS: dict[str, tuple[mf.Algorithm, gym.Space[Any]]] = {
    "categorical": (mf.PPO(), gym.Discrete(3)),
    "multi": (mf.PPO(), gym.MultiDiscrete([2, 3])),
    "gaussian": (mf.PPO(), gym.Box(-1.0, 1.0, (2,))),
    "q": (mf.DQN(dueling=False), gym.Discrete(3)),
    "dueling": (mf.DQN(dueling=True), gym.Discrete(3)),
    "squashed": (mf.SAC(), gym.Box(-1.0, 1.0, (2,))),
    "deterministic": (mf.TD3(), gym.Box(-1.0, 1.0, (2,))),
}


def made(kind: str) -> NetworkActor:
    algorithm, action = KINDS[kind]
    actor: Any = algorithm.actor(Spaces(SEEN, action), mf.MLP((8, 6)), 0)
    # SAC's and TD3's warm up first.
    network: NetworkActor = getattr(actor, "inner", actor)
    return network


def linear_of(like: nn.Linear) -> nn.Linear:
    layer = nn.Linear(like.in_features, like.out_features)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters()):
            parameter.copy_(torch.linspace(-1.0 - number, 1.0, parameter.numel()).reshape(parameter.shape))
    return layer


class Louder(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 3.0 * super().forward(x)


def louder(like: nn.Linear) -> Louder:
    layer = Louder(like.in_features, like.out_features)
    layer.load_state_dict(like.state_dict())
    return layer


def first_linear(actor: Any) -> nn.Linear:
    # A dueling head has two layers.
    head = getattr(actor.head, "advantage", actor.head)
    assert isinstance(head, nn.Linear)
    return head


def with_head(actor: Any, head: nn.Module) -> None:
    if hasattr(actor.head, "advantage"):
        actor.head.advantage = head
    else:
        actor.head = head


def in_sequence(actor: Any) -> None:
    with_head(actor, nn.Sequential(linear_of(first_linear(actor)), nn.Tanh()))


def normalized_torso(actor: Any) -> None:
    actor.torso = nn.Sequential(actor.torso, nn.LayerNorm(6))


def inner_layer(actor: Any) -> None:
    actor.torso.layers[1] = linear_of(actor.torso.layers[1])


def weight_norm(actor: Any) -> None:
    norm = parametrizations.weight_norm(first_linear(actor))
    with torch.no_grad():
        norm.parametrizations.weight.original0.mul_(2.0)


def hooked(actor: Any) -> None:
    first_linear(actor).register_forward_hook(lambda _module, _inputs, output: 2.0 * output)


def hooked_actor(actor: Any) -> None:
    if isinstance(actor, SquashedGaussianActor):
        actor.register_forward_hook(lambda _module, _inputs, output: (2.0 * output[0], output[1]))
    else:
        actor.register_forward_hook(lambda _module, _inputs, output: 2.0 * output)


def own_forward(actor: Any) -> None:
    layer = first_linear(actor)
    layer.forward = lambda x: 3.0 * nn.functional.linear(x, layer.weight, layer.bias)  # type: ignore[method-assign]


def pruned(actor: Any) -> None:
    prune.l1_unstructured(actor.torso.layers[0], "weight", 0.5)
    with torch.no_grad():
        actor.torso.layers[0].weight_orig.add_(0.5)


def other_parameter(actor: Any) -> None:
    layer = first_linear(actor)
    layer.bias = nn.Parameter(layer.bias.detach() + torch.arange(float(len(layer.bias))) + 1.0)


CHANGES: dict[str, Callable[[Any], None]] = {
    "head": lambda actor: with_head(actor, linear_of(first_linear(actor))),
    "head in sequence": in_sequence,
    "head of a subclass": lambda actor: with_head(actor, louder(first_linear(actor))),
    "torso": normalized_torso,
    "inner layer": inner_layer,
    "parametrization": weight_norm,
    "hook": hooked,
    "hook of the actor": hooked_actor,
    "forward of an object": own_forward,
    "pruned": pruned,
    "parameter": other_parameter,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_network_acts_as_it_learns(kind: str, change: str) -> None:
    actor, obs = made(kind), torch.linspace(-1.0, 1.0, 55).reshape(11, 5)
    with torch.inference_mode():
        before = actor.outputs(obs, None)[0].clone()
    CHANGES[change](actor)
    learned = actor.outputs(obs, None)[0]
    assert learned.requires_grad
    assert not torch.allclose(learned, before), "the change changes the outputs"
    with torch.inference_mode():
        torch.testing.assert_close(actor.outputs(obs, None)[0], learned.detach())


@pytest.mark.parametrize("kind", KINDS)
def test_an_unchanged_network_has_the_fast_way(kind: str) -> None:
    actor: Any = made(kind)
    assert plain_layers(actor.torso, first_linear(actor)) is not None


@pytest.mark.parametrize("change", CHANGES)
def test_members_of_a_stack_act_by_changed_layers(change: str) -> None:
    def changed(scale: float = 1.0) -> NetworkActor:
        actor = made("categorical")
        CHANGES[change](actor)
        with torch.no_grad():
            for parameter in actor.parameters():
                parameter.mul_(scale)
        return actor

    actors = [changed(scale) for scale in (1.0, -0.5)]
    members = members_of(changed, changed())
    for slot, actor in enumerate(actors):
        members.load(slot, actor.flat(), {})
    obs, slots = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(4, 5), np.array([0, 0, 1, 1])
    chosen = members.act(RowGroups.of(slots), obs, None, None, "greedy", row_random(4)).action
    for row, slot in enumerate(slots):
        assert chosen[row] == actors[slot].outputs_of(obs[row : row + 1]).argmax()


@dataclass(frozen=True)
class OtherHead(mf.PPO):
    name: ClassVar[str] = "other_head"

    def network(self, spaces: Spaces, model: Any, seed: int) -> Any:
        network = super().network(spaces, model, seed)
        network.actor.head = linear_of(network.actor.head)
        return network


def test_an_actor_of_an_overridden_network_acts_by_what_its_learner_publishes() -> None:
    spaces, algorithm = Spaces(SEEN, gym.Discrete(3)), OtherHead()
    learner: Any = algorithm.learner("main", {"main": mf.Member(spaces, mf.MLP((8,)))}, 0, ON_CPU)
    with torch.no_grad():
        learner.module.actor.head.weight.mul_(-2.0)
    actor: Any = algorithm.actor(spaces, mf.MLP((8,)), 0)
    actor.load_flat(learner.publish()["main"].flat)
    obs = np.linspace(-1.0, 1.0, 20, dtype=np.float32).reshape(4, 5)
    expected = learner.module.actor(torch.from_numpy(obs)).detach().numpy()
    np.testing.assert_allclose(actor.outputs_of(obs), expected, rtol=1e-6, atol=1e-6)
