"""What the dataflow needs of rollout workers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from marlflow.base.batch import Batch
from marlflow.base.items import Fragment, Weights
from marlflow.base.kept import Tree
from marlflow.policy.actor import EvaluationMode
from marlflow.rollout.fragment import Evaluated, Fault, Receipt
from marlflow.rollout.kept import ResumeReport

Matchup: TypeAlias = Mapping[str, str]
"""Who plays whom in one episode: agent to an entry of the table of weights, a policy or a frozen version of one."""


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A frozen entry of a table of weights: it acts as `policy`, by `weights` that never change.

    `scheduled` has the scheduled values of the policy when it was frozen, by which the entry explores in training.
    """

    policy: str
    weights: Weights
    scheduled: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """What every worker is to collect with in one round: each learning policy's weights, and scheduled values.

    `matchups` has for each copy those of its next episodes, in order; a copy that has used them up waits for the next
    round. None: the mapping is the same in every episode, and the workers have it.

    `frozen` has the frozen entries that these matchups seat; a worker adds those that it does not have. The entries
    `forget` leave the table as soon as no running episode seats them: they are named again in every request until then.
    """

    round: int
    weights: Mapping[str, Weights]
    schedules: Mapping[str, Mapping[str, float]]
    matchups: Mapping[int, Sequence[Matchup]] | None = None
    frozen: Mapping[str, FrozenPolicy] = field(default_factory=dict)
    forget: Collection[str] = ()


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


class Worker(Protocol):
    """One rollout worker, where it lives.

    receipt, batches = worker.collect(ticks=64, weights={"prey": Weights(version, flat)})
    """

    def collect(
        self,
        ticks: int,
        weights: Mapping[str, Weights] | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
        matchups: Mapping[int, Sequence[Matchup]] | None = None,
        frozen: Mapping[str, FrozenPolicy] | None = None,
        forget: Collection[str] = (),
    ) -> tuple[Receipt, dict[str, Batch]]:
        """`ticks` env steps of every copy: a receipt, and for each policy its complete rows; see Request."""
        ...

    def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights] | None = None,
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes, by number; `frozen` has the frozen entries that `matchups` seat."""
        ...

    def state(self) -> Tree:
        """Everything that is carried from one collect to the next, but for weights and scheduled values; by copy."""
        ...

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """Goes on from what `state` gave of this worker's copies or some of them; on a worker that is new.

        `frozen` has the frozen entries that running episodes seat.
        """
        ...

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Closes all environments, in `timeout_s` seconds if it is given; returns what went wrong."""
        ...


class Workers(Protocol):
    """All rollout workers of a run.

    round = await workers.collect(Request(round=0, weights={...}, schedules={...}))
    evaluated = await workers.evaluate(range(10), weights)

    Workers in the same process are done when they return: they never wait, so `begun` needs no event loop for them.
    """

    async def collect(self, request: Request) -> Round:
        """One round."""
        ...

    async def collect_next(self, request: Request | None) -> Round:
        """The part of one worker, whichever is done next, as a round of its own; each goes on at once.

        Those that have nothing to do begin with `request`; None: nobody begins anything, and `under_way` is above 0.
        """
        ...

    @property
    def under_way(self) -> int:
        """How many workers have begun what `collect_next` has not returned yet."""
        ...

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes by number, each with its own seed; returns no rows and changes no state of training.

        `matchups` has one for each of `episodes`; None: the workers' own mapping. `frozen` has the frozen entries that
        they seat.
        """
        ...
