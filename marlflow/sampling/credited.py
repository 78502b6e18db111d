"""Credit rewards and infos to the open row of each lane, or to no row, by the rules of `sampling.segment_builder`."""

from __future__ import annotations

import numpy as np

from marlflow.base.arrays import Array


class Credited:
    """The rewards, or an info column, of all lanes: `open` [lanes] is what their open rows have received so far.

    `entry_of` [lanes] has each lane's policy slots by number (-1: none). Amounts that belong to no row are added to
    `unattributed` [entries + 1], whose last element is for lanes without a policy. If it does not add (`adds`), a row
    has the last amount, and those of no row are forgotten.
    """

    __slots__ = ("_cells", "_entry_of", "_flat", "adds", "open", "unattributed")

    def __init__(self, entry_of: Array, num_entries: int, adds: bool = True) -> None:
        self._entry_of, self.adds = entry_of, adds
        self.open = np.zeros(len(entry_of), np.float64)
        self._cells: Array = np.zeros((len(entry_of), 0), np.float64)
        # A flat view: numpy writes with one index array several times as fast as with two.
        self._flat: Array = self._cells.reshape(-1)
        self.renumber(num_entries)

    def renumber(self, num_entries: int) -> None:
        """Resize for a table of `num_entries` entries, after a cut."""
        self.unattributed = np.zeros(num_entries + 1, np.float64)

    def widen(self, missing: int) -> None:
        """Add room for `missing` rows per lane."""
        self._cells = np.pad(self._cells, ((0, 0), (0, missing)))
        self._flat = self._cells.reshape(-1)

    def add(self, lanes: Array | None, amounts: Array) -> None:
        """Add to the open rows of `lanes`, which may repeat; None: of all lanes."""
        if self.adds:
            add_to(self.open, lanes, amounts)
        else:
            self.open[slice(None) if lanes is None else lanes] = amounts

    def add_unattributed(self, lanes: Array | slice, amounts: Array) -> None:
        """Add amounts that belong to no row."""
        if not self.adds:
            return
        np.add.at(self.unattributed, self._entry_of[lanes], amounts)

    def close(self, lanes: Array, at: Array, was_open: Array) -> None:
        """Complete the rows in the flat cells `at` of those `lanes` that have an open row, and begin again with 0."""
        amounts = self.open[lanes]
        self._flat[at] = amounts
        if not was_open.all():
            # Received without an open row, such as before an agent's first action.
            self.add_unattributed(lanes, np.where(was_open, 0.0, amounts))
        self.open[lanes] = 0.0

    def add_ticks(self, at: Array, amounts: Array, is_open: Array, entry_of: Array, still: Array) -> None:
        """Add what lanes received in T ticks, [T, lanes], to the rows in the flat cells `at` where `is_open`.

        `at` [T + 1, lanes] begins with the cells of the rows that were open before, where `is_open` [T + 1, lanes] says
        so. `still` [lanes]: whether the last row of a lane is still open. `entry_of` [T, lanes] has the lanes' policy
        slots in each tick. Amounts are NaN where there are none.
        """
        whole = np.concatenate([self.open[None], amounts])
        given = ~np.isnan(whole)
        received = is_open & given
        where = at[received]
        so_far: Array = np.zeros(len(self._flat))
        if self.adds:
            # bincount adds in the order of ticks, as one tick after the other does.
            so_far = np.bincount(where, whole[received], minlength=len(self._flat))
        else:
            so_far[where] = whole[received]
        self._flat[where] = so_far[where]
        self.open[:] = np.where(still, so_far[at[-1]], 0.0)
        missed = ~is_open & given & (whole != 0.0)
        if self.adds and missed.any():
            entries = np.concatenate([entry_of[:1], entry_of])
            np.add.at(self.unattributed, entries[missed], whole[missed])

    def leave(self, lanes: Array | slice) -> None:
        """Add what these lanes received since their rows were closed to `unattributed`."""
        amounts = self.open[lanes]
        if amounts.any():
            self.add_unattributed(lanes, amounts)
            self.open[lanes] = 0.0

    def take(self, at: Array) -> Array:
        """Return the amounts of the rows in the flat cells `at`."""
        return self._flat.take(at)


def add_to(totals: Array, lanes: Array | None, amounts: Array) -> None:
    """Add `amounts` to those of `totals` [lanes] that are of `lanes`, which may repeat; None: to all."""
    if lanes is None:
        totals += amounts
    else:
        np.add.at(totals, lanes, amounts)
