"""Workers act by the network that learns, also where a class of a user's overrides `network`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import marlflow as mf
from marlflow.algorithms.shipped import SHIPPED
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.games.pendulum_team import PendulumTeam
from marlflow.policy.recurrent import RecurrentNetworkActor


class Opposite(nn.Module):
    """The same parameters, and another function."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Tensor) -> Any:
        return -self.inner(*given)


class Overriding:
    """Makes networks whose actors have another head."""

    def network(self, *given: Any) -> Any:
        network = super().network(*given)  # type: ignore[misc]
        for actor in getattr(network, "actors", {"": network.actor} if hasattr(network, "actor") else {}).values():
            holder = actor.head if isinstance(actor, RecurrentNetworkActor) else actor
            holder.head = self.change(holder.head)
        return network

    def change(self, head: nn.Module) -> nn.Module:
        return Opposite(head)


class Normalizing(Overriding):
    def change(self, head: nn.Module) -> nn.Module:
        return nn.Sequential(head, nn.LayerNorm(2))


class Actors:
    """Makes actors for workers as for its network."""

    def actor(self, spaces: Any, model: Any, seed: int) -> Any:
        actor = super().actor(spaces, model, seed)  # type: ignore[misc]
        with torch.no_grad():
            actor.head = Opposite(actor.head)
        return actor


@dataclass(frozen=True)
class OwnDQN(Overriding, mf.DQN):
    """Base classes make its actor of its network."""


@dataclass(frozen=True)
class OwnVDN(Overriding, mf.VDN):
    pass


@dataclass(frozen=True)
class OwnQMIX(Overriding, mf.QMIX):
    pass


@dataclass(frozen=True)
class OtherShapes(Normalizing, mf.VDN):
    pass


@dataclass(frozen=True)
class OwnHAPPO(Overriding, mf.HAPPO):
    pass


@dataclass(frozen=True)
class BothVDN(Actors, Overriding, mf.VDN):
    pass


class Noisy(nn.Module):
    """Draws random numbers, also when it acts."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *given: Tensor) -> Any:
        return self.inner(*given) + 0.1 * torch.randn(1)


class Failing(Noisy):
    """Fails where it computes."""

    def forward(self, *given: Tensor) -> Any:
        raise RuntimeError("no such layer")


@dataclass(frozen=True)
class NoisyDQN(Overriding, mf.DQN):
    def change(self, head: nn.Module) -> nn.Module:
        return Noisy(head)


@dataclass(frozen=True)
class FailingVDN(Overriding, mf.VDN):
    def change(self, head: nn.Module) -> nn.Module:
        return Failing(head)


class Counting(nn.Module):
    """Counts its rows in a buffer, in training mode."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("rows", torch.zeros(()))

    def forward(self, *given: Tensor) -> Any:
        if self.training:
            self.rows += len(given[0])
        return self.inner(*given)


@dataclass(frozen=True)
class CountingDQN(Overriding, mf.DQN):
    def change(self, head: nn.Module) -> nn.Module:
        return Counting(head)


def problems(algorithm: mf.Algorithm, model: Any, env: Any = CartPoleTeam, group: str = "cart") -> list[str]:
    experiment = mf.Experiment(
        mf.Env(env, wrappers=["joint_state"]), {group: mf.Policy(algorithm, model)}, stop=mf.Stop(env_steps=1_000)
    )
    try:
        mf.plan(experiment)
    except mf.ConfigInvalid as error:
        return list(error.problems)
    return []


MODELS = {"mlp": mf.MLP((8,)), "gru": mf.GRU(8, (6,))}


@pytest.mark.parametrize(
    ("algorithm", "model", "made_by"),
    [
        (OwnVDN(), "mlp", "VDN"),
        (OwnVDN(), "gru", "VDN"),
        (OwnQMIX(), "mlp", "VDN"),
        (OtherShapes(), "mlp", "VDN"),
        (OwnHAPPO(), "mlp", "HAPPO"),
        (OwnDQN(), "mlp", None),
        (BothVDN(), "mlp", None),
    ],
)
def test_a_network_that_workers_would_not_act_by_is_refused(
    algorithm: mf.Algorithm, model: str, made_by: str | None
) -> None:
    found = problems(algorithm, MODELS[model])
    if made_by is None:
        assert found == []
        return
    (problem,) = found
    assert (
        f"Overriding.network makes other networks than {made_by}.actor, by which the workers act; override" in problem
    )


def test_networks_that_draw_random_numbers_are_compared_by_the_same_ones() -> None:
    assert problems(NoisyDQN(), mf.MLP((8,))) == []


def test_a_buffer_that_changes_in_training_is_still_found() -> None:
    (problem,) = problems(CountingDQN(compile=False), mf.MLP((8,)))
    assert "its network changes the buffer actor.head.rows" in problem


def test_an_error_of_a_network_is_told_as_it_is() -> None:
    (problem,) = problems(FailingVDN(), mf.MLP((8,)))
    assert "no such layer" in problem
    assert "override actor" not in problem


JOINT = [one for one in SHIPPED if isinstance(one, mf.JointAlgorithm)]


@pytest.mark.parametrize("algorithm", JOINT, ids=[one.name for one in JOINT])
def test_a_class_that_adds_nothing_to_a_joint_algorithm_is_not_refused(algorithm: Any) -> None:
    own = type(f"Own{type(algorithm).__name__}", (type(algorithm),), {"__module__": __name__})()
    has_box = "Discrete" not in algorithm.capabilities.actions
    env, group = (PendulumTeam, "pendulum") if has_box else (CartPoleTeam, "cart")
    assert problems(own, mf.MLP((8,)), env, group) == []
