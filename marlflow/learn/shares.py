"""How a group of learners divides the rows of a minibatch, and puts together what each found for its own.

A loss is a mean over rows. So that of a minibatch is the mean of those of its shares, weighted by their rows, and so is
its gradient. A share may be empty: there are more learners than rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor


def shares(rows: int, count: int) -> list[slice]:
    """The rows of each of `count` shares of nearly equal size; the first have what is over, as torch's tensor_split."""
    each, over = divmod(rows, count)
    stops = [(number + 1) * each + min(number + 1, over) for number in range(count)]
    return [slice(start, stop) for start, stop in zip([0, *stops], stops, strict=False)]


def share_sizes(rows: int, parts: int, count: int) -> Iterator[list[int]]:
    """For each of `parts` minibatches of `rows` rows, how many of its rows each of `count` learners takes."""
    for minibatch in shares(rows, parts):
        yield [share.stop - share.start for share in shares(minibatch.stop - minibatch.start, count)]


def steps_of_all(
    steps_by_rank: Sequence[Sequence[Sequence[float]]], sizes: Sequence[Sequence[int]]
) -> list[list[float]]:
    """The numbers that each step would have had with all rows of its minibatch in one place.

    `steps_by_rank` has each learner's own, without the steps of which it had no rows; `sizes` [steps][learners].
    """
    own, found = [iter(steps) for steps in steps_by_rank], []
    for rows in sizes:
        present = [(count / sum(rows), next(own[rank])) for rank, count in enumerate(rows) if count]
        columns = zip(*(step for _, step in present), strict=True)
        weights = [weight for weight, _ in present]
        found.append([sum(w * term for w, term in zip(weights, column, strict=True)) for column in columns])
    return found


def priorities_of_all(priorities_by_rank: Sequence[Tensor], sizes: Sequence[Sequence[int]]) -> list[Tensor]:
    """The priorities of each minibatch's rows, in its order; `sizes` [minibatches][learners]."""
    counts = [[rows[rank] for rows in sizes] for rank in range(len(priorities_by_rank))]
    split = [found.split(rows) for found, rows in zip(priorities_by_rank, counts, strict=True)]
    return [torch.cat(pieces) for pieces in zip(*split, strict=True)]
