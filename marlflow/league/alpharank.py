"""Alpha-rank: the share of time that evolving populations spend in each profile (Omidshafiei et al., 2019).

arXiv:1903.01373. The chain over profiles is sparse: one role's member mutates at a time. It has a unique stationary
distribution if a small chance of moving at random is added, so reducible chains need no special case. In a symmetric
game all roles may be of one population; then the chain is over its members.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import spsolve

from marlflow.base.arrays import Array

MOST_PROFILES = 20_000
# Far below the chance of any move, and larger than rounding errors.
_PERTURBATION = 1e-10


def alpharank(payoffs: Array) -> Array:
    """Return the stationary distribution [K_1, ..., K_roles] over profiles, from mean returns [roles, K_1, ...].

    In the limit of infinite ranking intensity: a mutant with a higher return always takes over, one with an equal
    return half of the time, and one with a lower return never. Raises ValueError beyond 20,000 profiles.
    """
    sizes = payoffs.shape[1:]
    count = int(np.prod(sizes))
    if count > MOST_PROFILES:
        raise ValueError(f"alpha-rank of {count:,} profiles is too much; the most are {MOST_PROFILES:,}")
    if count == 1:
        return np.ones(sizes)
    index = np.arange(count).reshape(sizes)
    rows, columns, chances = [], [], []
    neighbors = sum(size - 1 for size in sizes)
    for role, size in enumerate(sizes):
        states = np.moveaxis(index, role, -1).reshape(-1, size)
        values = np.moveaxis(payoffs[role], role, -1).reshape(-1, size)
        for member in range(size):
            for mutant in range(size):
                if mutant != member:
                    rows.append(states[:, member])
                    columns.append(states[:, mutant])
                    gain = values[:, mutant] - values[:, member]
                    chances.append(_takes_over(gain) / neighbors)
    flat = np.concatenate(chances)
    moves = sparse.csr_matrix((flat, (np.concatenate(rows), np.concatenate(columns))), shape=(count, count))
    return _stationary(moves, count).reshape(sizes)


def alpharank_of_one_population(payoffs: Array) -> Array:
    """Return the stationary distribution [K] over the members of one population, in a symmetric game of two roles.

    `payoffs` [K, K] is the mean return of the row's member against the column's, and the individuals of the population
    meet each other. A mutant's gain is its return against the resident member minus the resident's return against it
    (local selection, OpenSpiel's default). Errors are as in `alpharank`.
    """
    count = len(payoffs)
    if count > MOST_PROFILES:
        raise ValueError(f"alpha-rank of {count:,} members is too much; the most are {MOST_PROFILES:,}")
    if count == 1:
        return np.ones(1)
    chances = _takes_over(payoffs.T - payoffs) / (count - 1)
    np.fill_diagonal(chances, 0.0)
    return _stationary(sparse.csr_matrix(chances), count)


def _takes_over(gain: Array) -> Array:
    """Return the probability that a mutant which gains `gain` takes over its population."""
    # Symmetric around one half, as OpenSpiel has it for the limit: an equal mutant takes over half of the time.
    chance: Array = np.where(np.abs(gain) < 1e-12, 0.5, (gain > 0).astype(float))
    return chance


def _stationary(moves: sparse.csr_matrix, count: int) -> Array:
    """Solve pi (P + perturbation) = pi for the chain that stays where it is unless it moves."""
    # pi P = pi with P = (1 - e) M + e / n: pi (I - (1 - e) M) = e / n, one sparse linear solve.
    stay = sparse.diags(1.0 - np.asarray(moves.sum(axis=1)).ravel())
    chain = (moves + stay) * (1.0 - _PERTURBATION)
    system = (sparse.identity(count, format="csc") - chain.T.tocsc()).tocsc()
    solution = np.maximum(spsolve(system, np.full(count, _PERTURBATION / count)), 0.0)
    result: Array = solution / solution.sum()
    return result


def marginals(distribution: Array) -> list[Array]:
    """Return each role's distribution over its members, from one over profiles."""
    axes = range(distribution.ndim)
    return [distribution.sum(axis=tuple(axis for axis in axes if axis != role)) for role in axes]
