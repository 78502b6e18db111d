"""n-step windows over segments (Sutton and Barto, "Reinforcement Learning", 2nd edition, section 7.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from marlflow.base.batch import Array


@dataclass(frozen=True, slots=True)
class Windows:
    """The window that begins at each row, [N] each.

    `reward` is the discounted sum over the window's k steps, `discount` what the value after it is multiplied by,
    `next_row` the index of the row after it. Where it `reaches_end` of its segment, what follows is the segment's
    bootstrap, not a row.
    """

    reward: Array
    discount: Array
    next_row: Array
    reaches_end: Array


def windows(reward: Array, length: Array, terminated: Array, n_step: int, discount: float) -> Windows:
    """The windows of up to `n_step` rows that begin at each row and stop at its segment's end.

    reward: [N], of the rows of all segments. length, terminated: [S]. A window of k steps has `discount`**k, and 0
    where it reaches the end of a terminated segment. Float64.
    """
    last = np.cumsum(length) - 1
    row = np.arange(len(reward))
    stop = np.repeat(last + 1, length)
    next_row = np.minimum(row + n_step, stop)
    reaches_end = next_row == stop
    after = np.power(discount, np.arange(n_step + 1.0)).take(next_row - row)
    after[reaches_end & np.repeat(terminated, length)] = 0.0
    return Windows(_sums(reward, last, n_step, discount), after, next_row, reaches_end)


def _sums(reward: Array, last: Array, n_step: int, discount: float) -> Array:
    """Horner's scheme, one pass per step: a sum of m rewards is a reward and the discounted sum of the next m - 1."""
    carry = np.full(len(reward), discount)
    carry[last] = 0.0
    total = reward.astype(np.float64)
    for _ in range(n_step - 1):
        longer = reward.astype(np.float64)
        longer[:-1] += carry[:-1] * total[1:]
        total = longer
    return total
