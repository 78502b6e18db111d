"""Initial priorities of new rows (Ape-X: Horgan et al., 2018, arXiv:1803.00933, section 3)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, Transitions
from marlflow.learner.value_chunks import value_chunks


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
    with torch.inference_mode():
        for chunk in zip(*map(value_chunks, columns.values()), strict=True):
            minibatch = {name: tensor(part) for name, part in zip(columns, chunk, strict=True)}
            chunks.append(loss.priorities(module, module, minibatch).float().cpu().numpy())
    # The last chunk was padded.
    return np.concatenate(chunks)[:rows]
