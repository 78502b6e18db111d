"""Runs consecutive stages at their place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from marlflow.base.batch import Batch
from marlflow.base.items import Gradients
from marlflow.base.joint import JointBatches
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import StageTimes
from marlflow.flow.meters import rows_of
from marlflow.flow.protocols import EndOfFlow, OperatorRaised
from marlflow.learner.gradients import mean_gradients

Rows: TypeAlias = TrainBatch | Gradients
"""Outputs that leave a place packed, so that the driver does not open them."""


def merge_payloads(payloads: Sequence[Any], keys: Sequence[str] = ()) -> Any:
    """Merge payloads (concatenate batches, average gradients), separately for each of `keys`."""
    if keys:
        keyed = list(zip(keys, payloads, strict=True))
        return JointBatches(
            (key, merge_payloads([payload for owner, payload in keyed if owner == key])) for key in dict.fromkeys(keys)
        )
    if len(payloads) == 1:
        return payloads[0]
    return mean_gradients(payloads) if isinstance(payloads[0], Gradients) else Batch.concat(payloads)


def run_chain(calls: Sequence[Callable[[Any], Any]], items: Sequence[Any]) -> tuple[list[Any], list[StageTimes]]:
    """Apply all calls to each item; the item None is a call of a source.

    Returns the outputs (fewer if the source ends) and the times of each call. Raises OperatorRaised if one fails.
    """
    began = time.time()
    outputs: list[Any] = []
    spent, rows = [0.0] * len(calls), [0] * len(calls)
    for item in items:
        value = item
        for position, call in enumerate(calls):
            start = time.perf_counter()
            try:
                value = call(value)
            except (EndOfFlow, StopIteration) as end:
                if item is None and position == 0:
                    return outputs, _times(began, spent, rows)
                # Only a source may end its flow.
                raise OperatorRaised(position, "it ended a flow that it does not begin") from end
            except Exception as error:
                raise OperatorRaised(position, f"{type(error).__name__}: {error}") from error
            spent[position] += time.perf_counter() - start
            rows[position] += rows_of(value)
        outputs.append(value)
    return outputs, _times(began, spent, rows)


def _times(began_s: float, spent_s: Sequence[float], rows: Sequence[int]) -> list[StageTimes]:
    # Calls alternate item by item; report them as if each had handled all items at once, one call after the other.
    start_s = began_s
    times: list[StageTimes] = []
    for seconds, count in zip(spent_s, rows, strict=True):
        times.append(StageTimes(start_s, start_s + seconds, count))
        start_s += seconds
    return times
