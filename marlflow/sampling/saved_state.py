"""The saved state of rollout workers, by environment, so that their number may change on resume.

    {"agents": [name, ...] | None,                      the declared agents, or None if undeclared
     "envs": [{"env", "next_episode", "agents": None | [name, ...], "running": None | {...}}, ...],
     "tables": {name: {"env": [N], "slot": [N], column: [N, ...], ...}, ...},
     "recorded": {policy: {worker: number of dataset files}}}

An environment's `agents` are by slot, None if declared or if it broke. `running` has `episode`, `seed`, `env_steps`,
`matchup`, and `whole`, whether all actions were kept. Tables: `lanes` (to verify a replay), `open` (open rows), and for
each policy `rows.<policy>` (its columns at open rows), `memory.<policy>` and `actions.<policy>` (in order of time).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree

StateTable: TypeAlias = Mapping[str, Array]


class ResumeReport(NamedTuple):
    """Running episodes that a resume abandoned (the replay differed) or restarted, and lost agent steps."""

    episodes_abandoned: int = 0
    episodes_restarted: int = 0
    rows_lost: int = 0


def merged(states: Sequence[Tree]) -> Tree:
    """Merge the states of several workers; raises CheckpointUnusable if their agents differ."""
    agents = [state["agents"] for state in states]
    if any(other != agents[0] for other in agents):
        raise CheckpointUnusable([f"the workers' environments have different agents: {agents}"])
    names = dict.fromkeys(name for state in states for name in state["tables"])
    tables = {}
    for name in names:
        parts = [state["tables"][name] for state in states if name in state["tables"]]
        tables[name] = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
    return {"agents": agents[0], "envs": [env for state in states for env in state["envs"]], "tables": tables}


def files_recorded(states: Sequence[Tree]) -> dict[str, dict[str, int]]:
    """Return the number of dataset files by policy and worker."""
    counts: dict[str, dict[str, int]] = {}
    for state in states:
        for policy, workers in state.get("recorded", {}).items():
            counts.setdefault(policy, {}).update(workers)
    return counts


def share(tree: Tree, env_indices: Collection[int]) -> Tree:
    """Return the state of the environments `env_indices` alone."""
    return {
        "agents": tree["agents"],
        "envs": [env for env in tree["envs"] if env["env"] in env_indices],
        "tables": {
            name: only_rows(table, np.isin(table["env"], list(env_indices))) for name, table in tree["tables"].items()
        },
    }


def only_rows(table: StateTable, selection: Array) -> StateTable:
    """Return the rows selected by a mask or indices."""
    return {name: column[selection] for name, column in table.items()}


def by_env(table: StateTable, env_indices: Sequence[int], stride: int) -> dict[str, Array]:
    """Replace the column `lane` by `env` and `slot`."""
    index, slot = np.divmod(table["lane"], stride)
    columns = {name: column for name, column in table.items() if name != "lane"}
    return {"env": np.array(env_indices, np.int64)[index], "slot": slot, **columns}


def by_lane(table: StateTable, env_indices: Sequence[int], stride: int) -> dict[str, Array]:
    """Replace the columns `env` and `slot` by `lane`."""
    position = {env_index: index for index, env_index in enumerate(env_indices)}
    index = np.array([position[env_index] for env_index in table["env"].tolist()], np.int64)
    columns = {name: column for name, column in table.items() if name not in ("env", "slot")}
    return {"lane": index * stride + table["slot"], **columns}
