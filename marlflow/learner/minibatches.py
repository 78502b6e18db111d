"""The division of a batch into minibatches, and of each minibatch among data-parallel processes.

Losses are means over rows, so a minibatch's gradient is the mean of its shares' gradients, weighted by rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor

from marlflow.base.random import key


class Division(Protocol):
    """Assigns items (rows, or whole sequences) to minibatches, and shares of these to processes.

    order = division.order(generator); pieces = division.split(column if order is None else column[order])
    """

    def order(self, generator: torch.Generator) -> Tensor | None:
        """Return the indices of this process's items in the order of one epoch; None for no shuffle."""
        ...

    def split(self, column: Tensor) -> Sequence[Tensor]:
        """Return this process's share of each minibatch, as views of the shuffled `column`."""
        ...

    def sizes(self) -> Sequence[Sequence[int]]:
        """Return the number of items in each share, [minibatches][shares]."""
        ...

    def fractions(self) -> Sequence[float]:
        """Return this process's fraction of each minibatch, from 0 to 1."""
        ...


@dataclass(frozen=True, slots=True)
class EqualDivision:
    """Divides `count` items, which every process has, into nearly equal minibatches, and these into equal shares."""

    count: int
    num_minibatches: int
    rank: int = 0
    world_size: int = 1

    def order(self, generator: torch.Generator) -> Tensor | None:
        return None if self.num_minibatches == 1 else torch.randperm(self.count, generator=generator)

    def split(self, column: Tensor) -> Sequence[Tensor]:
        if self.world_size == 1:
            return (column,) if self.num_minibatches == 1 else column.tensor_split(self.num_minibatches)
        shares: Sequence[Tensor] = column.split([size for minibatch in self.sizes() for size in minibatch])
        return shares[self.rank :: self.world_size]

    def sizes(self) -> list[list[int]]:
        return [share_sizes(minibatch, self.world_size) for minibatch in share_sizes(self.count, self.num_minibatches)]

    def fractions(self) -> list[float]:
        if self.world_size == 1:
            return [1.0] * self.num_minibatches
        return [minibatch[self.rank] / max(1, sum(minibatch)) for minibatch in self.sizes()]


@dataclass(frozen=True, slots=True)
class BatchDivision:
    """Keeps several batches of one process, one after the other, apart: each is a minibatch."""

    counts: Sequence[int]

    def order(self, generator: torch.Generator) -> None:
        return None

    def split(self, column: Tensor) -> Sequence[Tensor]:
        pieces: Sequence[Tensor] = column.split(list(self.counts))
        return pieces

    def sizes(self) -> list[list[int]]:
        return [[count] for count in self.counts]

    def fractions(self) -> list[float]:
        return [1.0] * len(self.counts)


@dataclass(frozen=True)
class ShardDivision:
    """Divides the rows of several shards into minibatches; the shards `local` are in this process.

    `rows` is the number of rows in each shard. Each minibatch takes from every shard in proportion.
    """

    rows: Sequence[int]
    local: range
    num_minibatches: int

    def order(self, generator: torch.Generator) -> Tensor:
        # Every replica draws one number, whatever its rows, so that their generators stay in step.
        return self.seeded_order(int(torch.randint(2**62, (), generator=generator)))

    def seeded_order(self, seed: int) -> Tensor:
        """Return the local rows' indices, shuffled within shards and ordered by minibatch."""
        if self.num_minibatches == 1:
            return torch.arange(sum(self.rows[shard] for shard in self.local))
        sizes, first, shuffled = self.sizes(), 0, []
        # A generator for each shard, so that the order does not depend on which process holds it.
        for shard in self.local:
            generator = torch.Generator().manual_seed(key(seed, shard))
            order = torch.randperm(self.rows[shard], generator=generator) + first
            shuffled.append(order.split([minibatch[shard] for minibatch in sizes]))
            first += self.rows[shard]
        return torch.cat([piece for minibatch in zip(*shuffled, strict=True) for piece in minibatch])

    def split(self, column: Tensor) -> Sequence[Tensor]:
        pieces: Sequence[Tensor] = column.split(self._local_sizes)
        return pieces

    def sizes(self) -> list[list[int]]:
        # Rows are dealt to the minibatches in turn, each shard continuing where the one before it stopped.
        count, firsts = self.num_minibatches, list(accumulate(self.rows[:-1], initial=0))
        return [
            [
                rows // count + ((minibatch - first) % count < rows % count)
                for first, rows in zip(firsts, self.rows, strict=True)
            ]
            for minibatch in range(count)
        ]

    def fractions(self) -> list[float]:
        return [local / sum(sizes) for local, sizes in zip(self._local_sizes, self.sizes(), strict=True)]

    @cached_property
    def _local_sizes(self) -> list[int]:
        return [sum(minibatch[shard] for shard in self.local) for minibatch in self.sizes()]


def share_sizes(count: int, shares: int) -> list[int]:
    """Return the sizes of nearly equal shares of `count` items, larger ones first, as in `tensor_split`."""
    each, over = divmod(count, shares)
    return [each + (share < over) for share in range(shares)]
