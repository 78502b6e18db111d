"""A policy over Discrete actions: a softmax over the legal ones.

An illegal action has probability 0 exactly, when acting and in log-probabilities and entropy (Huang and Ontañón, 2022,
arXiv:2006.14171), and no gradient reaches its logit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode
from marlflow.policy.dense import Dense, Layers, as_rows, linear, through
from marlflow.policy.tensors import as_array, as_tensor, read_flat, write_flat

LOWEST = torch.finfo(torch.float32).min


class CategoricalActor(nn.Module):
    """A torso with a linear head of one logit per action."""

    def __init__(self, torso: nn.Module, features: int, num_actions: int, generator: torch.Generator) -> None:
        super().__init__()
        self.torso = torso
        self.head = linear(features, num_actions, 0.01, generator)
        self.device: str | None = None
        # Exactly these classes: one derived from them may compute something else.
        plain = type(self) is CategoricalActor and type(torso) is Dense
        self.layers = Layers(cast(Dense, torso), self.head) if plain else None

    def forward(self, obs: Tensor) -> Tensor:
        """Logits [N, A] of `obs` [N, ...]."""
        return through(self.torso, self.head, obs)

    def log_prob_and_entropy(self, logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Of `action` (int64 [N]) and of the whole distribution, [N] each, in nats."""
        return log_prob_and_entropy(logits, action, mask)

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Samples an action per row, or takes the most likely one when greedy."""
        with torch.inference_mode():
            seen = as_tensor(obs, self.device)
            logits = as_array(self(seen) if self.layers is None else self.layers.run(as_rows(seen))[-1])
        action, logp = sample(logits, action_mask, generator.uniform() if mode != "greedy" else None)
        return Acted(action, logp, memory)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of a categorical actor is scheduled."""

    def move_to(self, device: str) -> None:
        """Acts on a torch device from here on; what comes in and goes out are still arrays."""
        self.to(device)
        self.device = None if device == "cpu" else device

    def flat(self) -> Array:
        """A copy of all parameters, in their order, as one float32 vector."""
        return read_flat(self)

    def load_flat(self, flat: Array) -> None:
        """Replaces all parameters by those of `flat`; raises WeightsMismatch if it has another size."""
        write_flat(self, flat)


def log_prob_and_entropy(logits: Tensor, action: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Log-probability of `action` (int64 [N]) and entropy, [N] each, of a softmax over the legal actions.

    `logits` [N, A]; `mask` bool [N, A]. Finite, and with finite gradients, also where actions are illegal.
    """
    if mask is not None:
        logits = logits.masked_fill(~mask, LOWEST)
    logp = torch.log_softmax(logits, -1)
    entropy = -(logp.exp() * logp).sum(-1)
    return logp.gather(-1, action.unsqueeze(-1)).squeeze(-1), entropy


def sample(logits: Array, mask: Array | None, uniform: Array | None) -> tuple[Array, Array]:
    """Actions (int64 [N]) and their log-probabilities (float32 [N]) by inverse CDF; without `uniform` the likeliest.

    `logits` float32 [N, A], `mask` bool [N, A], `uniform` float64 [N] in [0, 1). The action is the first whose
    cumulative weight exceeds `uniform * total`. In float64 that product stays below the total for any `uniform` up to
    1 - 2**-53, and an illegal action adds nothing to the cumulative weight, so it is never the first to exceed.
    """
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
