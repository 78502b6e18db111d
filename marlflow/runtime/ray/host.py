"""The actor that hosts learners and replays, and runs stages in their process."""

from __future__ import annotations

import gc
import pdb
import pickle
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
import torch
from ray import cloudpickle

from marlflow.base.allocator import keep_freed_memory
from marlflow.base.errors import ActorLost, ConfigInvalid
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.flow import StageCall, StageTimes
from marlflow.flow.protocols import OperatorRaised
from marlflow.runs.checkpoint_format import load_replay, replay_state
from marlflow.runtime.spec import LearnerSpec
from marlflow.runtime.stage_chain import Rows, merge_payloads, pack_batch, run_chain, unpack_batch

RESIDENTS: dict[str, Any] = {}
"""The objects hosted in this process by name; a handle that is unpickled here becomes one of them."""


def resident(name: str) -> Any:
    """Return the object of this name in this process."""
    return RESIDENTS[name]


@dataclass(frozen=True, slots=True)
class ChainResult:
    """The receipt of one call of a chain of stages, without rows.

    `outputs` has row counts for outputs that stay in the object store, `times` one entry per stage. `version` is None
    if nothing was published.
    """

    outputs: Sequence[Any]
    times: Sequence[StageTimes]
    version: int | None


@dataclass(frozen=True, slots=True)
class RemoteError:
    """An exception returned as a value, so that the user sees the operator's own traceback."""

    position: int
    error: BaseException | None
    text: str
    traceback: str


def remote_error(error: BaseException, position: int = 0) -> RemoteError:
    """Convert an exception to a form that always pickles."""
    text = "".join(traceback.format_exception(error))
    # Exceptions of third-party code often do not survive pickling.
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  bytes made on this line
    except Exception:  # noqa: BLE001  then only its text is sent
        return RemoteError(position, None, f"{type(error).__name__}: {error}", text)
    return RemoteError(position, error, f"{type(error).__name__}: {error}", text)


def as_exception(carried: RemoteError) -> BaseException:
    """Return the original exception with its remote traceback as a note."""
    error = carried.error or RuntimeError(carried.text)
    error.add_note(carried.traceback)
    return error


def refuse_debuggers() -> None:
    """Make `breakpoint()` and `pdb.set_trace()` raise in this process, which has no terminal."""
    # Ray's own hook would skip them silently, or wait for a remote debugger.
    setattr(sys, "breakpointhook", _no_terminal)  # noqa: B010  mypy lets no function be assigned to
    setattr(pdb, "set_trace", _no_terminal)  # noqa: B010


def _no_terminal(*_arguments: Any, **_options: Any) -> None:
    raise RuntimeError("breakpoint() needs a terminal, and processes of Ray have none: run with runtime=inline")


def check_sendable(calls: Sequence[StageCall], where: str) -> None:
    """Raise ConfigInvalid if an operator cannot be sent to the process `where`; Ray's own error lists all of them."""
    for call in calls:
        try:
            cloudpickle.dumps(call.operator)  # type: ignore[no-untyped-call]
        except Exception as error:
            kind = type(call.operator).__name__
            reason = f"the stage {kind} cannot be sent to the process of {where}, where it runs: {error}"
            raise ConfigInvalid([f"{reason}; make it in __setstate__, or run with runtime=inline"]) from error


def packed_call(chain: int, items: Sequence[Any], counts: Sequence[int], returns: int) -> bytes:
    """Serialize a call of a chain that returns `returns` values, without the rows.

    Item i arrives as `counts[i]` payloads (with their keys in `items[i]`), or directly if the count is 0.
    """
    # One argument, because Ray serializes each argument separately. Ray's pickler, because items may have a user's own
    # classes.
    packed: bytes = cloudpickle.dumps((chain, items, counts, returns))  # type: ignore[no-untyped-call]
    return packed


