"""Base of actors with a network: `outputs` computes it for all rows, and `choose` takes the actions.

Apart, many members of one network share one choice (see `policy.stacked`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Mode
from marlflow.policy.tensors import as_array, as_tensor, read_flat, write_flat

Scheduled: TypeAlias = float | Array
"""A scheduled value: one number, or one for each row, float64 [N]."""


def as_scheduled(value: Scheduled) -> Scheduled:
    """Convert one number to a float; leave one per row as it is."""
    return value if isinstance(value, np.ndarray) else float(value)


class NetworkActor(nn.Module):
    """An actor that has the parameters of its network.

    A subclass defines `outputs` and `choose`; one that overrides `act` instead is never stacked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device: str | None = None

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return all that `choose` needs of the parameters, [N, K], and the next memory; `obs` is [N, ...]."""
        raise NotImplementedError

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        """Return actions [N, ...] and log-probabilities float32 [N]; reads no parameter.

        Raises MarlflowError if outputs are not finite, or a row has no legal action.
        """
        raise NotImplementedError

    def outputs_of(self, obs: Array) -> Array:
        """Return the outputs [N, K] of an actor without memory."""
        with torch.inference_mode():
            return as_array(self.outputs(as_tensor(obs, self.device), None)[0])

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        with torch.inference_mode():
            before = as_tensor(memory, self.device) if isinstance(memory, np.ndarray) else None
            outputs, after = self.outputs(as_tensor(obs, self.device), before)
            action, logp = self.choose(outputs, action_mask, mode, generator)
        return Acted(action, logp, memory if after is None else as_array(after))

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        """Set scheduled values; ones per row hold for the next `choose`."""

    def move_to(self, device: str) -> None:
        self.to(device)
        self.device = None if device == "cpu" else device

    def flat(self) -> Array:
        return read_flat(self)

    def load_flat(self, flat: Array) -> None:
        write_flat(self, flat)
