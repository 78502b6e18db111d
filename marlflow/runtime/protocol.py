"""The Runtime protocol, which the inline and the Ray runtime implement."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from marlflow.base.errors import RuntimeFailed
from marlflow.base.items import Weights
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.runtime.relocation import DriverPlace
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import RunSpec, learner_of_replay
from marlflow.sampling.deadline import Deadline
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import FrozenPolicy, Workers
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport


@dataclass(frozen=True, slots=True)
class RunComponents:
    """The running workers, learners and replays over which plans are built."""

    workers: Workers
    learners: Mapping[str, Learner]
    replays: Mapping[str, Replay]
    driver: DriverPlace = field(default_factory=DriverPlace)

    def of(self, learner: str) -> list[Learner | Replay]:
        """Return a learner and its replays."""
        replays = [replay for name, replay in self.replays.items() if learner_of_replay(name) == learner]
        return [self.learners[learner], *replays]

    def published(self) -> dict[str, Weights]:
        """Return the latest published weights of each policy."""
        return {name: weights for learner in self.learners.values() for name, weights in learner.published.items()}


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The state of a run's components for a bit-exact resume: files by name, each a serialized tree.

    Files are `learner.<learner>`, `replay.<name>` (everything but the rows; the name is the learner's, or
    `<learner>@<shard>`), `rows.<name>.<first>-<stop>` (rows new since the last save) and `workers` (all environments).
    `replays` has the range [first, stop) of rows that each replay holds. `recorded` counts the files of recorded rows,
    {policy: {worker: number of files}}.
    """

    files: Mapping[str, bytes]
    replays: Mapping[str, tuple[int, int]]
    recorded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Runtime(Protocol):
    """Starts and stops the components of a run.

    `save` and `restore`, `pack` and `unpack` block; call them only when no other call is in flight.
    """

    def machines(self) -> Machines | None:
        """Return the resources of the machines; None if unknown before the start, or irrelevant."""
        ...

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """Start all components, and return them when they are ready.

        Raises ConfigInvalid if the machines lack resources, and RuntimeFailed if the runtime itself cannot start.

        `on_fault` gets a fault for each process that died and was replaced (`workers_lost`, `learners_lost`,
        `replays_lost`, with the rows lost), before its replacement is called. Two callbacks are called in a thread of
        the runtime: `on_loss` when the runtime itself fails later, after which calls in flight never return, and
        `on_news` with the output of workers and with environment calls that take long.
        """
        ...

    def end_by(self, deadline: Deadline) -> None:
        """Make later calls of workers end with the env step in which the deadline passes."""
        ...

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Return the state of all components, for a checkpoint.

        `rows_saved` has for each replay the `stop` of the rows already saved; only rows from there on are included. A
        learner that dies later restarts from this state. Raises ActorLost if a process dies during the call; it is
        replaced and reported through `on_fault`, and the call can be repeated.
        """
        ...

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        """Restore the state that `save` returned, after `start`; `read` returns the bytes of each of the files `names`.

        Running episodes are replayed to where they were, or restarted if longer than `replay_max_env_steps`. `frozen`
        has the frozen policies that may act in them. A replay that was not saved stays empty. Raises
        CheckpointUnusable if the state does not fit the run.
        """
        ...

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Serialize payloads queued on the driver, for a checkpoint; the driver does not open them."""
        ...

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """Return payloads equal to the arguments of `pack`."""
        ...

    def object_store_bytes(self) -> int | None:
        """Return the memory used by rows and weights in transit between processes; None with one process."""
        ...

    def close_environments(self) -> tuple[Fault, ...]:
        """Close all environments in bounded time and return the failures; do not collect afterwards."""
        ...

    def close(self) -> None:
        """Stop all processes that it started; may be called twice."""
        ...
