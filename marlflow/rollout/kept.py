"""What is kept of rollout workers, by copy, so that a run can go on with another number of workers.

    {"agents": [name, ...] | None,                      the declared ones, or nobody is declared
     "copies": [{"copy", "next_episode", "running": None | {...}}, ...],
     "tables": {name: {"copy": [N], "slot": [N], column: [N, ...], ...}, ...}}

`running` is the episode that a copy is in: `episode`, `seed`, `env_steps`, `matchup`, `agents` (by slot; None where
they are declared), and `whole`, whether all actions so far are kept. The tables are `lanes` (what is checked when the
episode is played again), `open` (open rows), and for each policy `rows.<policy>` (what its columns have of those),
`memory.<policy>` and `actions.<policy>` (in the order in which they were taken).

The state of one worker may also have `recorded`, {policy: {worker: number of files}}: what it has recorded so far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.kept import Tree

Table: TypeAlias = Mapping[str, Array]


class ResumeReport(NamedTuple):
    """What a resume could not continue: running episodes that did not come out the same, and those that begin again.

    `rows_lost` agent steps of both were not yet delivered, and are lost.
    """

    episodes_abandoned: int = 0
    episodes_restarted: int = 0
    rows_lost: int = 0


def merged(states: Sequence[Tree]) -> Tree:
    """What is kept of several workers as if one had played all their copies.

    Raises CheckpointUnusable if their environments do not have the same agents.
    """
    agents = [state["agents"] for state in states]
    if any(some != agents[0] for some in agents):
        raise CheckpointUnusable([f"the workers' environments have different agents: {agents}"])
    names = dict.fromkeys(name for state in states for name in state["tables"])
    return {
        "agents": agents[0],
        "copies": [copy for state in states for copy in state["copies"]],
        "tables": {name: _stacked([s["tables"][name] for s in states if name in s["tables"]]) for name in names},
    }


def files_recorded(states: Sequence[Tree]) -> dict[str, dict[str, int]]:
    """How many files of recorded rows there are by policy and worker, of the states of all workers."""
    found: dict[str, dict[str, int]] = {}
    for state in states:
        for policy, workers in state.get("recorded", {}).items():
            found.setdefault(policy, {}).update(workers)
    return found


def share(tree: Tree, copies: Collection[int]) -> Tree:
    """What is kept of `copies` alone; of those that nothing is kept of, nothing."""
    return {
        "agents": tree["agents"],
        "copies": [copy for copy in tree["copies"] if copy["copy"] in copies],
        "tables": {
            name: only_rows(table, np.isin(table["copy"], list(copies))) for name, table in tree["tables"].items()
        },
    }


def only_rows(table: Table, keep: Array) -> Table:
    """The rows of a table at which `keep` is true, or that it has the numbers of."""
    return {name: column[keep] for name, column in table.items()}


def by_copy(table: Table, numbers: Sequence[int], stride: int) -> dict[str, Array]:
    """A table by `lane` of one worker as one by `copy` and `slot`; `numbers` are its copies'."""
    index, slot = np.divmod(table["lane"], stride)
    columns = {name: column for name, column in table.items() if name != "lane"}
    return {"copy": np.array(numbers, np.int64)[index], "slot": slot, **columns}


def by_lane(table: Table, numbers: Sequence[int], stride: int) -> dict[str, Array]:
    """A table by `copy` and `slot` as one by `lane` of the worker that plays the copies `numbers`."""
    place = {number: index for index, number in enumerate(numbers)}
    index = np.array([place[number] for number in table["copy"].tolist()], np.int64)
    columns = {name: column for name, column in table.items() if name not in ("copy", "slot")}
    return {"lane": index * stride + table["slot"], **columns}


def _stacked(tables: Sequence[Table]) -> dict[str, Array]:
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
