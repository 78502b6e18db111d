"""Softmax policies over the legal Discrete actions, or over each component of MultiDiscrete and MultiBinary ones.

Action masking: an illegal action has probability 0 and its logit gets no gradient (Huang and Ontañón, 2022,
arXiv:2006.14171). Masks of several components have a place for each value of each component, side by side; MultiBinary
components have two values, 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.base.spaces import components
from marlflow.policy.actor import EvaluationMode, Mode, NetworkActor
from marlflow.policy.dense import Layers, as_rows, is_plain, linear, plain_layers, through
from marlflow.policy.tensors import as_array, as_float32

LOWEST = torch.finfo(torch.float32).min


class CategoricalActor(NetworkActor):
    """A torso with a linear head of one logit per action."""

    def __init__(self, torso: nn.Module, features: int, num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.torso = torso
        self.head = linear(features, num_actions, 0.01, generator)

    @property
    def layers(self) -> Layers | None:
        """The layers that compute `outputs`; None if anything else does."""
        modules = self._modules
        return plain_layers(modules["torso"], modules["head"]) if is_plain(self, CategoricalActor) else None

    def forward(self, obs: Tensor) -> Tensor:
        """Return logits [N, A] of `obs` [N, ...]."""
        return through(self.torso, self.head, obs)

    def log_prob_and_entropy(self, logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of `action` (int64 [N]) and entropies, [N] each, in nats."""
        return log_prob_and_entropy(logits, action, mask)

    def probabilities(self, obs: Array, action_mask: Array | None, mode: EvaluationMode) -> Array:
        logits = self.outputs_of(obs).astype(np.float64)
        masked = logits if action_mask is None else np.where(action_mask, logits, -np.inf)
        highest = masked.max(1, keepdims=True)
        # With equal logits the first action is the greedy one, as in `sample`.
        weights = np.eye(masked.shape[1])[masked.argmax(1)] if mode == "greedy" else np.exp(masked - highest)
        probabilities: Array = weights / weights.sum(1, keepdims=True)
        return probabilities

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        # With gradients on, outputs have to have them.
        if torch.is_grad_enabled() or (layers := self.layers) is None:
            return self(obs), None
        return layers.run(as_rows(obs)), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        return sample(as_array(outputs), action_mask, generator.uniform() if mode != "greedy" else None)


def log_prob_and_entropy(logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of `action` (int64 [N]) and entropies, [N] each, given `logits` [N, A].

    `mask` is bool [N, A]. Values and gradients are finite also for illegal actions.
    """
    logits = as_float32(logits)
    if mask is not None:
        logits = logits.masked_fill(~mask, LOWEST)
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def sample(logits: Array, mask: Array | None, uniform: Array | None) -> tuple[Array, Array]:
    """Sample actions (int64 [N]) with log-probabilities (float32 [N]); greedy if `uniform` is None.

    `logits` float32 [N, A], `mask` bool [N, A], `uniform` float64 [N] in [0, 1).
    """
    # The sampled action is the first whose cumulative weight exceeds uniform * total. In float64 the product is below
    # the total for any uniform up to 1 - 2**-53, and an illegal action adds no weight, so it is never the first.
    z = logits.T.copy() if mask is None else np.where(mask.T, logits.T, -np.inf)
    highest = np.maximum.reduce(z, 0)
    if not math.isfinite(highest.sum()):
        raise MarlflowError("cannot choose an action: a row has no legal action, or the network's output is not finite")
    z -= highest
    cumulative = np.add.accumulate(np.exp(z), 0)
    total = cumulative[-1]
    action = z.argmax(0) if uniform is None else np.add.reduce(cumulative <= uniform * total, 0, dtype=np.int64)
    logp = z[action, np.arange(len(total))] - np.log(total)
    return action, logp


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
