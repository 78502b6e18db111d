"""An actor of tokens, and critics of utterances (ArCHer; Zhou et al., 2024, arXiv:2402.19446)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from marlflow.base.spaces import Spaces
from marlflow.batches.utterances import UtteranceLayout, utterance_layout
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.critics import Ensemble
from marlflow.policy.torso import TorsoConfig, build_torso


class Values(Ensemble):
    """`count` networks from rows of observations to a value each."""

    def __init__(self, spaces: Spaces, model: TorsoConfig, count: int, generator: torch.Generator) -> None:
        super().__init__((build_torso(spaces, model, generator) for _ in range(count)), 1, generator)

    def forward(self, rows: Tensor) -> Tensor:
        """Return values [K, N] of `rows` [N, D]."""
        return super().forward(rows).squeeze(-1)


class UtteranceCritics(nn.Module):
    """Two critics of an utterance, and two of the observation before it.

    `q` maps rows that show a whole utterance to values [2, N], `v` rows before the first token.
    """

    def __init__(self, spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> None:
        super().__init__()
        self.q = Values(spaces, model, 2, generator)
        self.v = Values(spaces, model, 2, generator)


class UtteranceNetwork(nn.Module):
    """A softmax actor of tokens, critics of utterances, and perhaps a token's `baseline` of their advantage."""

    def __init__(
        self, spaces: Spaces, model: TorsoConfig, end_token: int | None, has_baseline: bool, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.layout = utterance_layout(spaces, end_token)
        self.actor = token_actor(spaces, model, generator)
        self.baseline = Values(spaces, model, 1, generator) if has_baseline else None
        self.critics = UtteranceCritics(spaces, model, generator)


def token_actor(spaces: Spaces, model: TorsoConfig, generator: torch.Generator) -> CategoricalActor:
    """Build a softmax actor of tokens."""
    return CategoricalActor(*build_torso(spaces, model, generator), spaces.num_actions, generator)


def showing(obs: Tensor, tokens: Tensor, layout: UtteranceLayout) -> Tensor:
    """Return rows [N, D] that show `tokens`, int64 [N, L], instead."""
    rows = obs.clone()
    rows[:, layout.start : layout.stop] = nn.functional.one_hot(tokens, layout.num_actions + 1).flatten(1).to(obs.dtype)
    return rows


def sampled(actor: nn.Module, silent: Tensor, noise: Tensor, layout: UtteranceLayout) -> Tensor:
    """Sample an utterance of the actor for each row before its first token; return rows that show it, [N, D].

    `noise` [N, L] are standard normal numbers, one for each token.
    """
    uniform = torch.special.ndtr(noise.double())
    tokens = torch.zeros(len(silent), layout.length, dtype=torch.int64, device=silent.device)
    goes_on, rows = torch.ones(len(silent), dtype=torch.bool, device=silent.device), silent
    for place in range(layout.length):
        cumulative = torch.softmax(actor(rows).double(), 1).cumsum(1)
        # The last one may round to below 1.
        token = (cumulative[:, :-1] <= uniform[:, place, None]).sum(1)
        tokens[:, place] = torch.where(goes_on, token + 1, 0)
        if layout.end_token is not None:
            goes_on = goes_on & (token != layout.end_token)
        rows = showing(silent, tokens, layout)
    return rows
