"""The Runtime protocol, implemented inline and over Ray, and rounds from the results of workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marlflow.base.errors import RuntimeFailed
from marlflow.batches.items import Fragment, Weights
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay, learner_of_replay
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import FrozenPolicy, Round, Workers
from marlflow.sampling.receipts import Fault, Receipt
from marlflow.sampling.saved_state import ResumeReport
from marlflow.sampling.watchdog import Deadline


@dataclass(frozen=True, slots=True)
class RunComponents:
    """The running components, over which plans are built."""

    workers: Workers
    learners: Mapping[str, Learner]
    replays: Mapping[str, Replay]
    driver: InlinePlace = field(default_factory=InlinePlace)
    referees: Workers | None = None
    """Workers that play matches, and collect nothing, while `workers` collect. None: there are no such processes."""
    dashboard_url: str | None = None
    """The address of Ray's dashboard, if the run has started one."""

    def of(self, learner: str) -> list[Learner | Replay]:
        """Return a learner and its replays."""
        replays = [replay for name, replay in self.replays.items() if learner_of_replay(name) == learner]
        return [self.learners[learner], *replays]

    def published(self) -> dict[str, Weights]:
        """Return each policy's latest published weights."""
        return {name: weights for learner in self.learners.values() for name, weights in learner.published.items()}


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The state of a run for a bit-exact resume: files by name, each a serialized tree.

    Files: `learner.<learner>`, `replay.<name>` (without rows; named as its learner, or `<learner>@<shard>`),
    `rows.<name>.<first>-<stop>` (rows new since the last save), `workers` (all environments). `replays` has the range
    [first, stop) of each replay's rows, `recorded` the number of recorded files, {policy: {worker: files}}.
    """

    files: Mapping[str, bytes]
    replays: Mapping[str, tuple[int, int]]
    recorded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Runtime(Protocol):
    """Starts and stops the components of a run.

    `save`, `restore`, `reset_learner`, `copy_learners`, `pack` and `unpack` block; no other call may be in flight.
    """

    def machines(self) -> Machines | None:
        """Return the machines' resources; None if unknown before the start, or irrelevant."""
        ...

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """Start all components, and return them when ready.

        Raises ConfigInvalid if resources are short, RuntimeFailed if the runtime cannot start.

        `on_fault` gets each loss of a process (`workers_lost`, `learners_lost`, `replays_lost`, with the rows lost),
        before its replacement is called. A thread of the runtime calls `on_loss` if the runtime itself fails later
        (calls in flight then never return), and `on_news` with output of workers and slow environment calls.
        """
        ...

    def end_by(self, deadline: Deadline) -> None:
        """Make later calls end with the env step in which the deadline passes."""
        ...

    def end_updates_at(self, at_s: float) -> None:
        """End running and later updates after the minibatch in which `at_s` (time.perf_counter) passes.

        May be called from any thread. A later call replaces the time.
        """
        ...

    def end_rounds_at(self, at_s: float) -> None:
        """End running and later rounds and evaluations after the env step in which `at_s` (time.perf_counter) passes.

        May be called from any thread. A later call replaces the time.
        """
        ...

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Return the state of all components, for a checkpoint.

        `rows_saved` has by replay the `stop` of rows saved earlier, which are left out. A learner lost later restarts
        from this state. Raises ActorLost if a process is lost meanwhile; it is replaced, and the call can be repeated.
        """
        ...

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        """Restore what `save` returned, after `start`; `read` returns the bytes of a file of `names`.

        Running episodes are replayed, or restarted if longer than `replay_max_env_steps`; `frozen` has the frozen
        policies in them. A replay that was not saved stays empty. Raises CheckpointUnusable if the state does not fit.
        """
        ...

    def reset_learner(self, start: LearnerSpec, acting: Sequence[Any] = ()) -> None:
        """Let a learner continue as a new one of `start`, with the next version, and clear its replays.

        `acting` are published weights (`Weights.flat`) of each of its policies to begin with. Raises ActorLost if the
        learner's process is lost twice.
        """
        ...

    def copy_learners(self, sources: Mapping[str, str]) -> None:
        """Let learners continue with the parameters and optimizers of others, {learner: source}, by the next version.

        Each copies what its source has before any of them copies. Replays stay. Raises ActorLost if the process of one
        is lost twice.
        """
        ...

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Serialize payloads queued on the driver, which does not open them."""
        ...

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """Return the packed payloads."""
        ...

    def object_store_bytes(self) -> int | None:
        """Return the bytes of rows and weights in transit between processes; None with one process, or if unknown."""
        ...

    def close_environments(self) -> tuple[Fault, ...]:
        """Close all environments in bounded time, and return failures; collect no more."""
        ...

    def close(self) -> None:
        """Stop everything; may be called twice."""
        ...


def make_round(number: int, receipts: Sequence[Receipt], payloads: Sequence[Mapping[str, Any]]) -> Round:
    """Make a round from each worker's receipt and payloads (or references) by policy."""
    last = len(receipts) - 1
    fragments = [
        Fragment(
            policy=policy,
            worker=receipt.worker,
            round=number,
            closes_round=position == last,
            rows=sampled.rows,
            rows_carried=sampled.rows_carried,
            payloads=(payload,),
            # Plain tuples, because fragments lie below the flow that defines StageTimes.
            finished=tuple([(stage.began_s, stage.ended_s, stage.rows) for stage in sampled.stage_times]),
        )
        for position, (receipt, by_policy) in enumerate(zip(receipts, payloads, strict=True))
        for policy, payload in by_policy.items()
        for sampled in (receipt.policies[policy],)
    ]
    return Round(number, receipts, fragments)
