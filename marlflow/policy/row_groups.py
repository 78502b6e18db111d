"""Rows of several members of a network, grouped by member."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marlflow.base.arrays import Array


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The members of N rows: `slots` [G] distinct, with `counts` [G] consecutive rows each."""

    slots: Array
    counts: Array
    group_of_row: Array
    """The group of each row, [N]."""
    place: Array
    """Each row's place in its group, [N]."""
    spans: Sequence[tuple[int, int, int]]
    """Slot, first row and end of each group."""

    @staticmethod
    def of(slot_of_row: Array) -> RowGroups:
        """Group rows by their slots, int64 [N], which are adjacent where equal."""
        firsts = np.flatnonzero(np.diff(slot_of_row, prepend=-1))
        stops = np.append(firsts, len(slot_of_row))[1:]
        counts, slots = stops - firsts, slot_of_row[firsts]
        group_of_row = np.repeat(np.arange(len(firsts)), counts)
        place = np.arange(len(slot_of_row)) - firsts[group_of_row]
        spans = list(zip(slots.tolist(), firsts.tolist(), stops.tolist(), strict=True))
        return RowGroups(slots, counts, group_of_row, place, spans)

    @property
    def padding(self) -> float:
        """By what factor the number of rows grows if each group has room for the largest."""
        return len(self.slots) * int(self.counts.max()) / len(self.place)

    def padded(self, rows: Tensor) -> Tensor:
        """Return rows [N, ...] as [G, largest group, ...], with zeros in empty places."""
        padded = np.zeros((len(self.slots), int(self.counts.max()), *rows.shape[1:]), rows.numpy().dtype)
        padded[self.group_of_row, self.place] = rows.numpy()
        return torch.from_numpy(padded)

    def flat(self, padded: Tensor) -> Tensor:
        """Return the rows [N, ...] of `padded`."""
        return torch.from_numpy(padded.numpy()[self.group_of_row, self.place])
