"""What a worker does to a policy's rows before they leave it: the stages of the policy's plan that run here."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from marlflow.base.batch import Batch
from marlflow.base.errors import StageFailed
from marlflow.base.items import Weights
from marlflow.flow import StageTimes


class Finishing:
    """The `stages` of one policy's plan that run on a worker, in order, each on the rows of one collect.

    `published` has the weights that the worker acts with, by policy, and with which the stages compute; `scheduled` are
    its settings; `actor` is what acts with them there, from the first collect on.
    """

    def __init__(self, policy: str) -> None:
        self.policy = policy
        self.published: Mapping[str, Weights] = {policy: Weights(-1, None)}
        self.scheduled: Mapping[str, float] = {}
        self.actor: Any = None
        self.stages: Mapping[str, Callable[[Batch], Batch]] = {}

    def __call__(self, batch: Batch) -> tuple[Batch, tuple[StageTimes, ...]]:
        """`batch` through all stages, and when each ran; StageFailed names the one that raised."""
        times = []
        for name, stage in self.stages.items():
            began_s = time.time()
            began = time.perf_counter()
            try:
                batch = stage(batch)
            except Exception as error:
                path = f"{' -> '.join(self.stages)}, on the rollout workers"
                raise StageFailed(name, self.policy, path, f"{type(error).__name__}: {error}") from error
            times.append(StageTimes(began_s, began_s + time.perf_counter() - began, batch.rows))
        return batch, tuple(times)
