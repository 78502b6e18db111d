"""Solutions of the cooperative games in marlflow/env, computed without these environments."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kinds = tuple[int, ...]
"""Of each agent of `relay`: 0 if it waits, 1 if it is present, 2 if it is gone."""
Ends = Literal["all", "any"]
"""Whether a team's episode ends when all of its members have died, or with the first of them."""
TOLERANCE = 1e-10

BOTH = ((0, 0), (0, 10))
CLIMBING = ((11, -30, 0), (-30, 7, 0), (0, 6, 5))
TWO_STEP = (((7, 7), (7, 7)), ((0, 1), (1, 8)))
"""Its matrices, of which the first agent's first action chooses one."""


def additive_fit(payoffs: ArrayLike) -> NDArray[np.float64]:
    """Return the least-squares fit of a matrix by sums of one value per row and one per column.

    It is what VDN converges to if all joint actions are equally frequent.
    """
    matrix = np.asarray(payoffs, np.float64)
    means = matrix.mean(axis=1, keepdims=True), matrix.mean(axis=0, keepdims=True)
    return means[0] + means[1] - matrix.mean()


def independent_choice(payoffs: ArrayLike) -> tuple[int, int]:
    """Return the greedy actions of two learners, each of which knows only the mean payoff of each of its actions."""
    matrix = np.asarray(payoffs, np.float64)
    return int(matrix.mean(axis=1).argmax()), int(matrix.mean(axis=0).argmax())


class RelayValues(NamedTuple):
    """Optimal values of `relay`: of each state, and of each state and joint action of the agents present."""

    values: dict[Kinds, float]
    joint: dict[tuple[Kinds, tuple[int, ...]], float]

    def best(self, state: Kinds) -> tuple[int, ...]:
        """Return the best actions of the agents present, in order."""
        return max(product((0, 1), repeat=state.count(1)), key=lambda actions: self.joint[state, actions])


def _outcomes(state: Kinds, actions: Sequence[int], ends: Ends) -> Iterator[tuple[float, Kinds]]:
    """Yield the states that may follow without the end of the episode, with their probabilities."""
    chosen = iter(actions)
    options = []
    for kind in state:
        if kind == 0:
            options.append(((0.7, 0), (0.3, 1)))
        elif kind == 1:
            options.append(((0.6, 1), (0.4, 2)) if next(chosen) else ((0.9, 1), (0.1, 2)))
        else:
            options.append(((1.0, 2),))  # type: ignore[arg-type]
    for outcome in product(*options):
        following = tuple(kind for _, kind in outcome)
        died = any(old == 1 and new == 2 for old, new in zip(state, following, strict=True))
        if 1 in following and not (ends == "any" and died):
            yield float(np.prod([chance for chance, _ in outcome])), following


def relay_values(num_agents: int, discount: float, ends: Ends = "all") -> RelayValues:
    """Compute the optimal values of `relay` by value iteration over all states in which an agent is present."""
    states = [state for state in product(range(3), repeat=num_agents) if 1 in state]
    pairs = [(state, actions) for state in states for actions in product((0, 1), repeat=state.count(1))]
    outcomes = {pair: list(_outcomes(*pair, ends)) for pair in pairs}
    values = dict.fromkeys(states, 0.0)
    while True:
        joint = {
            (state, actions): 1.0
            + 2.0 * sum(actions)
            + discount * sum(p * values[to] for p, to in outcomes[state, actions])
            for state, actions in pairs
        }
        before, values = values, dict.fromkeys(states, -np.inf)
        for (state, _), value in joint.items():
            values[state] = max(values[state], value)
        if max(abs(values[state] - before[state]) for state in states) < TOLERANCE:
            return RelayValues(values, joint)


def relay_return(num_agents: int, act: Callable[[Kinds], Sequence[int]]) -> float:
    """Return the expected undiscounted return of one episode of `relay`, by a deterministic policy.

    It is the solution of the linear equations of the Markov chain that the policy makes.
    """
    states = [state for state in product(range(3), repeat=num_agents) if 1 in state]
    number = {state: index for index, state in enumerate(states)}
    rewards, transitions = np.zeros(len(states)), np.zeros((len(states), len(states)))
    for state, index in number.items():
        actions = act(state)
        rewards[index] = 1.0 + 2.0 * sum(actions)
        for chance, following in _outcomes(state, actions, "all"):
            transitions[index, number[following]] += chance
    values = np.linalg.solve(np.eye(len(states)) - transitions, rewards)
    return float(values[number[1, *[0] * (num_agents - 1)]])
