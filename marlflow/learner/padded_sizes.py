"""Padded sizes of compiled minibatches, of which a run has few, because each means a program."""

from __future__ import annotations

from collections.abc import Sequence

from marlflow.learner.update_job import UpdateJob


def padded_sizes(job: UpdateJob, sizes: Sequence[int]) -> tuple[int, int]:
    """Return the padded numbers of items of a minibatch, and of those that minibatches are taken from.

    There is a program for each pair, so few pairs may occur in a run. They depend on this job alone, as a resumed run
    computes what it would have computed.
    """
    width = padded_size(max(sizes), job.count_varies)
    return width, width * _doubled(3, len(sizes)) if job.count_varies else _power_of_two(job.items)


def padded_size(count: int, count_varies: bool) -> int:
    """Return the padded number of items of a minibatch of `count`; few differ in a run, whatever its batches are."""
    # Three times a power of two: full sequences are often a power of two, and up to half as many more are cut short.
    return _doubled(12, count) if count_varies else _rounded_up(count)


def _doubled(least: int, count: int) -> int:
    """Return the first of `least`, twice `least`, and so on, that is at least `count`."""
    return least << (-(-count // least) - 1).bit_length()


def _rounded_up(count: int) -> int:
    """Return the least of the padded sizes of minibatches from `count` on, at most an eighth or 8 rows more."""
    step: int = max(8, 1 << max(0, count.bit_length() - 4))
    return -(-count // step) * step


def _power_of_two(count: int) -> int:
    # Padding of what minibatches are taken from costs nothing but its memory.
    return 1 << (count - 1).bit_length()
