"""n-step windows over segments (Sutton and Barto, "Reinforcement Learning", 2nd edition, section 7.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from marlflow.base.arrays import Array


class Windows(NamedTuple):
    """Each row's n-step window, float64 except `steps`, [N] each; `reward` is of the rewards' shape.

    `reward` is the discounted sum of `steps` rewards, `discount` the factor of the bootstrap value: of the next row, or
    of the segment's bootstrap observation.
    """

    reward: Array
    discount: Array
    steps: Array


def windows(reward: Array, length: Array, terminated: Array, n_step: int, discount: float) -> Windows:
    """Compute windows of up to `n_step` rows, from each row to at most its segment's end.

    reward: [N, ...], over all segments. length, terminated: [S]. A window of k steps has discount `discount`**k, or 0
    if it reaches the end of a terminated segment.
    """
    last = np.cumsum(length) - 1
    left = np.repeat(last + 1, length) - np.arange(len(reward))
    steps = np.minimum(left, n_step)
    after = np.power(discount, np.arange(n_step + 1.0)).take(steps)
    after[(steps == left) & np.repeat(terminated, length)] = 0.0
    return Windows(window_sums(reward, length, n_step, discount), after, steps)


def window_sums(amounts: Array, length: Array, n_step: int, discount: float) -> Array:
    """Return the discounted sums of `amounts`, [N, ...], over the windows of segments of `length`, float64."""
    # Horner's scheme: a sum of m amounts is the first plus the discounted sum of the next m - 1.
    carry = np.full((len(amounts), *[1] * (amounts.ndim - 1)), discount)
    carry[np.cumsum(length) - 1] = 0.0
    total = amounts.astype(np.float64)
    for _ in range(n_step - 1):
        longer = amounts.astype(np.float64)
        longer[:-1] += carry[:-1] * total[1:]
        total = longer
    return total


def terms_problems(n_step: int, discount: float) -> list[str]:
    """Return problems with these settings."""
    rules = {
        f"n_step is at least 1, not {n_step}": n_step >= 1,
        f"discount is in [0, 1], not {discount}": 0.0 <= discount <= 1.0,
    }
    return [rule for rule, holds in rules.items() if not holds]
