"""A small causal transformer over an observation that is a sequence of tokens.

Vaswani et al., 2017, arXiv:1706.03762, decoder only, with the layer normalization in front (Radford et al., 2019).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.errors import ConfigInvalid
from marlflow.base.observations import ObservationLayout
from marlflow.base.ranges import TinyCount, Width
from marlflow.policy.dense import linear

LONGEST = 16
"""The most positions of a sequence; each decision computes all of them again."""
_FEEDFORWARD = 4


class Attention(nn.Module):
    """Causal self-attention with several heads: a position sees itself and earlier positions."""

    def __init__(self, size: int, num_heads: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self._num_heads = num_heads
        self.query, self.key, self.value = (linear(size, size, 1.0, generator) for _ in range(3))
        self.output = linear(size, size, gain, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, D] of `x` [N, T, D]."""
        length = x.shape[1]
        # [N, heads, T, D / heads] each.
        query, key, value = (
            layer(x).unflatten(2, (self._num_heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(key.shape[3])
        later = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = torch.softmax(scores.masked_fill(later, -math.inf), 3)
        output: Tensor = self.output((weights @ value).transpose(1, 2).flatten(2))
        return output


class Block(nn.Module):
    """Attention and two dense layers, each with a layer normalization in front, and added to its input."""

    def __init__(self, size: int, num_heads: int, gain: float, generator: torch.Generator) -> None:
        super().__init__()
        self.attention_norm, self.dense_norm = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attention = Attention(size, num_heads, gain, generator)
        self.wide = linear(size, _FEEDFORWARD * size, math.sqrt(2.0), generator)
        self.narrow = linear(_FEEDFORWARD * size, size, gain, generator)

    def forward(self, x: Tensor) -> Tensor:
        """Return [N, T, D] of `x` [N, T, D]."""
        x = x + self.attention(self.attention_norm(x))
        result: Tensor = x + self.narrow(functional.gelu(self.wide(self.dense_norm(x))))
        return result


class TokenTransformer(nn.Module):
    """Features of the last token of each sequence; 0 is padding, at the end."""

    def __init__(
        self, length: int, vocabulary: int, num_layers: int, size: int, num_heads: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self._shape = (length, vocabulary)
        # Tokens arrive one-hot, so that their embedding is a matrix product.
        self.embedding = nn.Linear(vocabulary, size, bias=False)
        self.positions = nn.Parameter(torch.empty(length, size))
        nn.init.orthogonal_(self.embedding.weight, 1.0, generator)
        nn.init.orthogonal_(self.positions, 1.0, generator)
        # So that the sum over all layers starts as large as the embedding (Radford et al., 2019).
        gain = 1.0 / math.sqrt(2.0 * num_layers)
        self.blocks = nn.ModuleList(Block(size, num_heads, gain, generator) for _ in range(num_layers))
        self.norm = nn.LayerNorm(size)

    def forward(self, obs: Tensor) -> Tensor:
        """Return features [N, D] of one-hot tokens `obs` [N, T * vocabulary]."""
        tokens = obs.unflatten(1, self._shape)
        is_token = 1.0 - tokens[:, :, 0]
        # The largest position of a token; 0 if all are padding.
        last = (is_token * torch.arange(self._shape[0], device=obs.device)).argmax(1)
        hidden = self.hidden(tokens)
        return hidden.gather(1, last.view(-1, 1, 1).expand(-1, 1, hidden.shape[2])).squeeze(1)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the features of every position, [N, T, D], of one-hot tokens [N, T, vocabulary]."""
        x = self.embedding(tokens.float()) + self.positions
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.norm(x)
        return result


@dataclass(frozen=True, slots=True)
class Transformer:
    """A causal transformer over tokens, MultiDiscrete([V] * T) with T of at most 16; the value 0 is padding.

    Features come from the last token that is not padding. Every decision computes the whole sequence again.
    """

    num_layers: TinyCount = 2  #: blocks of attention and dense layers
    hidden_size: Width = 32  #: units of each position
    num_heads: TinyCount = 2  #: heads of attention, which divide hidden_size among them

    def build(self, obs_shape: tuple[int, ...], generator: torch.Generator) -> tuple[nn.Module, int]:
        """Raise ConfigInvalid: plain numbers are no tokens."""
        raise ConfigInvalid([_not_tokens(f"numbers of shape {obs_shape}")])

    def build_nested(self, layout: ObservationLayout, generator: torch.Generator) -> tuple[nn.Module, int]:
        """Build the transformer for a layout of one MultiDiscrete."""
        found = [leaf.space for leaf in layout.leaves]
        space = found[0]
        if len(found) > 1 or not isinstance(space, spaces.MultiDiscrete) or space.nvec.ndim != 1:
            raise ConfigInvalid([_not_tokens(" ".join(" and ".join(map(str, found)).split()))])
        sizes = space.nvec.tolist()
        if len(set(sizes)) > 1:
            raise ConfigInvalid([_not_tokens(f"{space}, whose positions have different vocabularies")])
        if len(sizes) > LONGEST:
            raise ConfigInvalid([_not_tokens(f"{len(sizes)} of them")])
        if self.hidden_size % self.num_heads:
            raise ConfigInvalid(
                [
                    f"a Transformer divides its hidden_size among its heads, and {self.hidden_size} is no multiple of "
                    f"num_heads, {self.num_heads}; change one of them"
                ]
            )
        transformer = TokenTransformer(
            len(sizes), sizes[0], self.num_layers, self.hidden_size, self.num_heads, generator
        )
        return transformer, self.hidden_size


def _not_tokens(found: str) -> str:
    return f"a Transformer sees up to {LONGEST} tokens of one vocabulary, MultiDiscrete([V] * T), not {found}; use MLP"
