"""Joint batches: rows of several policies aligned by env, episode and env step, for central critics and mixers.

A joint row has a seat for every agent of every joined policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from marlflow.base.batch import Array, Batch

_KEYS = ("copy", "episode", "t_env")
_AT_ENDS = ("terminated", "truncated", "bootstrap_obs", "bootstrap_mask")


@dataclass(frozen=True, slots=True)
class JointBatch:
    """N joint rows, one per env step at which a joined policy's agent decided, ordered by copy, episode and `t_env`.

    `keys` has `copy`, `episode` and `t_env`, [N] each. `agents` [K] is each seat's agent slot; `seats` gives each
    policy's seats, so `present[:, seats["left"]]` is [N, K_left]. `present` (bool [N, K]): the agent decided then.

    `columns[policy]` has that policy's columns, [N, K_policy, ...] each, zero where the agent was absent (action masks
    too). `segment_ends[policy]`, [N, K_policy, ...] each: `ends` (bool: a segment ends with this row), and there
    `terminated`, `truncated`, `bootstrap_obs` and, with masks, `bootstrap_mask`; zero elsewhere. An agent's next row
    need not be the next joint row.

    `next_row` (int [N]) is the next joint row of the same copy and episode in this batch, or -1.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "Batch": ".then(Join(), at=learner)",
        "Fragment": ".gather(Concat(agent_steps=...)).then(Join(), at=learner)",
    }

    keys: Mapping[str, Array]
    agents: Array
    seats: Mapping[str, slice]
    present: Array
    columns: Mapping[str, Mapping[str, Array]]
    segment_ends: Mapping[str, Mapping[str, Array]]
    next_row: Array

    @property
    def rows(self) -> int:
        """Number of agent steps of all joined policies."""
        return int(self.present.sum())


def join(batches: Mapping[str, Batch], agents: Mapping[str, Sequence[int]] | None = None) -> JointBatch:
    """Align the batches of several policies as joint rows; seats follow the order of `batches`, then agent slots.

    `agents` fixes each policy's slots (default: those in its batch). Raises ValueError if an agent has no seat, or
    decides twice at one env step.
    """
    keys, rows = _joint_rows(batches)
    slots = {
        policy: np.unique(np.asarray(agents[policy] if agents else batch["agent"], np.int64))
        for policy, batch in batches.items()
    }
    seats = _seats(slots)
    present = np.zeros((keys.shape[1], sum(map(len, slots.values()))), bool)
    columns: dict[str, Mapping[str, Array]] = {}
    segment_ends: dict[str, Mapping[str, Array]] = {}
    for policy, batch in batches.items():
        row, seat = rows[policy], _seat(policy, batch["agent"], slots[policy])
        # A view: writing to it fills `present`.
        taken = present[:, seats[policy]]
        taken[row, seat] = True
        own = {name: column for name, column in batch.columns.items() if name not in _KEYS}
        columns[policy] = {name: _spread(column, row, seat, taken.shape) for name, column in own.items()}
        row, seat = row[batch.ends()], seat[batch.ends()]
        ends = {name: batch.segments[name] for name in _AT_ENDS if name in batch.segments}
        ends["ends"] = np.ones(len(row), bool)
        segment_ends[policy] = {name: _spread(column, row, seat, taken.shape) for name, column in ends.items()}
    # Two rows at one place count once in `present`.
    if doubled := sum(batch.rows for batch in batches.values()) - int(present.sum()):
        raise ValueError(f"{doubled} rows are an agent's second decision at one env step: was a batch joined twice?")
    by_key = dict(zip(_KEYS, keys, strict=True))
    sitting = np.concatenate(list(slots.values()))
    return JointBatch(by_key, sitting, seats, present, columns, segment_ends, _next_row(keys))


def _joint_rows(batches: Mapping[str, Batch]) -> tuple[Array, dict[str, Array]]:
    """Return the joint rows' keys, [3, N], and the joint row of each policy's rows."""
    table = np.array([np.concatenate([batch[key] for batch in batches.values()]) for key in _KEYS], np.int64)
    # lexsort takes its last key as the first to sort by.
    order = np.lexsort(table[::-1])
    ordered = table[:, order]
    is_new = np.ones(len(order), bool)
    is_new[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
    row_of = np.empty(len(order), np.int64)
    row_of[order] = np.cumsum(is_new) - 1
    parts = np.split(row_of, np.cumsum([batch.rows for batch in batches.values()])[:-1])
    return ordered[:, is_new], dict(zip(batches, parts, strict=True))


def _seats(slots: Mapping[str, Array]) -> dict[str, slice]:
    stops = np.cumsum([len(own) for own in slots.values()]).tolist()
    return {policy: slice(stop - len(own), stop) for (policy, own), stop in zip(slots.items(), stops, strict=True)}


def _seat(policy: str, agent: Array, slots: Array) -> Array:
    if strangers := sorted(set(agent.tolist()) - set(slots.tolist())):
        raise ValueError(f"policy {policy!r} has seats for agent slots {slots.tolist()}, but {strangers} decided too")
    return np.searchsorted(slots, agent)


def _spread(column: Array, row: Array, seat: Array, shape: tuple[int, ...]) -> Array:
    """Scatter a column to joint rows and seats, zeros elsewhere."""
    dense = np.zeros((*shape, *column.shape[1:]), column.dtype)
    dense[row, seat] = column
    return dense


def _next_row(keys: Array) -> Array:
    copy_and_episode = keys[:2]
    following = np.arange(1, keys.shape[1] + 1)
    goes_on = np.zeros(len(following), bool)
    goes_on[:-1] = (copy_and_episode[:, 1:] == copy_and_episode[:, :-1]).all(axis=0)
    return np.where(goes_on, following, -1)
