"""Splits segments into sequences for recurrent learners (Kapturowski et al., 2019, section 2.3).

"Recurrent Experience Replay in Distributed Reinforcement Learning", https://openreview.net/forum?id=r1lyTjAqYX
"""

from __future__ import annotations

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch

_MEMORY_PROPERTIES = ("memory", "memory_version", "bootstrap_memory")
_BOOTSTRAP = "bootstrap_"


def split(batch: Batch, length: int, burn_in: int) -> Batch:
    """Split a batch with columns of memory, as SplitSegments describes."""
    segments, columns = batch.segments, batch.columns
    parts = -(-segments["length"] // length)
    # The segment of each sequence, and the sequence's index in its segment.
    parent = np.repeat(np.arange(len(parts)), parts)
    number = np.arange(len(parent)) - np.repeat(np.cumsum(parts) - parts, parts)
    start = _start(segments["length"][parent], parts[parent], number)
    stop = _start(segments["length"][parent], parts[parent], number + 1)
    first = (batch.ends() + 1 - segments["length"])[parent] + start
    last = number == parts[parent] - 1
    before = np.minimum(start, burn_in)
    properties = {name: column[parent] for name, column in segments.items() if name not in _MEMORY_PROPERTIES}
    # Only a segment's last sequence ends as the segment does; others bootstrap from the next sequence's first row.
    properties |= {name: properties[name] & last for name in ("terminated", "truncated") if name in properties}
    if "carried" in properties:
        properties["carried"] &= number == 0
    if "seats_left_early" in properties:
        properties["seats_left_early"] = np.where(last, properties["seats_left_early"], 0)
    # Index 0 is a placeholder: the last sequence uses the segment's own bootstrap.
    after = np.where(last, 0, first + stop - start)
    for name in properties:
        if (column := _column_of(name)) in columns:
            properties[name] = _where(last, properties[name], columns[column][after])
    memories = memory_columns(batch)
    properties |= {"length": stop - start, "burn_in": before}
    properties |= {name: columns[name][first - before] for name in memories}
    return type(batch)({name: column for name, column in columns.items() if name not in memories}, properties)


def memory_columns(batch: Batch) -> list[str]:
    """Return the columns of memory: `memory`, or of joint rows one for each policy, `p:memory`."""
    return [name for name in batch.columns if name.rpartition(":")[2] == "memory"]


def _column_of(segment_property: str) -> str:
    """Return the column that a bootstrap continues; empty for other properties."""
    if not segment_property.startswith(_BOOTSTRAP):
        return ""
    policy, colon, name = segment_property.removeprefix(_BOOTSTRAP).rpartition(":")
    return f"{policy}{colon}{'action_mask' if name == 'mask' else name}"


def sequence_problems(length: int, burn_in: int) -> list[str]:
    """Return problems with these settings, in rows."""
    rules = {
        f"sequence_length is at least 1, not {length}": length >= 1,
        f"burn_in is at least 0, not {burn_in}": burn_in >= 0,
    }
    return [rule for rule, holds in rules.items() if not holds]


def _start(length: Array, parts: Array, number: Array) -> Array:
    # The first `over` parts have one row more.
    each, over = length // parts, length % parts
    start: Array = number * each + np.minimum(number, over)
    return start


def _where(condition: Array, if_true: Array, if_false: Array) -> Array:
    selected: Array = np.where(condition.reshape(-1, *[1] * (if_true.ndim - 1)), if_true, if_false)
    return selected