class Host:
    """Hosts objects by name (RESIDENTS) and runs registered chains of stages."""

    def __init__(self, builders: dict[str, Callable[[], Any]], threads: int) -> None:
        torch.set_num_threads(threads)
        keep_freed_memory()
        refuse_debuggers()
        self._builders = builders
        self._chains: dict[int, Sequence[StageCall]] = {}
        self._publishers: dict[int, Any] = {}

    def ready(self) -> RemoteError | None:
        """Build all hosted objects once; return the error if one failed."""
        try:
            while self._builders:
                name, build = next(iter(self._builders.items()))
                RESIDENTS[name] = build()
                del self._builders[name]
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
        # The hosted objects live as long as the process, so garbage collections need not scan them.
        gc.freeze()
        return None

    def prepare(self, chain: int, calls: Sequence[StageCall]) -> bool:
        """Register the calls of a chain of stages under a number."""
        self._chains[chain] = calls
        publishers = [call.at for call in calls if call.traits.publishes]
        self._publishers[chain] = publishers[0] if publishers else None
        return True

    def run(self, call: bytes, *payloads: Any) -> Any:
        """Run the chain of `call` (see `packed_call`); return a receipt, one output per item, and published weights."""
        chain, items, counts, returns = pickle.loads(call)  # noqa: S301  made by the driver
        publisher = self._publishers[chain]
        # Stages may update without publishing: only a new version means that weights were published.
        version = publisher.version if publisher is not None else None
        try:
            outputs, times = run_chain(self._chains[chain], _with_payloads(items, counts, payloads))
        except OperatorRaised as error:
            failed = remote_error(error.__cause__ or error, error.position)
            return failed if returns == 1 else (failed, *[None] * (returns - 1))
        packed = [output for output in outputs if isinstance(output, Rows)]
        # Rows return as separate objects, which stay in the object store; the receipt has only their counts.
        light = [output.rows if isinstance(output, Rows) else output for output in outputs]
        published = publisher is not None and publisher.version != version
        receipt = ChainResult(light, times, publisher.version if published else None)
        extra = [] if publisher is None else flats_of(publisher) if published else [None] * len(publisher.published)
        num_outputs = returns - 1 - len(extra)
        if len(packed) != (len(outputs) if num_outputs else 0):
            wrong = TypeError(
                "the last stage in a place returns rows if and only if its annotation says so: `-> Batch`"
            )
            failed = remote_error(wrong, len(times) - 1)
            return failed if returns == 1 else (failed, *[None] * (returns - 1))
        # A source that ended has fewer outputs than turns, but Ray requires `returns` values.
        missing = [None] * (num_outputs - len(packed))
        result = (receipt, *packed, *missing, *extra)
        return result if len(result) > 1 else receipt

    # -- data-parallel learners -------------------------------------------------------------------------------------

    def lead(self, name: str, world_size: int) -> str:
        """Open the learner's group as its leader; return its address."""
        address: str = RESIDENTS[name].lead(world_size, ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return address

    def meet(self, name: str) -> RemoteError | None:
        """Wait until all followers have joined; return the error if that failed."""
        try:
            RESIDENTS[name].meet()
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
        return None

    def follow(self, name: str, address: str, rank: int, world_size: int) -> None:
        """Repeat the leader's work until it ends the group."""
        # The leader reports the loss of a process.
        with suppress(ActorLost):
            RESIDENTS[name].follow(address, rank, world_size)

    def set_schedule(self, name: str, values: Mapping[str, float]) -> RemoteError | None:
        """Pass scheduled values to a learner or replay; return the error if that failed."""
        try:
            RESIDENTS[name].set_schedule(values)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
        return None

    # -- checkpoints, as bytes: the driver does not open them -----------------------------------------------------

    def weights(self, name: str) -> Any:
        """Return the learner's published parameters per policy."""
        flats = tuple(flats_of(RESIDENTS[name]))
        return flats if len(flats) > 1 else flats[0]

    def kept_learner(self, name: str) -> Any:
        """Return the learner's serialized state."""
        return as_array(to_bytes(RESIDENTS[name].state()))

    def load_learner(self, name: str, kept: Any) -> tuple[Any, ...]:
        """Load a learner's state; return its version and published parameters."""
        learner = RESIDENTS[name]
        try:
            learner.load_state(from_bytes(memoryview(kept)))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error), *[None] * len(learner.published)
        return learner.version, *flats_of(learner)

    def resume_learner(self, name: str, kept: Any, version: int) -> tuple[Any, ...]:
        """Load a restarted learner's saved state, if any; resume with a version above `version`."""
        learner = RESIDENTS[name]
        try:
            if kept is not None:
                learner.load_state(from_bytes(memoryview(kept)))
            learner.resume_above(version)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error), *[None] * len(learner.published)
        return learner.version, *flats_of(learner)

    def reset_learner(self, name: str, start: LearnerSpec, *acting: Any) -> tuple[Any, ...]:
        """Let the learner continue as a new one of `start`; return its version, serialized state and parameters."""
        return self._continued(name, lambda learner: learner.reset(start.learner(acting)))

    def copy_learner(self, name: str, kept: Any) -> tuple[Any, ...]:
        """Let the learner copy another's serialized state; return what `reset_learner` returns."""
        return self._continued(name, lambda learner: learner.copy(from_bytes(memoryview(kept))))

    def _continued(self, name: str, change: Callable[[Any], object]) -> tuple[Any, ...]:
        learner = RESIDENTS[name]
        try:
            change(learner)
            kept = as_array(to_bytes(learner.state()))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error), *[None] * (1 + len(learner.published))
        return learner.version, kept, *flats_of(learner)

    def clear_replay(self, name: str) -> None:
        """Empty a replay."""
        RESIDENTS[name].clear()

    def kept_replay(self, name: str, first: int) -> tuple[Any, Any, tuple[int, int], tuple[int, int]]:
        """Return the replay's serialized state and its rows numbered `first` and up (see ReplayState)."""
        state, rows, numbers, held = replay_state(RESIDENTS[name], first)
        return as_array(state), as_array(rows), numbers, held

    def load_replay(self, name: str, state: Any, *rows: Any) -> tuple[int, int] | RemoteError:
        """Load a replay's state and rows; return the agent steps stored, and the number after its last row's number."""
        try:
            stop = load_replay(RESIDENTS[name], memoryview(state), [memoryview(part) for part in rows])
            return RESIDENTS[name].stored, stop
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)

    def begin_at(self, name: str, first_row_id: int) -> None:
        """Assign the rows of an empty replay numbers from `first_row_id` on."""
        RESIDENTS[name].begin_at(first_row_id)

    def pack(self, *payloads: Any) -> Any:
        """Serialize rows, each payload to bytes."""
        packed = tuple(as_array(pack_batch(payload)) for payload in payloads)
        return packed if len(packed) > 1 else packed[0]

    def unpack(self, kinds: Sequence[type], *packed: Any) -> Any:
        """Deserialize what `pack` returned, each as an instance of its kind."""
        payloads = tuple(unpack_batch(memoryview(part), kind) for part, kind in zip(packed, kinds, strict=True))
        return payloads if len(payloads) > 1 else payloads[0]


def flats_of(learner: Any) -> list[Any]:
    """Return a learner's published parameters per policy."""
    return [weights.flat for weights in learner.published.values()]


def as_array(data: Any) -> Any:
    """Wrap bytes as an array, which Ray transfers without copying."""
    return np.frombuffer(data, np.uint8)


def _with_payloads(items: Sequence[Any], counts: Sequence[int], payloads: Sequence[Any]) -> list[Any]:
    opened_items, start = [], 0
    for item, count in zip(items, counts, strict=True):
        opened_items.append(merge_payloads(payloads[start : start + count], keys=item) if count else item)
        start += count
    return opened_items
