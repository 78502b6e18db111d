"""An actor that hosts learners and replays, and runs stages beside them."""

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

from marlflow.base.errors import ActorLost
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.flow import StageCall, StageTimes
from marlflow.flow.operators import OperatorRaised
from marlflow.runtime.checkpoint_files import load_replay, replay_state
from marlflow.runtime.packing import pack_batch, unpack_batch
from marlflow.runtime.stage_chain import Rows, merge_payloads, run_chain

RESIDENTS: dict[str, Any] = {}
"""What this process hosts, by name. Handles find their object here when they arrive in a stage."""


def resident(name: str) -> Any:
    """The object called `name` in this process."""
    return RESIDENTS[name]


@dataclass(frozen=True, slots=True)
class Ran:
    """What came of a call, without rows.

    Outputs (or how many rows they have, where they stayed packed), the times of each stage, and the version if one was
    published.
    """

    outputs: Sequence[Any]
    times: Sequence[StageTimes]
    version: int | None


@dataclass(frozen=True, slots=True)
class Raised:
    """An operator's exception, carried over instead of raised, so that its own traceback is what the user sees."""

    position: int
    error: BaseException | None
    text: str
    traceback: str


def raised(error: BaseException, position: int = 0) -> Raised:
    """`error` in a form that surely crosses processes."""
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301  our own, a moment ago: does it survive the way?
    except Exception:  # noqa: BLE001  then its text has to do
        return Raised(position, None, f"{type(error).__name__}: {error}", text)
    return Raised(position, error, f"{type(error).__name__}: {error}", text)


def as_exception(carried: Raised) -> BaseException:
    """The exception that was raised over there, with its traceback as a note."""
    error = carried.error or RuntimeError(carried.text)
    error.add_note(carried.traceback)
    return error


def refuse_debuggers() -> None:
    """From here on `breakpoint()` and `pdb.set_trace()` in this process raise: it has no terminal.

    Ray's own hook would pass over them without a word, or wait for somebody to connect.
    """
    setattr(sys, "breakpointhook", _no_terminal)  # noqa: B010  mypy lets no function be assigned to
    setattr(pdb, "set_trace", _no_terminal)  # noqa: B010


def _no_terminal(*_arguments: Any, **_options: Any) -> None:
    raise RuntimeError("breakpoint() needs a terminal, and processes of Ray have none: run with runtime=inline")


