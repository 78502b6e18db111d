"""Ensembles of critics, of an observation and one action (Box) or all actions (Discrete), and a critic of costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import CriticInput
from marlflow.policy.actor_critic import critic_body
from marlflow.policy.dense import Dense, as_rows, linear, through
from marlflow.policy.normalized import NormalizedRows, ValueCritic
from marlflow.policy.torso import MLP, NestedTorsoConfig, TorsoConfig, build_torso


class Ensemble(nn.Module):
    """K networks: `torsos`, each with the number of its features, and on each a layer of `outputs` values."""

    def __init__(self, torsos: Iterable[tuple[nn.Module, int]], outputs: int, generator: torch.Generator) -> None:
        super().__init__()
        self.torsos, self.heads = nn.ModuleList(), nn.ModuleList()
        for torso, features in torsos:
            self.torsos.append(torso)
            self.heads.append(linear(features, outputs, 1.0, generator))

    def forward(self, rows: Tensor) -> Tensor:
        """Return values [K, N, outputs] of `rows` [N, ...]."""
        networks = zip(self.torsos, self.heads, strict=True)
        return torch.stack([through(torso, head, rows) for torso, head in networks]).float()

    def first(self, rows: Tensor) -> Tensor:
        """Return the first network's values, [N, outputs]."""
        return through(self.torsos[0], self.heads[0], rows).float()


class ActionCritics(Ensemble):
    """Critics that value all A Discrete actions of an observation: [K, N, A]."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, count: int, generator: torch.Generator) -> None:
        torsos = (build_torso(spaces, model, generator) for _ in range(count))
        super().__init__(torsos, spaces.num_actions, generator)


class BoxCritics(nn.Module):
    """Critics of an observation and a Box action with components in [-1, 1]."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, count: int, generator: torch.Generator) -> None:
        super().__init__()
        self.joins, self.heads = nn.ModuleList(), nn.ModuleList()
        for _ in range(count):
            join, features = _build_join(spaces, model, generator)
            self.joins.append(join)
            self.heads.append(linear(features, 1, 1.0, generator))

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [K, N] of `obs` [N, ...] and `action` [N, D]."""
        critics = zip(self.joins, self.heads, strict=True)
        return torch.stack([head(join(obs, action)).squeeze(-1) for join, head in critics]).float()

    def first(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return the first critic's values, [N]."""
        value: Tensor = self.heads[0](self.joins[0](obs, action)).squeeze(-1)
        return value.float()


class ConcatFirst(nn.Module):
    """A torso over the concatenated observation and action."""

    def __init__(self, torso: nn.Module, rows: NormalizedRows | None) -> None:
        super().__init__()
        self.torso, self.rows = torso, rows

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return features [N, F] of `obs` [N, ...] and `action` [N, D]."""
        rows_of_obs = as_rows(obs) if self.rows is None else self.rows(obs)
        features: Tensor = self.torso(torch.cat((rows_of_obs, action), 1))
        return features


class TorsoFirst(nn.Module):
    """A torso over the observation, then one layer over its features and the action."""

    def __init__(self, torso: nn.Module, features: int, action_size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.torso = torso
        self.layer = Dense([features + action_size, features], "relu", generator)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        features: Tensor = self.layer(torch.cat((self.torso(obs).float(), action), 1))
        return features


def _build_join(spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> tuple[nn.Module, int]:
    layout, size = spaces.layout(), int(torch.Size(spaces.action_shape).numel())
    assert isinstance(spaces.action, gym.Box)
    vector = layout.form == "flat" or (layout.form == "plain" and len(layout.shape) <= 1)
    if vector and not isinstance(model, NestedTorsoConfig):
        numbers = sum(leaf.size for leaf in layout.leaves)
        rows = None
        if isinstance(model, MLP) and model.normalize_observations:
            # Normalize only the observation: actions are in [-1, 1] already.
            rows, model = NormalizedRows(numbers), replace(model, normalize_observations=False)
        torso, features = model.build((numbers + size,), generator)
        return ConcatFirst(torso, rows), features
    torso, features = build_torso(spaces, model, generator)
    return TorsoFirst(torso, features, size, generator), features


class CostCritic(ValueCritic):
    """Estimates costs to come, with its own layers and the same input as the critic of rewards."""

    value_target: ClassVar[str] = "cost_value_target"

    def __init__(self, spaces: Spaces, seen: CriticInput | None, model: TorsoConfig, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.torso, features = critic_body(spaces, seen, model, generator)
        self.head = linear(features, 1, 1.0, generator)

    @property
    def value_head(self) -> nn.Linear:
        return self.head

    def forward(self, obs: Tensor) -> Tensor:
        """Return the costs to come, [N], of `obs` [N, ...], or of rows of `central`."""
        return self.as_values(through(self.torso, self.head, obs))
