"""The stage that splits segments into sequences for a recurrent learner (Kapturowski et al., 2019, section 2.3).

"Recurrent Experience Replay in Distributed Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from marlflow.base.batch import Array, Batch
from marlflow.base.errors import InvalidInput
from marlflow.flow import Place
from marlflow.replay.protocol import Replay

_OF_REMEMBERING = ("memory", "memory_version", "bootstrap_memory")


@dataclass(frozen=True, slots=True)
class SplitSegments:
    """Splits each segment into as few sequences of at most `length` rows as will do, of nearly equal size.

    Each row is in exactly one; a sequence also knows how many rows right before it, at most `burn_in` and of the same
    segment, are its burn-in, and what was remembered before the first of those. It comes before NStep, whose windows
    then end with their sequence. Raises InvalidInput for wrong sizes, and for rows of a policy that remembers nothing.
    """

    replay: Replay = field(repr=False)
    length: int
    burn_in: int
    by_segment: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if broken := sequence_problems(self.length, self.burn_in):
            raise InvalidInput([f"sequences: {problem}" for problem in broken])

    @property
    def place(self) -> Place | None:
        """Beside the replay."""
        return self.replay.place

    def __call__(self, batch: Batch) -> Batch:
        """The same rows, in segments that are sequences: with `burn_in` (rows, int64) and `memory`, [S, ...] each."""
        if "memory" not in batch.columns:
            raise InvalidInput(["sequences need the column 'memory' of rows, which recurrent policies alone have"])
        return split(batch, self.length, self.burn_in)


def split(batch: Batch, length: int, burn_in: int) -> Batch:
    """`batch`, whose rows have `memory`, in sequences as SplitSegments says."""
    segments, columns = batch.segments, batch.columns
    parts = -(-segments["length"] // length)
    own = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(own)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = _start(segments["length"][own], parts[own], number)
    stop = _start(segments["length"][own], parts[own], number + 1)
    first = (batch.ends() + 1 - segments["length"])[own] + start
    last = number == parts[own] - 1
    before = np.minimum(start, burn_in)
    found = {name: column[own] for name, column in segments.items() if name not in _OF_REMEMBERING}
    found |= {name: found[name] & last for name in ("terminated", "truncated") if name in found}
    if "carried" in found:
        found["carried"] &= number == 0
    after = np.where(last, 0, first + stop - start)
    for name, row in (("bootstrap_obs", "obs"), ("bootstrap_mask", "action_mask")):
        if name in found:
            found[name] = _where(last, found[name], columns[row][after])
    found |= {"length": stop - start, "burn_in": before, "memory": columns["memory"][first - before]}
    return Batch({name: column for name, column in columns.items() if name != "memory"}, found)


def sequence_problems(length: int, burn_in: int) -> list[str]:
    """What is wrong with these settings of sequences, in rows."""
    rules = {
        f"sequence_length is at least 1, not {length}": length >= 1,
        f"burn_in is at least 0, not {burn_in}": burn_in >= 0,
    }
    return [rule for rule, holds in rules.items() if not holds]


def _start(length: Array, parts: Array, number: Array) -> Array:
    """Where part `number` of `parts` begins, the first ones having what is over."""
    each, over = length // parts, length % parts
    start: Array = number * each + np.minimum(number, over)
    return start


def _where(condition: Array, one: Array, other: Array) -> Array:
    found: Array = np.where(condition.reshape(-1, *[1] * (one.ndim - 1)), one, other)
    return found
