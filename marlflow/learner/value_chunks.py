"""Values and initial priorities in chunks, so that a row's do not depend on the other rows of the batch.

A worker with few rows therefore computes the same as a learner with many, bit for bit. Initial priorities of new rows:
Ape-X (Horgan et al., 2018, arXiv:1803.00933, section 3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, Transitions

# On a CPU, the last bit of a value can depend on the number of rows; for multiples of 16 it does not. The maximum
# bounds the memory of one forward pass.
CHUNK_ROWS = 16_384
WHOLE_ROWS = 16


def value_chunks(obs: Array) -> Iterator[Array]:
    """Yield `obs` [N, ...] in chunks of up to 16,384 rows, the last zero-padded to a multiple of 16."""
    whole = len(obs) - len(obs) % WHOLE_ROWS
    for start in range(0, whole, CHUNK_ROWS):
        yield obs[start : min(start + CHUNK_ROWS, whole)]
    if rest := len(obs) - whole:
        last = np.zeros((WHOLE_ROWS, *obs.shape[1:]), obs.dtype)
        last[:rest] = obs[whole:]
        yield last


@dataclass(frozen=True, slots=True)
class ModuleCritic:
    """Estimates by a torch module, in chunks."""

    module: Callable[..., Tensor]
    tensor: Callable[[Array], Tensor]
    autocast: torch.autocast | None = None

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """Return the values, float32 [N], of `obs` [N, ...] and, if it is recurrent, `memory` [N, ...]."""
        columns = (obs,) if memory is None else (obs, memory)
        return chunked_values(self.module, columns, self.tensor, self.autocast)


def chunked_values(
    critic: Callable[..., Tensor],
    columns: Sequence[Array],
    tensor: Callable[[Array], Tensor],
    autocast: torch.autocast | None = None,
) -> Array:
    """Return the critic's values, float32 [N], of `columns` [N, ...], computed in chunks."""
    chunks = [np.zeros(0, np.float32)]
    with torch.inference_mode(), in_evaluation_mode(critic):
        for chunk in zip(*map(value_chunks, columns), strict=True):
            with autocast or nullcontext():
                values = critic(*map(tensor, chunk))
            chunks.append(values.float().cpu().numpy())
    return np.concatenate(chunks)[: len(columns[0])]


@contextmanager
def in_evaluation_mode(critic: object) -> Iterator[None]:
    """Have layers of a user's, such as dropout, act as in evaluation meanwhile."""
    # A network itself, or a method of one.
    network = getattr(critic, "__self__", critic)
    in_training = [one for one in network.modules() if one.training] if isinstance(network, nn.Module) else []
    for module in in_training:
        module.training = False
    try:
        yield
    finally:
        for module in in_training:
            module.training = True


@runtime_checkable
class PrioritizingLoss(Protocol):
    """A loss that computes priorities without training."""

    def priorities(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return priorities [N], at least 0, for the columns of Transitions."""
        ...


def transitions_of(batch: Batch) -> Transitions:
    """Return every row's n-step transition; `row_id` counts from 0."""
    columns = batch.columns
    return Transitions(
        obs=columns["obs"],
        action=columns["action"],
        reward=columns["window_reward"],
        discount=columns["window_discount"],
        next_obs=_after_windows(batch, "obs", "bootstrap_obs"),
        weight=np.ones(batch.rows, np.float32),
        row_id=np.arange(batch.rows),
        action_mask=columns.get("action_mask"),
        next_mask=_after_windows(batch, "action_mask", "bootstrap_mask") if "action_mask" in columns else None,
        version=columns.get("version"),
    )


def _after_windows(batch: Batch, name: str, bootstrap: str) -> Array:
    # The observation, or mask, after each row's n-step window.
    after = np.arange(batch.rows) + batch.columns["window_steps"]
    segment = np.repeat(np.arange(len(batch.segments["length"])), batch.segments["length"])
    ended = np.flatnonzero(after > batch.ends()[segment])
    # The minimum only keeps the index valid; these rows are overwritten below.
    following: Array = batch.columns[name].take(np.minimum(after, batch.rows - 1), axis=0)
    following[ended] = batch.segments[bootstrap].take(segment[ended], axis=0)
    return following


def chunked_priorities(
    loss: Any, module: Any, columns: Mapping[str, Array], tensor: Callable[[Array], Tensor]
) -> Array:
    """Return the priorities, float32 [N], of `columns` [N, ...]; raises TypeError without a PrioritizingLoss."""
    if not isinstance(loss, PrioritizingLoss):
        raise TypeError(f"{type(loss).__name__} gives no priorities; InitialPriorities needs a loss with `priorities`")
    chunks, rows = [np.zeros(0, np.float32)], len(columns["obs"])
    with torch.inference_mode(), in_evaluation_mode(module):
        for chunk in zip(*map(value_chunks, columns.values()), strict=True):
            minibatch = {name: tensor(part) for name, part in zip(columns, chunk, strict=True)}
            chunks.append(loss.priorities(module, module, minibatch).float().cpu().numpy())
    # The last chunk was padded.
    return np.concatenate(chunks)[:rows]
