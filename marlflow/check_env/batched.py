"""Compares environments that are stepped by one call with the same ones stepped one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.info_columns import InfoColumn, InfoColumns
from marlflow.batches.batch import Batch
from marlflow.check_env.outcome import BATCHED_TEST, TestOutcome
from marlflow.check_env.play import random_actor
from marlflow.check_env.seats import Seats
from marlflow.env.batched.versions import BatchedMaker
from marlflow.sampling import Receipt, RolloutWorker, SamplerConfig
from marlflow.sampling.watchdog import Watchdog

_NUM_ENVS = 3
# Fragments of several lengths, so that episodes are cut at many places.
_TICKS = (1, 6, 40, 3, 100)


def compare_batched(
    make_env: Callable[[], Any],
    make_batched: BatchedMaker | None,
    seats: Seats,
    seed: int,
    step_timeout_s: float | None,
) -> tuple[TestOutcome, ...]:
    """Collect random rows of the same episodes by both, and compare all of them, number for number.

    Returns nothing if there is no batched version.
    """
    if make_batched is None:
        return ()
    if not seats.reproducible:
        why = 'its metadata["reproducible"] is False: an episode in a batch is another one than alone'
        return (TestOutcome(BATCHED_TEST, "left out", why),)
    actors = {policy: partial(random_actor, spaces) for policy, spaces in seats.spaces.items()}
    workers: list[RolloutWorker] = []
    try:
        # In infos of AEC environments, no sum can be read.
        keys = make_batched.info_keys() if seats.parallel else ()
        columns = InfoColumns(tuple(InfoColumn(key, key, policies=frozenset(actors)) for key in keys))
        for make in (make_batched, None):
            config = SamplerConfig(make_env, range(_NUM_ENVS), seats.mapping, seed, make_batched=make, columns=columns)
            workers.append(RolloutWorker(config, actors, Watchdog(step_timeout_s)))
        for ticks in _TICKS:
            (receipt, batches), (single_receipt, single_batches) = (worker.collect(ticks) for worker in workers)
            if (found := _difference(batches, single_batches) or _of_results(receipt, single_receipt)) is not None:
                return (TestOutcome(BATCHED_TEST, "failed", f"{found} from the same episode stepped alone"),)
    except MarlflowError as error:
        return (TestOutcome(BATCHED_TEST, "failed", str(error)),)
    finally:
        for worker in workers:
            worker.close()
    return (TestOutcome(BATCHED_TEST, "passed"),)


def _difference(batches: Mapping[str, Batch], others: Mapping[str, Batch]) -> str | None:
    for policy, batch in batches.items():
        other = others[policy]
        # The segments' table first: rows can be compared only if they are of the same steps.
        for name, column in {**batch.segments, **batch.columns}.items():
            expected = {**other.segments, **other.columns}[name]
            if (row := _first_difference(column, expected)) is not None:
                return f"{name} of {policy!r} differs in row {row}"
    return None


def _of_results(receipt: Receipt, other: Receipt) -> str | None:
    pairs = zip(receipt.episodes, other.episodes, strict=False)
    differing = next((ours.env for ours, theirs in pairs if ours != theirs), None)
    if differing is None and len(receipt.episodes) == len(other.episodes):
        return None
    return f"the result of an episode differs (env {differing})"


def _first_difference(column: Array, other: Array) -> int | None:
    if column.shape != other.shape or column.dtype != other.dtype:
        return 0
    differs = (column != other).reshape(len(column), -1).any(axis=1) if len(column) else np.zeros(0, bool)
    return int(differs.argmax()) if differs.any() else None
