"""Credit rewards and costs to the open row of each lane, or to no row, by the rules of `sampling.segment_builder`."""

from __future__ import annotations

import numpy as np

from marlflow.base.batch import Array


class Credited:
    """The rewards, or the costs, of all lanes: `open` [lanes] is what their open rows have received so far.

    `entry_of` [lanes] has each lane's policy slots by number (-1: none). Amounts that belong to no row are added to
    `unattributed` [entries + 1], whose last element is for lanes without a policy.
    """

    __slots__ = ("_cells", "_entry_of", "_flat", "open", "unattributed")

    def __init__(self, entry_of: Array, num_entries: int) -> None:
        self._entry_of = entry_of
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
        add_to(self.open, lanes, amounts)

    def add_unattributed(self, lanes: Array, amounts: Array) -> None:
        """Add amounts that belong to no row."""
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
        slots in each tick.
        """
        whole = np.concatenate([self.open[None], amounts])
        where = at[is_open]
        # bincount adds in the order of ticks, as one tick after the other does.
        sums = np.bincount(where, whole[is_open], minlength=len(self._flat))
        self._flat[where] = sums[where]
        self.open[:] = np.where(still, sums[at[-1]], 0.0)
        missed = ~is_open & (whole != 0.0)
        if missed.any():
            entries = np.concatenate([entry_of[:1], entry_of])
            np.add.at(self.unattributed, entries[missed], whole[missed])

    def complete(self, lanes: Array, cell: Array) -> None:
        """Complete the open rows of `lanes`, which are in `cell`."""
        self._cells[lanes, cell] = self.open[lanes]
        self.open[lanes] = 0.0

    def leave(self, lanes: Array | slice) -> None:
        """Add what these lanes received since their rows were closed to `unattributed`."""
        amounts = self.open[lanes]
        if amounts.any():
            np.add.at(self.unattributed, self._entry_of[lanes], amounts)
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
