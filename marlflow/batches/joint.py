"""Joint batches: rows of several policies aligned by env, episode and env step, for central critics and mixers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch, TrainBatch, for_losses, mean_of

_KEYS = ("env", "episode", "t_env")
_AT_ENDS = ("terminated", "truncated", "carried", "bootstrap_obs", "bootstrap_mask")


class JointBatches(dict[str, Batch]):
    """Batches of the same rounds by policy: the opened rows of a joint stream."""

    @property
    def rows(self) -> int:
        """Number of agent steps of all policies."""
        return sum(batch.rows for batch in self.values())


class EstimatedJointBatches(JointBatches):
    """Joint batches with the columns `value`, `advantage` and `value_target`, float32 [N] each, by policy."""

    made_from: ClassVar[Mapping[str, str]] = {
        "JointBatches": ".then(JointAdvantages(...), at=learner)",
        "JointFragment": ".gather(Concat(agent_steps=...)).then(JointAdvantages(...), at=learner)",
    }


def doubled_rows(count: int) -> ValueError:
    """Return the error of `count` rows that are at the place of others."""
    return ValueError(f"{count} rows are an agent's second decision at one env step: was a batch joined twice?")


@dataclass(frozen=True, slots=True)
class JointBatch(TrainBatch):
    """N joint rows, one per env step at which an agent decided, ordered by env, episode and `t_env`.

    Each agent of the joined policies has a seat, K in all.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "JointBatches": ".then(Join(), at=learner)",
        "JointFragment": ".gather(Concat(agent_steps=...)).then(Join(), at=learner)",
    }

    keys: Mapping[str, Array]
    """`env`, `episode` and `t_env`, [N] each."""
    agents: Array
    """The seats' agent slots, [K]."""
    seats: Mapping[str, slice]
    """Each policy's columns of `present`, [N, K]: a policy "left" has [N, K_left] of them."""
    present: Array
    """bool [N, K]: whether the agent decided."""
    columns: Mapping[str, Mapping[str, Array]]
    """By policy, [N, K_policy, ...] each; zero where not present (action masks too)."""
    segment_ends: Mapping[str, Mapping[str, Array]]
    """By policy, [N, K_policy, ...] each: `ends` (bool: a segment ends here) and, at those rows, `terminated`,
    `truncated`, `carried`, `bootstrap_obs` and, with masks, `bootstrap_mask`; zero elsewhere.
    """
    next_row: Array
    """int [N]: the next joint row of the same env and episode, or -1; an agent's own next row may come later."""

    @property
    def rows(self) -> int:
        return int(self.present.sum())

    @property
    def count(self) -> int:
        return len(self.present)

    def columns_for_losses(self) -> dict[str, Array]:
        """Return columns and `segment_ends` [N, K_policy, ...] as `<policy>:<column>`, with `<policy>:present`."""
        result: dict[str, Array] = {}
        for policy, seats in self.seats.items():
            columns = {**self.columns[policy], **self.segment_ends[policy], "present": self.present[:, seats]}
            result |= {f"{policy}:{name}": column for name, column in for_losses(columns).items()}
        return result

    def mean_version(self) -> float:
        versions = [
            columns["version"][self.present[:, self.seats[policy]]]
            for policy, columns in self.columns.items()
            if "version" in columns
        ]
        return mean_of(np.concatenate(versions)) if versions else math.nan

    def rows_carried(self) -> int:
        return sum(int(ends["carried"].sum()) for ends in self.segment_ends.values() if "carried" in ends)

    def to_tree(self) -> dict[str, Any]:
        nested = {name: {p: dict(c) for p, c in getattr(self, name).items()} for name in ("columns", "segment_ends")}
        seats = {policy: [seats.start, seats.stop] for policy, seats in self.seats.items()}
        plain = {"agents": self.agents, "present": self.present, "next_row": self.next_row}
        return {"keys": dict(self.keys), "seats": seats, **plain, **nested}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> JointBatch:
        return cls(**{**tree, "seats": {policy: slice(*seats) for policy, seats in tree["seats"].items()}})


def join(batches: Mapping[str, Batch], agents: Mapping[str, Sequence[int]] | None = None) -> JointBatch:
    """Align several policies' batches as joint rows; seats follow the order of `batches`, then agent slots.

    `agents` fixes each policy's slots (default: the slots in its batch). Raises ValueError if an agent has no seat, or
    decides twice at one env step.
    """
    keys, rows = joint_rows(batches)
    slots = {
        policy: np.unique(np.asarray(agents[policy] if agents else batch["agent"], np.int64))
        for policy, batch in batches.items()
    }
    seats = _seats(slots)
    present = np.zeros((keys.shape[1], sum(map(len, slots.values()))), bool)
    columns: dict[str, Mapping[str, Array]] = {}
    segment_ends: dict[str, Mapping[str, Array]] = {}
    for policy, batch in batches.items():
        row, seat = rows[policy], seat_of(policy, batch["agent"], slots[policy])
        # A view: writing to it fills `present`.
        taken = present[:, seats[policy]]
        taken[row, seat] = True
        columns[policy] = {
            name: spread(column, row, seat, taken.shape) for name, column in batch.columns.items() if name not in _KEYS
        }
        row, seat = row[batch.ends()], seat[batch.ends()]
        ends = {name: batch.segments[name] for name in _AT_ENDS if name in batch.segments}
        ends["ends"] = np.ones(len(row), bool)
        segment_ends[policy] = {name: spread(column, row, seat, taken.shape) for name, column in ends.items()}
    # Two rows at one place count once in `present`.
    if doubled := sum(batch.rows for batch in batches.values()) - int(present.sum()):
        raise doubled_rows(doubled)
    by_key = dict(zip(_KEYS, keys, strict=True))
    agent_of_seat = np.concatenate(list(slots.values()))
    return JointBatch(by_key, agent_of_seat, seats, present, columns, segment_ends, _next_row(keys))


def joint_rows(batches: Mapping[str, Batch]) -> tuple[Array, dict[str, Array]]:
    """Return the joint rows' `env`, `episode` and `t_env`, [3, N], sorted, and the joint row of each policy's rows."""
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
    stops = np.cumsum([len(agents) for agents in slots.values()]).tolist()
    return {
        policy: slice(stop - len(agents), stop) for (policy, agents), stop in zip(slots.items(), stops, strict=True)
    }


def seat_of(policy: str, agent: Array, slots: Array) -> Array:
    """Return the position of each agent slot, [n], in `slots`, sorted; raises ValueError for one that is not there."""
    if unknown := sorted(set(agent.tolist()) - set(slots.tolist())):
        raise ValueError(f"policy {policy!r} has seats for agent slots {slots.tolist()}, but {unknown} decided too")
    # Slots are sorted and unique, so the insertion point is the position.
    return np.searchsorted(slots, agent)


def spread(column: Array, row: Array, seat: Array, shape: tuple[int, ...]) -> Array:
    """Return an array [*shape, ...] of zeros, with entries of `column` [n, ...] at (row, seat)."""
    dense = np.zeros((*shape, *column.shape[1:]), column.dtype)
    dense[row, seat] = column
    return dense


def _next_row(keys: Array) -> Array:
    env_and_episode = keys[:2]
    following = np.arange(1, keys.shape[1] + 1)
    # Rows are sorted by env and episode, so an episode's next row is the one below, unless it is another episode's.
    continues = np.zeros(len(following), bool)
    continues[:-1] = (env_and_episode[:, 1:] == env_and_episode[:, :-1]).all(axis=0)
    return np.where(continues, following, -1)
