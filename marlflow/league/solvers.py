"""Meta-strategies: which mixture of its members each role should play, computed from mean returns.

All solvers take `payoffs` float64 [roles, K_1, ..., K_roles], the mean return of each role for each profile, and return
one distribution float64 [K_role] for each role.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from marlflow.base.arrays import Array

Strategies = list[Array]
ROUNDING = 1e-9
_STEP = 0.1


def uniform(payoffs: Array) -> Strategies:
    """Return the uniform mixture of each role."""
    return [np.full(size, 1.0 / size) for size in payoffs.shape[1:]]


def nash(payoffs: Array) -> Strategies:
    """Return a Nash equilibrium of a zero-sum game of two roles by linear programming (scipy's HiGHS).

    Equilibria need not be unique: this is the vertex that the solver ends at. The game is (A - B) / 2, so that a
    constant sum, or noise in the estimates, does not matter. Raises ValueError unless there are two roles; see
    `general_sum` for whether the game is another than it takes it for.
    """
    if len(payoffs) != 2:
        raise ValueError(f"nash solves games of two roles, not of {len(payoffs)}; use prd, replicator or uniform")
    game = (payoffs[0] - payoffs[1]) / 2
    return [_maximin(game), _maximin(-game.T)]


def general_sum(payoffs: Array, errors: Array) -> str | None:
    """Return why a game of two roles has no constant sum, or None if it may have one, given standard errors.

    `errors` has the shape of `payoffs`. The sum may differ from its mean by three standard errors.
    """
    total = payoffs[0] + payoffs[1]
    excess = np.abs(total - total.mean()) - 3.0 * np.hypot(errors[0], errors[1])
    row, column = np.unravel_index(np.argmax(excess), excess.shape)
    if excess[row, column] <= ROUNDING:
        return None
    return (
        f"the returns of both roles sum to {total[row, column]:.3g} for members {row} and {column}, and to "
        f"{total.mean():.3g} on average, so that this is no game of constant sum; use prd, replicator or uniform"
    )


def _maximin(game: Array) -> Array:
    """Return the row mixture [K] that maximizes the smallest expected payoff of `game` [K, L]."""
    rows, columns = game.shape
    # Variables: the mixture and the value of the game, which is maximized.
    # Imported here: few runs solve games, and it takes a tenth of a second.
    from scipy.optimize import linprog

    solution = linprog(
        c=np.append(np.zeros(rows), -1.0),
        A_ub=np.hstack([-game.T, np.ones((columns, 1))]),
        b_ub=np.zeros(columns),
        A_eq=np.append(np.ones(rows), 0.0)[None],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * rows + [(None, None)],
        method="highs",
    )
    if not solution.success:
        raise ArithmeticError(f"the linear program of the meta-strategy has no solution: {solution.message}")
    return _distribution(solution.x[:rows])


def replicator(payoffs: Array, steps: int = 50_000, step_size: float | None = None) -> Strategies:
    """Return the time average of replicator dynamics that start at the uniform mixtures; `step_size` as in `prd`."""
    return _dynamics(payoffs, steps, step_size, floor=0.0)


def prd(payoffs: Array, steps: int = 50_000, step_size: float | None = None, floor: float = 1e-10) -> Strategies:
    """Return the time average of projected replicator dynamics, in which no member falls below `floor`.

    By default the step is a tenth of the time in which the range of a role's returns is 1, so that the unit of rewards
    does not matter. Lanctot et al., 2017, arXiv:1711.00832, appendix.
    """
    return _dynamics(payoffs, steps, step_size, floor)


def _dynamics(payoffs: Array, steps: int, step_size: float | None, floor: float) -> Strategies:
    mixtures = uniform(payoffs)
    sums = [np.zeros_like(mixture) for mixture in mixtures]
    # Without a range, all members are equal, and stay so.
    sizes = [step_size or _STEP / (np.ptp(of_role) or 1.0) for of_role in payoffs]
    for _ in range(steps):
        values = [expected_payoffs(payoffs, mixtures, role) for role in range(len(mixtures))]
        mixtures = [
            _projected(mixture + size * mixture * (value - mixture @ value), floor)
            for mixture, value, size in zip(mixtures, values, sizes, strict=True)
        ]
        for role, mixture in enumerate(mixtures):
            sums[role] += mixture
    return [_distribution(total) for total in sums]


def _projected(mixture: Array, floor: float) -> Array:
    """Return the nearest distribution [K] in which no entry is below `floor` (Duchi et al., 2008, figure 1)."""
    if np.minimum.reduce(mixture) >= floor and abs(np.add.reduce(mixture) - 1.0) < 1e-12:
        return mixture
    size = len(mixture)
    free = 1.0 - floor * size
    ordered = np.sort(mixture - floor)[::-1]
    excess = (np.cumsum(ordered) - free) / np.arange(1, size + 1)
    last = np.flatnonzero(ordered > excess)[-1]
    projected: Array = np.maximum(mixture - floor - excess[last], 0.0) + floor
    return projected


def rectified(payoffs: Array) -> Strategies:
    """Return a Nash equilibrium; each member in its support trains against the members that it beats.

    Balduzzi et al., 2019, arXiv:1901.08106, algorithm 4. `rectified_rivals` has the mixture of each member's rivals.
    """
    return nash(payoffs)


def rectified_rivals(payoffs: Array, strategies: Strategies, role: int, member: int) -> Array:
    """Return the rivals' mixture limited to the rivals that `member` of `role` does not lose to, in a two-role game."""
    game = (payoffs[0] - payoffs[1]) / 2
    gains = game[member] if role == 0 else -game[:, member]
    weights = strategies[1 - role] * (gains >= 0)
    return _distribution(weights) if weights.sum() > 0 else strategies[1 - role]


def expected_payoffs(payoffs: Array, strategies: Sequence[Array], role: int) -> Array:
    """Return the expected return [K_role] of each member of `role` against the mixtures of all other roles."""
    # Matrix products of the last axis and of the first: tensordot takes several times as long for small games.
    values: Array = payoffs[role]
    for later in reversed(strategies[role + 1 :]):
        values = values @ later
    for earlier in strategies[:role]:
        values = (earlier @ values.reshape(len(earlier), -1)).reshape(values.shape[1:])
    return values


def _distribution(weights: Array) -> Array:
    positive = np.maximum(weights, 0.0)
    normalized: Array = positive / positive.sum()
    return normalized


SOLVERS: Final[dict[str, Callable[[Array], Strategies]]] = {
    "uniform": uniform,
    "nash": nash,
    "replicator": replicator,
    "prd": prd,
    "rectified": rectified,
}
