"""Print the team's values of a trained mixer (VDN, QMIX) and the true ones, for all joint actions of a game.

Every joint action is valued in every state: nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from benchmarks.equilibria import checked
from benchmarks.team_answers import TWO_STEP, Kinds, relay_return, relay_values
from marlflow.runs.saved_league import learner_state, saved_run

Table = NDArray[np.float64]
Probe: TypeAlias = Callable[["TeamValues"], tuple[float, str]]
"""Returns an error of a trained network, and what to print of it."""


@dataclass(frozen=True)
class TeamValues:
    """The team's values of a network like TeamQNetwork that has one policy."""

    network: Any
    policy: str

    def of(self, obs: ArrayLike, present: ArrayLike, state: ArrayLike, actions: ArrayLike) -> Table:
        """Return the team's value [N] of `actions` [N, K] of the agents that are `present` [N, K].

        `obs` [N, K, O] are their observations, `state` [N, S] the environment's.
        """
        values = {"obs": obs, "present": present, "state": state}
        floats = {name: torch.as_tensor(np.asarray(value, np.float32)) for name, value in values.items()}
        policy = self.policy
        columns = {
            f"{policy}:obs": floats["obs"],
            f"{policy}:present": floats["present"].bool(),
            "state": floats["state"],
        }
        with torch.no_grad():
            (q,) = self.network.values(columns)
            taken = q.gather(2, torch.as_tensor(np.asarray(actions, np.int64))[:, :, None])[:, :, 0]
            mixed = self.network.mixed(taken, self.network.present(columns), columns)
        return np.asarray(mixed.numpy(), np.float64)

    def matrices(self, states: int, actions: int) -> Table:
        """Return the values of all joint actions of two agents in the states of a matrix game, [states, A, A]."""
        where, one_hot = np.eye(states), np.eye(2)
        pairs = list(product(range(actions), repeat=2))
        tables = []
        for state in where:
            obs = [[*state, *agent] for agent in one_hot]
            count = len(pairs)
            tables.append(self.of([obs] * count, np.ones((count, 2)), [state] * count, pairs).reshape(actions, actions))
        return np.array(tables)


def trained_values(words: Sequence[str], run_dir: Path) -> TeamValues:
    """Return the values in the newest checkpoint of a run, whose only learner trains one policy with a mixer."""
    ((name, spec),) = checked(words).spec.learners.items()
    learner = spec.learner()
    learner.load_state(learner_state(saved_run(run_dir).checkpoint, name))
    (policy,) = spec.members
    return TeamValues(learner.module, policy)


def fits(*expected: ArrayLike) -> Probe:
    """Return a probe of the tables of a matrix game, one for each state."""
    wanted = np.array([np.asarray(table, np.float64) for table in expected])

    def probe(values: TeamValues) -> tuple[float, str]:
        found = values.matrices(len(wanted), wanted.shape[-1])
        return float(
            np.abs(found - wanted).max()
        ), f"Q_tot {np.round(found, 2).tolist()}, not {np.round(wanted, 2).tolist()}"

    return probe


def two_step_fits(represented: Callable[[ArrayLike], ArrayLike], discount: float = 0.99) -> Probe:
    """Return a probe of the two-step game, of whose matrices a mixer can have what `represented` returns."""
    second = [np.asarray(represented(matrix), np.float64) for matrix in TWO_STEP]
    # The second agent's first action has no effect.
    first = [[discount * table.max()] * 2 for table in second]
    return fits(first, *second)


def _relay_rows(num_agents: int) -> tuple[list[tuple[Kinds, tuple[int, ...]]], Table, Table, Table, NDArray[np.int64]]:
    joint = relay_values(num_agents, 0.9).joint
    pairs = list(joint)
    kinds = np.array([state for state, _ in pairs])
    state = np.eye(3)[kinds].reshape(len(pairs), -1)
    present = kinds == 1
    ids = np.broadcast_to(np.eye(num_agents), (len(pairs), num_agents, num_agents))
    obs = np.concatenate([np.repeat(state[:, None], num_agents, 1), ids], 2) * present[:, :, None]
    actions = np.zeros(kinds.shape, np.int64)
    actions[present] = [action for _, chosen in pairs for action in chosen]
    return pairs, obs, present.astype(np.float64), state, actions


def relay_error(values: TeamValues) -> tuple[float, str]:
    """Return the mean relative error of the values of all states of `relay` that occur: of their best joint actions."""
    pairs, obs, present, state, actions = _relay_rows(3)
    found: dict[Kinds, float] = {}
    greedy: dict[Kinds, tuple[int, ...]] = {}
    for (kinds, chosen), value in zip(pairs, values.of(obs, present, state, actions), strict=True):
        if value > found.get(kinds, -np.inf):
            found[kinds], greedy[kinds] = float(value), chosen
    true, early = relay_values(3, 0.9).values, relay_values(3, 0.9, ends="any").values
    best = relay_return(3, relay_values(3, 0.9).best)
    # The first agent is present from the start.
    errors = {kinds: abs(found[kinds] / true[kinds] - 1.0) for kinds in true if kinds[0] != 0}
    worst, start = max(errors, key=lambda kinds: errors[kinds]), (1, 0, 0)
    text = (
        f"value at the start {found[start]:.2f}, expected {true[start]:.2f} (control: {early[start]:.2f} if one death "
        f"ended the team); errors of states at most {errors[worst]:.1%}, in {worst}; its greedy policy returns "
        f"{relay_return(3, greedy.__getitem__):.2f}, the best for this discount {best:.2f}"
    )
    return float(np.mean(list(errors.values()))), text
