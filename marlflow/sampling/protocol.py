"""Interfaces of rollout workers, with their requests and results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from marlflow.base.pickling import pickled_by_arguments
from marlflow.base.serialization import Tree
from marlflow.batches.batch import Batch
from marlflow.batches.items import Fragment, Weights
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.receipts import Evaluated, Fault, Receipt
from marlflow.sampling.saved_state import ResumeReport

Matchup: TypeAlias = Mapping[str, str]
"""The policies of one episode: agent to entry of the table of weights (a policy or a frozen version)."""


@dataclass(frozen=True, slots=True)
class FrozenPolicy:
    """A frozen version of `policy`: weights that never change."""

    policy: str
    weights: Weights
    scheduled: Mapping[str, float] = field(default_factory=dict)
    """The policy's scheduled values at freezing, such as epsilon, for exploration in training."""


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class Request:
    """The input of one round for every worker."""

    round: int = 0
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """Published weights by policy; the others keep their last."""
    schedules: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Scheduled values by policy; the others keep their last."""
    matchups: Mapping[int, Sequence[Matchup]] | None = None
    """Each environment's next matchups; without one it waits for the next round. None: the workers' mapping."""
    frozen: Mapping[str, FrozenPolicy] = field(default_factory=dict)
    """The frozen entries in these matchups."""
    forget: Collection[str] = ()
    """Entries that leave the table once no running episode uses them; repeated until then."""
    reset: Collection[str] = ()
    """Policies whose learner was reset since the last round: their unfinished rows and their memories are dropped."""


NOTHING_NEW = Request()
"""A round with the weights, scheduled values and matchups of the round before."""


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """Evaluation episodes, by number."""

    episodes: Sequence[int]
    weights: Mapping[str, Weights] = field(default_factory=dict)
    """Published weights by policy; the others keep their last."""
    matchups: Sequence[Matchup] | None = None
    """A matchup for each episode. None: the workers' mapping, or the dealer's matchups."""
    mode: EvaluationModes = "greedy"
    """How all policies and frozen entries act, or each."""
    frozen: Mapping[str, FrozenPolicy] = field(default_factory=dict)
    """The frozen entries in these matchups."""
    within_s: float | None = None
    """Begin only as many episodes, at least one, as are expected to end within these seconds."""


Assign: TypeAlias = Callable[[Request, Sequence[int]], Request]
"""Completes a request for one worker, given its environments: their matchups, and entries to add and to forget."""


@dataclass(frozen=True, slots=True)
class Drain:
    """Takes the place of a request: workers start nothing new, and the source ends once no call is in flight."""


@dataclass(frozen=True, slots=True)
class Round:
    """The receipts and unopened fragments of one collect by every worker."""

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

    receipt, batches = worker.collect(64, Request(weights={"prey": Weights(version, flat)}))
    """

    def collect(self, ticks: int, request: Request = NOTHING_NEW) -> tuple[Receipt, dict[str, Batch]]:
        """Step every environment `ticks` times; return a receipt and each policy's complete rows.

        Policies without rows get an empty batch.
        """
        ...

    def drop_unfinished(self, policies: Collection[str]) -> None:
        """Drop the unfinished rows and the memories of these policies, as a collect does first with `Request.reset`."""
        ...

    def evaluate(self, request: EvaluationRequest) -> Evaluated:
        """Play evaluation episodes in separate environments; training state is unchanged.

        Seeds depend only on the run's seed and the episode's number. Memories start at zero. Results are in order,
        without broken episodes, which are faults.
        """
        ...

    def state(self) -> Tree:
        """Return the state between two collects, by environment, without weights and scheduled values.

        Raises CheckpointFailed if recorded rows cannot be written.
        """
        ...

    def load_state(
        self, tree: Tree, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy] | None = None
    ) -> ResumeReport:
        """Resume a new worker from the `state` of its environments, which several workers may have saved.

        Running episodes are replayed, unless longer than `replay_max_env_steps` or the history: these restart from
        their seed. If a replay differs, the next episode begins. Raises CheckpointUnusable if agents or policies
        differ.
        """
        ...

    def close(self, timeout_s: float | None = None) -> tuple[Fault, ...]:
        """Write recorded rows and close all environments, within `timeout_s` seconds if given; return faults."""
        ...


class RowWriter(Protocol):
    """Writes collected rows, for example to an offline dataset.

    `write_full` and `finish` raise OSError if the disk fails; the next call retries.
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
        """Number of files over all resumes: {policy: {worker: number}}."""
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
        evaluated = await workers.evaluate(EvaluationRequest(range(10), weights))

    Workers in the driver's process never suspend.
    """

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        """Run one round; `assign` is called for each worker that takes part."""
        ...

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        """Return the first worker's result, as a round of its own.

        Idle workers start with `request`, and `assign` is called for each; None starts none.
        """
        ...

    @property
    def under_way(self) -> int:
        """Number of workers with a running collect for `collect_next`; wrappers may have more under way."""
        ...

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        """Play evaluation episodes, without rows or changes of training state."""
        ...
