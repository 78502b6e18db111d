"""What the dataflow needs of rollout workers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from marlflow.base.items import Fragment, Weights
from marlflow.rollout.fragment import Evaluated, Receipt

Matchup: TypeAlias = Mapping[str, str]
"""Who plays whom in one episode: agent to policy."""


@dataclass(frozen=True, slots=True)
class Request:
    """What every worker is to collect with in one round: each learning policy's weights, and scheduled values.

    `matchups` has for each copy those of its next episodes, in order; a copy that has used them up waits for the next
    round. None: the mapping is the same in every episode, and the workers have it.
    """

    round: int
    weights: Mapping[str, Weights]
    schedules: Mapping[str, Mapping[str, float]]
    matchups: Mapping[int, Sequence[Matchup]] | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One collect of every worker: what they say of it, and the rows, unopened."""

    number: int
    receipts: Sequence[Receipt]
    fragments: Sequence[Fragment]

    @property
    def rows(self) -> int:
        """Agent steps of learning policies."""
        return sum(fragment.rows for fragment in self.fragments)

    @property
    def env_steps(self) -> int:
        """Env steps of all workers."""
        return sum(receipt.env_steps for receipt in self.receipts)


class Workers(Protocol):
    """All rollout workers of a run.

    round = await workers.collect(Request(round=0, weights={...}, schedules={...}))
    evaluated = await workers.evaluate(range(10), weights)
    """

    def collect(self, request: Request) -> Round | Awaitable[Round]:
        """One round."""
        ...

    def evaluate(
        self, episodes: range, weights: Mapping[str, Weights], matchups: Sequence[Matchup] | None = None
    ) -> Evaluated | Awaitable[Evaluated]:
        """Greedy episodes by number, each with a seed of its own; no rows, and no training state is touched.

        `matchups` has one for each of `episodes`; None: the workers' own mapping.
        """
        ...
