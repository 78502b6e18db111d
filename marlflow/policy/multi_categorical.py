"""Policy over MultiDiscrete and MultiBinary actions: an independent softmax for each component.

Masks have a place for each value of each component, side by side; MultiBinary components have two values, 0 and 1. The
masked softmax is that of `policy.categorical`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.base.spaces import components
from marlflow.policy.actor import Mode
from marlflow.policy.categorical import log_prob_and_entropy, sample
from marlflow.policy.dense import linear, through
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.tensors import as_array


class MultiCategoricalActor(NetworkActor):
    """A torso with a linear head of one logit per value of each component.

    `choices` has the number of values of each component, `shape` the actions' shape.
    """

    def __init__(
        self,
        torso: nn.Module,
        features: int,
        choices: Sequence[int],
        shape: tuple[int, ...],
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        self.torso = torso
        self.head = linear(features, sum(choices), 0.01, generator)
        self._choices, self._shape = list(choices), shape

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits [N, sum(choices)] of `obs` [N, ...]."""
        return through(self.torso, self.head, obs)

    def log_prob_and_entropy(self, logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of `action` (int64 [N, *shape]) and entropies, [N] each, in nats."""
        masks = [None] * len(self._choices) if mask is None else mask.split(self._choices, 1)
        parts = zip(logits.split(self._choices, 1), action.flatten(1).unbind(1), masks, strict=True)
        logps, entropies = zip(*(log_prob_and_entropy(*part) for part in parts), strict=True)
        return torch.stack(logps).sum(0), torch.stack(entropies).sum(0)

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        return self(obs), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        logits = components(as_array(outputs), self._choices)
        masks = [None] * len(logits) if action_mask is None else components(action_mask, self._choices)
        draws = [generator.uniform() if mode != "greedy" else None for _ in logits]
        chosen = [sample(*part) for part in zip(logits, masks, draws, strict=True)]
        action = np.stack([action for action, _ in chosen], axis=1)
        logp: Array = np.sum([logp for _, logp in chosen], axis=0)
        return action.reshape(len(action), *self._shape), logp
