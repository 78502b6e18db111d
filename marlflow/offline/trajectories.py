"""Recorded fragments, joined to whole trajectories: one agent's decisions in one episode, with its last observation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import BOOTSTRAPS, Batch
from marlflow.offline.dataset import Dataset

_SEEN = ("obs", "action_mask", "state")
_KEY = ("run", "env", "episode", "agent", "t_agent")


@dataclass(frozen=True, slots=True)
class RecordedTrajectory:
    """The T decisions of one agent in an episode.

    `columns` [T, ...] are those of a Batch. `seen` [T + 1, ...] are its `obs`, and `action_mask` and `state` if
    recorded, with those after the last decision. `agent` is a slot. `end` is `unfinished` if the records end first, or
    have a gap.
    """

    agent: int
    env: int
    episode: int
    end: Literal["terminated", "truncated", "unfinished"]
    columns: dict[str, Array]
    seen: dict[str, Array]


def recorded_trajectories(dataset: Dataset) -> Iterator[RecordedTrajectory]:
    """Yield all trajectories of `dataset`, each when its last rows were read; raises RecordsDamaged.

    All rows are in exactly one of them, and only rows of trajectories that are not complete yet are kept in memory.
    """
    trajectory_of, sizes = _joined(dataset)
    waiting: dict[int, list[Batch]] = {}
    segments_read = 0
    for fragment in dataset.fragments:
        batch = dataset.read(fragment)
        stops = np.cumsum(batch.segments["length"])
        for place, stop in enumerate(stops.tolist()):
            number = int(trajectory_of[segments_read + place])
            columns = {
                # A view would keep the rows of the whole fragment in memory.
                name: column[stop - batch.segments["length"][place] : stop].copy()
                for name, column in batch.columns.items()
            }
            pieces = waiting.setdefault(number, [])
            pieces.append(Batch(columns, {name: column[place].copy() for name, column in batch.segments.items()}))
            if len(pieces) == sizes[number]:
                yield _trajectory(waiting.pop(number))
        segments_read += len(stops)


def _joined(dataset: Dataset) -> tuple[Array, Array]:
    """Return the number of each segment's trajectory, in the order of the files, and how many segments each has."""
    parts: list[dict[str, Array]] = []
    for fragment in dataset.fragments:
        batch = dataset.read(fragment, ["t_agent"])
        segments, length = batch.segments, batch.segments["length"]
        parts.append(
            {
                # A run may have been resumed with another number of workers, which then write other environments.
                "run": np.full(len(length), fragment.file.partition("-")[0]),
                "t_agent": batch.columns["t_agent"][np.cumsum(length) - length].astype(np.int64),
                "ended": segments["terminated"] | segments["truncated"],
                **{name: segments[name] for name in ("env", "episode", "agent", "length")},
            }
        )
    table = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.lexsort([table[name] for name in reversed(_KEY)])
    table = {name: column[order] for name, column in table.items()}
    continues = ~table["ended"][:-1] & (table["t_agent"][1:] == (table["t_agent"] + table["length"])[:-1])
    for name in _KEY[:-1]:
        continues &= table[name][1:] == table[name][:-1]
    numbers = np.cumsum(np.concatenate([[True], ~continues])) - 1
    trajectory_of = np.empty_like(numbers)
    trajectory_of[order] = numbers
    return trajectory_of, np.bincount(numbers)


def _trajectory(pieces: list[Batch]) -> RecordedTrajectory:
    pieces.sort(key=lambda piece: int(piece.columns["t_agent"][0]))
    last = pieces[-1].segments
    columns = {name: np.concatenate([piece.columns[name] for piece in pieces]) for name in pieces[0].columns}
    seen = {
        name: np.concatenate([columns.pop(name), last[BOOTSTRAPS[name]][None]]) for name in _SEEN if name in columns
    }
    end: Literal["terminated", "truncated", "unfinished"] = "unfinished"
    if last["terminated"] or last["truncated"]:
        end = "terminated" if last["terminated"] else "truncated"
    return RecordedTrajectory(int(last["agent"]), int(last["env"]), int(last["episode"]), end, columns, seen)