class Host:
    """Hosts named residents; runs chains of stages that were made known to it once."""

    def __init__(self, builders: dict[str, Callable[[], Any]], threads: int) -> None:
        torch.set_num_threads(threads)
        refuse_debuggers()
        self._builders = builders
        self._chains: dict[int, Sequence[StageCall]] = {}
        self._publishers: dict[int, Any] = {}

    def ready(self) -> Raised | None:
        """Builds all residents, once; what went wrong, if anything did."""
        try:
            while self._builders:
                name, build = next(iter(self._builders.items()))
                RESIDENTS[name] = build()
                del self._builders[name]
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)
        gc.freeze()  # what is here now stays: no collection has to look at it again
        return None

    def prepare(self, chain: int, calls: Sequence[StageCall]) -> bool:
        """Keeps the calls of stages under a number."""
        self._chains[chain] = calls
        publishers = [call.at for call in calls if call.traits.publishes]
        self._publishers[chain] = publishers[0] if publishers else None
        return True

    def run(self, chain: int, items: Sequence[Any], counts: Sequence[int], returns: int, *payloads: Any) -> Any:
        """Runs a chain on items; item i comes packed in `counts[i]` payloads, or, if that is 0, as it is.

        Of a packed item `items` has the keys, which say whose each payload is, if it has any. Returns a receipt, then
        packed outputs, then the weights if any were published.
        """
        publisher = self._publishers[chain]
        version = publisher.version if publisher is not None else None
        try:
            outputs, times = run_chain(self._chains[chain], _opened(items, counts, payloads))
        except OperatorRaised as error:
            failed = raised(error.__cause__ or error, error.position)
            return failed if returns == 1 else (failed, *[None] * (returns - 1))
        packed = [output for output in outputs if isinstance(output, Rows)]
        light = [output.rows if isinstance(output, Rows) else output for output in outputs]
        published = publisher is not None and publisher.version != version
        receipt = Ran(light, times, publisher.version if published else None)
        extra = [] if publisher is None else flats_of(publisher) if published else [None] * len(publisher.published)
        announced = returns - 1 - len(extra)
        if len(packed) != (len(outputs) if announced else 0):
            wrong = TypeError(
                "the last stage in a place returns rows if and only if its annotation says so: `-> Batch`"
            )
            failed = raised(wrong, len(times) - 1)
            return failed if returns == 1 else (failed, *[None] * (returns - 1))
        missing = [None] * (announced - len(packed))  # of turns that the source had no more items for
        result = (receipt, *packed, *missing, *extra)
        return result if len(result) > 1 else receipt

    # -- a learner that is a group of processes ---------------------------------------------------------------------

    def lead(self, name: str, world_size: int) -> str:
        """Where the others may follow the learner called `name`."""
        address: str = RESIDENTS[name].lead(world_size, ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]
        return address

    def meet(self, name: str) -> Raised | None:
        """Waits for those who follow; what went wrong, if anything did."""
        try:
            RESIDENTS[name].meet()
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)
        return None

    def follow(self, name: str, address: str, rank: int, world_size: int) -> None:
        """Does as the leader does for as long as that lives."""
        with suppress(ActorLost):  # the leader, who lost one of the others, says so
            RESIDENTS[name].follow(address, rank, world_size)

    def set_schedule(self, name: str, values: Mapping[str, float]) -> Raised | None:
        """Tells the learner or replay called `name` what is scheduled now; what went wrong, if anything did."""
        try:
            RESIDENTS[name].set_schedule(values)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)
        return None

    # -- what is kept, as bytes: the driver opens none of it ------------------------------------------------------

    def weights(self, name: str) -> Any:
        """What the learner called `name` published last: the parameters of each policy."""
        flats = tuple(flats_of(RESIDENTS[name]))
        return flats if len(flats) > 1 else flats[0]

    def kept_learner(self, name: str) -> Any:
        """A learner, as bytes."""
        return _carried(to_bytes(RESIDENTS[name].state()))

    def load_learner(self, name: str, kept: Any) -> tuple[Any, ...]:
        """Goes on from what was kept; its version, and the parameters of each policy that it published last."""
        learner = RESIDENTS[name]
        try:
            learner.load_state(from_bytes(memoryview(kept)))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error), *[None] * len(learner.published)
        return learner.version, *flats_of(learner)

    def take_up(self, name: str, kept: Any, version: int) -> tuple[Any, ...]:
        """A lost learner's successor goes on from what was kept, if anything, under a version above `version`."""
        learner = RESIDENTS[name]
        try:
            if kept is not None:
                learner.load_state(from_bytes(memoryview(kept)))
            learner.resume_above(version)
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error), *[None] * len(learner.published)
        return learner.version, *flats_of(learner)

    def kept_replay(self, name: str, first: int) -> tuple[Any, Any, tuple[int, int], tuple[int, int]]:
        """A replay, as bytes, and its rows numbered `first` and up: see ReplayState."""
        state, rows, numbers, held = replay_state(RESIDENTS[name], first)
        return _carried(state), _carried(rows), numbers, held

    def load_replay(self, name: str, state: Any, *rows: Any) -> tuple[int, int] | Raised:
        """Fills a replay; the numbers of the rows that it then holds."""
        try:
            return load_replay(RESIDENTS[name], memoryview(state), [memoryview(part) for part in rows])
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return raised(error)

    def begin_at(self, name: str, first_row_id: int) -> None:
        """A lost replay's successor is empty, and numbers its rows from here."""
        RESIDENTS[name].begin_at(first_row_id)

    def pack(self, *payloads: Any) -> Any:
        """Rows that wait on the driver, each as bytes."""
        packed = tuple(_carried(pack_batch(payload)) for payload in payloads)
        return packed if len(packed) > 1 else packed[0]

    def unpack(self, *packed: Any) -> Any:
        """What `pack` was given."""
        payloads = tuple(unpack_batch(memoryview(part)) for part in packed)
        return payloads if len(payloads) > 1 else payloads[0]


def flats_of(learner: Any) -> list[Any]:
    """The parameters of each of a learner's policies that it published last."""
    return [weights.flat for weights in learner.published.values()]


def _carried(data: bytes) -> Any:
    """As an array, which Ray neither copies nor pickles on its way."""
    return np.frombuffer(data, np.uint8)


def _opened(items: Sequence[Any], counts: Sequence[int], payloads: Sequence[Any]) -> list[Any]:
    taken, start = [], 0
    for item, count in zip(items, counts, strict=True):
        taken.append(merge_payloads(payloads[start : start + count], keys=item) if count else item)
        start += count
    return taken
