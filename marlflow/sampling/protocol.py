"""The interfaces of rollout workers, with their requests and results."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from marlflow.base.batch import Batch
from marlflow.base.items import Fragment, Weights
from marlflow.base.serialization import Tree
from marlflow.policy.actor import EvaluationMode
from marlflow.sampling.receipts import Evaluated, Fault, Receipt
from marlflow.sampling.saved_state import ResumeReport

Matchup: TypeAlias = Mapping[str, str]
"""The policies of one episode: agent to entry of the table of weights (a policy or a frozen version)."""


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A frozen entry of the table of weights: `weights` of `policy` that never change.

    `scheduled` has the policy's scheduled values at freezing, such as epsilon, for exploration in training.
    """

    policy: str
    weights: Weights
    scheduled: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """The input of one round for every worker: weights and scheduled values by learning policy.

    `matchups` has the next matchups of each environment, in order; without one it waits for the next round.
    None: the workers use their mapping. `frozen` has the frozen entries in these matchups. The entries `forget` leave
    the table once no running episode uses them, and are repeated until then.
    """

    round: int
    weights: Mapping[str, Weights]
    schedules: Mapping[str, Mapping[str, float]]
    matchups: Mapping[int, Sequence[Matchup]] | None = None
    frozen: Mapping[str, FrozenPolicy] = field(default_factory=dict)
    forget: Collection[str] = ()


@dataclass(frozen=True, slots=True)
class Drain:
    """In place of a request: workers start nothing new, and the source ends once nothing is in flight."""


@dataclass(frozen=True, slots=True)
class Round:
    """The receipts of one collect by every worker, and its fragments, whose rows are not opened."""

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
    """One rollout worker.

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
        """Step every environment `ticks` times; return a receipt and each policy's complete rows.

        Policies without new weights keep their last; policies without rows get an empty batch. The other arguments are
        as in Request.
        """
        ...

    def evaluate(
        self,
        episodes: Sequence[int],
        weights: Mapping[str, Weights] | None = None,
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Play evaluation episodes by number in separate environments; training state is unchanged.

        Seeds depend on the run's seed and the episode's number alone. `matchups` has one per episode and may use
        entries of the table and of `frozen`. Results are in order, without episodes that an environment broke, which
        are faults.
        """
        ...

    def state(self) -> Tree:
        """Return what is carried between collects, by environment, without weights and scheduled values.

        Raises CheckpointFailed if recorded rows cannot be written.
        """
        ...

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """Resume a new worker from the `state` of its environments, which several workers may have saved.

        Running episodes are replayed, using the entries `frozen`. Episodes longer than `replay_max_env_steps` or than
        the history restart from their seed; if a replay differs, the next episode begins instead. Raises
        CheckpointUnusable if agents or policies differ.
        """
        ...

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Write recorded rows and close all environments, within `timeout_s` seconds if given; return faults."""
        ...


class RowWriter(Protocol):
    """Writes collected rows, for example to an offline dataset.

    Rows stay in memory until written. `write_full` and `finish` raise OSError if the disk fails; the next call retries.
    """

    @property
    def policies(self) -> Sequence[str]:
        """The policies whose rows are written."""
        ...

    @property
    def folder(self) -> str:
        """The folder of the files."""
        ...

    @property
    def finished(self) -> dict[str, dict[str, int]]:
        """Number of files by this worker over all resumes: {policy: {worker: number of files}}."""
        ...

    def write(self, batches: Mapping[str, Batch], env_steps: int) -> None:
        """Add one fragment per policy, collected in `env_steps` env steps."""
        ...

    def write_full(self) -> None:
        """Write complete files, once the driver has the receipts of all their rows."""
        ...

    def finish(self) -> None:
        """Write everything to disk."""
        ...


class Workers(Protocol):
    """All rollout workers of a run.

        round = await workers.collect(Request(round=0, weights={...}, schedules={...}))
        evaluated = await workers.evaluate(range(10), weights)

    Workers in the driver's process never suspend, so `begun` runs them without an event loop.
    """

    async def collect(self, request: Request) -> Round:
        """Run one round."""
        ...

    async def collect_next(self, request: Request | None) -> Round:
        """Return the result of the first worker to finish, as a round of its own.

        Idle workers start with `request`; None starts none, and `under_way` must be above 0.
        """
        ...

    @property
    def under_way(self) -> int:
        """Number of workers whose result is still to come from `collect_next`."""
        ...

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Play evaluation episodes by number, without rows or changes of training state.

        `matchups` has one per episode; None uses the workers' mapping. `frozen` has the frozen entries in them.
        """
        ...
