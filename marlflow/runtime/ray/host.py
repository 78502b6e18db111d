"""An actor that hosts learners and replays, and runs stages beside them."""

from __future__ import annotations

import gc
import pickle
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from marlflow.flow import StageTimes
from marlflow.flow.operators import OperatorRaised
from marlflow.runtime.chain import Rows, opened, run_chain

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


class Host:
    """Hosts named residents; runs chains of stages that were made known to it once."""

    def __init__(self, builders: dict[str, Callable[[], Any]], threads: int) -> None:
        torch.set_num_threads(threads)
        self._chains: dict[int, Sequence[Any]] = {}
        self._publishers: dict[int, Any] = {}
        for name, build in builders.items():
            RESIDENTS[name] = build()
        gc.freeze()  # what is here now stays: no collection has to look at it again

    def ready(self) -> bool:
        """Answers once everything is built."""
        return True

    def prepare(self, chain: int, operators: Sequence[Any]) -> bool:
        """Keeps the operators under a number."""
        self._chains[chain] = operators
        publishers = [operator.learner for operator in operators if getattr(operator, "publishes", False)]
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
        published = publisher.published if publisher is not None and publisher.version != version else None
        receipt = Ran(light, times, published.version if published else None)
        extra = [] if publisher is None else [published.flat if published else None]
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

    def weights(self, name: str) -> Any:
        """The acting parameters of the learner called `name`."""
        return RESIDENTS[name].published.flat

    def ask(self, name: str, method: str) -> Any:
        """What a resident's method returns."""
        return getattr(RESIDENTS[name], method)()


def _opened(items: Sequence[Any], counts: Sequence[int], payloads: Sequence[Any]) -> list[Any]:
    taken, start = [], 0
    for item, count in zip(items, counts, strict=True):
        taken.append(opened(payloads[start : start + count], keys=item) if count else item)
        start += count
    return taken
