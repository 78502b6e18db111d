"""The tables of a worker's state that exist for every kind of environment: open rows and memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree
from marlflow.env import EnvAdapter
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.saved_state import StateTable, by_lane, only_rows
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.step_buffer import ranges


def open_tables(
    known: Array, entry_of: Array, builder: SegmentBuilder, policy_slots: Sequence[PolicySlots]
) -> dict[str, dict[str, Array]]:
    """Return the open rows, and the memories of the lanes `known`, as tables by lane."""
    tables = {"open": builder.open_rows()}
    for number, slots in enumerate(policy_slots):
        if slots.buffer is not None:
            tables[f"rows.{slots.policy}"] = builder.seen_in_open_rows(number, slots.buffer)
        if slots.memory is not None:
            # No table for a policy without lanes: a frozen entry may be in the table and play nowhere.
            played = known[entry_of[known] == number]
            if len(played):
                tables[f"memory.{slots.policy}"] = {"lane": played, **slots.memory.state(played)}
    return tables


def restore_open(
    tables: Mapping[str, StateTable],
    env_indices: Sequence[int],
    lanes: Lanes,
    builder: SegmentBuilder,
    policy_slots: Sequence[PolicySlots],
) -> None:
    """Restore the open rows and memories of episodes that have begun again in `lanes`."""
    # The observations of open rows were not saved for a policy that was not recorded, so these rows are dropped.
    new = [n for n, p in enumerate(policy_slots) if p.buffer is not None and f"rows.{p.policy}" not in tables]
    opened = by_lane(tables["open"], env_indices, lanes.stride)
    builder.reopen(only_rows(opened, ~np.isin(lanes.entry_of[opened["lane"]], new)))
    for slots in policy_slots:
        rows, memory = tables.get(f"rows.{slots.policy}"), tables.get(f"memory.{slots.policy}")
        if rows is not None and slots.buffer is not None:
            of_lane = by_lane(rows, env_indices, lanes.stride)
            at = np.array([slots.buffer.row(lane) for lane in of_lane["lane"].tolist()], np.int64)
            slots.buffer.reopen(at, of_lane)
        if memory is not None and slots.memory is not None:
            of_lane = by_lane(memory, env_indices, lanes.stride)
            slots.memory.load_state(of_lane["lane"], of_lane)


def check_columns(tree: Tree, adapter: EnvAdapter, policy_slots: Sequence[PolicySlots]) -> None:
    """Raise CheckpointUnusable if the agents or the policies' columns differ from those of a saved state."""
    none = np.empty(0, np.int64)
    agents, tables, problems = list(adapter.agents) if adapter.declared else None, tree["tables"], []
    if tree["agents"] != agents:
        problems.append(f"the environment has agents {agents}, and what is kept is of {tree['agents']}")
    for slots in policy_slots:
        wanted = {
            "rows": None if slots.buffer is None else {n: c[:0, 0] for n, c in slots.buffer.data.items()},
            "memory": None if slots.memory is None else slots.memory.state(none),
        }
        for kind, columns in wanted.items():
            saved, current = _column_types(tables.get(f"{kind}.{slots.policy}")), _column_types(columns)
            # Saved rows of a policy that is not recorded any more are ignored.
            must_match = kind == "memory" or columns is not None
            if f"{kind}.{slots.policy}" in tables and must_match and saved != current:
                problems.append(f"the {kind} of policy {slots.policy!r} are kept as {saved}, and now are {current}")
    if problems:
        raise CheckpointUnusable(problems)


def _column_types(columns: StateTable | None) -> dict[str, str] | None:
    if columns is None:
        return None
    return {n: f"{c.dtype} {list(c.shape[1:])}" for n, c in columns.items() if n not in ("env", "slot")}


class TableByEnv:
    """A saved table, from which the rows of some environments are taken."""

    def __init__(self, table: StateTable) -> None:
        self._table, self.env = table, table["env"]
        self._order = np.argsort(self.env, kind="stable")
        self._sorted = self.env[self._order]

    def of(self, env_indices: Sequence[int]) -> StateTable:
        """Return the rows of `env_indices`."""
        ends = [np.searchsorted(self._sorted, env_indices, side) for side in ("left", "right")]
        return only_rows(self._table, self._order[ranges(ends[0], ends[1] - ends[0])])
