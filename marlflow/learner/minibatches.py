"""How the items of an update are divided into minibatches, and each minibatch among the processes that learn together.

A loss is a mean over rows. The loss of a minibatch is then the mean of the losses of its shares, weighted by their
rows, and so is its gradient. A share may be empty: there may be more learners than rows.
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
    """Which items are in which minibatch of an epoch, and which of these this process computes on.

    order = division.order(generator); pieces = division.split(column if order is None else column[order])
    """

    def order(self, generator: torch.Generator) -> Tensor | None:
        """The items that are here, by number, in the order of one epoch; None: as they are."""
        ...

    def split(self, column: Tensor) -> Sequence[Tensor]:
        """This process's share of each minibatch: views of `column` [N, ...], which is in the order of an epoch."""
        ...

    def sizes(self) -> Sequence[Sequence[int]]:
        """The number of items in each share, [minibatches][shares]."""
        ...

    def fractions(self) -> Sequence[float]:
        """The part of each minibatch that is this process's share, from 0 to 1."""
        ...


@dataclass(frozen=True, slots=True)
class EqualDivision:
    """`count` items in minibatches of nearly equal size; each of `world_size` processes takes an equal share of each.

    Every process has all items, and draws the same order.
    """

    count: int
    num_minibatches: int
    rank: int = 0
    world_size: int = 1

    def order(self, generator: torch.Generator) -> Tensor | None:
        """A random order; None for one minibatch."""
        return None if self.num_minibatches == 1 else torch.randperm(self.count, generator=generator)

    def split(self, column: Tensor) -> Sequence[Tensor]:
        """The share of `rank` of each minibatch, as views."""
        if self.world_size == 1:
            return (column,) if self.num_minibatches == 1 else column.tensor_split(self.num_minibatches)
        shares: Sequence[Tensor] = column.split([size for minibatch in self.sizes() for size in minibatch])
        return shares[self.rank :: self.world_size]

    def sizes(self) -> list[list[int]]:
        """The number of items in each share, [minibatches][processes]."""
        return [share_sizes(minibatch, self.world_size) for minibatch in share_sizes(self.count, self.num_minibatches)]

    def fractions(self) -> list[float]:
        """The part of each minibatch that the share of `rank` is."""
        return [minibatch[self.rank] / max(1, sum(minibatch)) for minibatch in self.sizes()]


@dataclass(frozen=True)
class ShardDivision:
    """The rows of shards (`rows`: the number in each) in `num_minibatches`; the shards `own` are here.

    Rows are dealt to the minibatches in turn, each shard continuing where the one before it stopped. So a minibatch has
    as many rows as if all were in one place, and of each shard about as many as its part of all rows.
    """

    rows: Sequence[int]
    own: range
    num_minibatches: int

    def order(self, generator: torch.Generator) -> Tensor:
        """The own rows in the order of a seed, which all replicas draw, whatever rows they have."""
        return self.seeded_order(int(torch.randint(2**62, (), generator=generator)))

    def seeded_order(self, seed: int) -> Tensor:
        """The own rows by number, the first minibatch's first; each shard is shuffled by itself."""
        if self.num_minibatches == 1:
            return torch.arange(sum(self.rows[shard] for shard in self.own))
        sizes, first, shuffled = self.sizes(), 0, []
        for shard in self.own:
            generator = torch.Generator().manual_seed(key(seed, shard))
            order = torch.randperm(self.rows[shard], generator=generator) + first
            shuffled.append(order.split([minibatch[shard] for minibatch in sizes]))
            first += self.rows[shard]
        return torch.cat([piece for minibatch in zip(*shuffled, strict=True) for piece in minibatch])

    def split(self, column: Tensor) -> Sequence[Tensor]:
        """The own rows of each minibatch, as views."""
        pieces: Sequence[Tensor] = column.split(self._own_sizes)
        return pieces

    def sizes(self) -> list[list[int]]:
        """The number of rows of each shard in each minibatch, [minibatches][shards]."""
        count, firsts = self.num_minibatches, list(accumulate(self.rows[:-1], initial=0))
        return [
            [
                rows // count + ((minibatch - first) % count < rows % count)
                for first, rows in zip(firsts, self.rows, strict=True)
            ]
            for minibatch in range(count)
        ]

    def fractions(self) -> list[float]:
        """The part of each minibatch that the own rows are."""
        return [own / sum(sizes) for own, sizes in zip(self._own_sizes, self.sizes(), strict=True)]

    @cached_property
    def _own_sizes(self) -> list[int]:
        return [sum(minibatch[shard] for shard in self.own) for minibatch in self.sizes()]


def share_sizes(count: int, shares: int) -> list[int]:
    """The sizes of `shares` nearly equal shares of `count` items; the first are larger, as torch's tensor_split."""
    each, over = divmod(count, shares)
    return [each + (share < over) for share in range(shares)]
