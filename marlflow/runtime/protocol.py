"""What the layers above ask of a runtime; inline and Ray give the same."""

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
    """A run's parts, set up: what plans are built over."""

    workers: Workers
    learners: Mapping[str, Learner]
    replays: Mapping[str, Replay]
    driver: DriverPlace = field(default_factory=DriverPlace)

    def of(self, learner: str) -> list[Learner | Replay]:
        """A learner and its replays."""
        remembers = [replay for name, replay in self.replays.items() if learner_of_replay(name) == learner]
        return [self.learners[learner], *remembers]

    def published(self) -> dict[str, Weights]:
        """The weights of each policy that its learner published last."""
        return {name: weights for learner in self.learners.values() for name, weights in learner.published.items()}


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """All that a runtime's parts need to go on as if they had never stopped: files by name, each a serialized tree.

    `learner.<learner>`, `replay.<name>` (all but its rows; its learner's name, or `<learner>@<shard>`),
    `rows.<name>.<first>-<stop>` (the rows of these numbers, new since the last time), and `workers` (all workers'
    environments, whichever worker played them).
    `replays` has the numbers [first, stop) of the rows that each replay holds. `recorded` says how many files of
    recorded rows there are, {policy: {worker: number of files}}.
    """

    files: Mapping[str, bytes]
    replays: Mapping[str, tuple[int, int]]
    recorded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


class Runtime(Protocol):
    """Sets parts up, and takes them down.

    with runtime: parts = runtime.start(spec, on_fault)

    `keep` and `restore`, `pack` and `unpack` block; they are for when nothing is in flight.
    """

    def machines(self) -> Machines | None:
        """What the machines have; None if that is only known when the run starts, or does not matter."""
        ...

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """Everything the spec asks for, ready. Raises ConfigInvalid if the machines cannot give it.

        Raises RuntimeFailed if the runtime itself cannot start. `on_loss` is called, in a thread of the runtime's, when
        the runtime itself is lost later: nothing that is under way then will ever come back.

        `on_news` is called, in a thread of the runtime's, with what workers print where nobody sees it, and with calls
        of environments that take long.

        `on_fault` is told of every process that died and was replaced (`workers_lost`, `learners_lost`,
        `replays_lost`, with the rows that went with it), before anything is asked of its successor.
        """
        ...

    def end_by(self, deadline: Deadline) -> None:
        """What workers are asked from here on ends with the env step in which the deadline passes."""
        ...

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Everything; of each replay's rows those from number `rows_saved[name]` on, which the last call ended at.

        A learner that dies later comes back as it was here. Raises ActorLost if a process dies meanwhile; it is
        replaced and reported as ever, and the next call works again.
        """
        ...

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        """Goes on from what `keep` gave: `read(name)` gives the bytes of each of `names`, called once parts are there.

        Running episodes are played again, those of more than `replay_max_env_steps` from their start; `frozen` has the
        frozen entries of the table of weights that they may seat. A replay of
        which nothing was kept stays empty. Raises CheckpointUnusable if it is of other parts.
        """
        ...

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Rows that wait on the driver, as bytes; they are not opened here."""
        ...

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """The payloads that `pack` was given, or equal ones."""
        ...

    def object_store_bytes(self) -> int | None:
        """Bytes of memory that rows and weights take on their way between processes; None where nothing leaves one."""
        ...

    def close_environments(self) -> tuple[Fault, ...]:
        """Closes all environments, in bounded time, and returns what went wrong; nothing is collected afterwards."""
        ...

    def close(self) -> None:
        """Ends everything it started; may be called twice."""
        ...
