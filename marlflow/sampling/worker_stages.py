"""The stages of a policy's plan that run on rollout workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from marlflow.base.errors import StageFailed
from marlflow.batches.batch import Batch
from marlflow.batches.items import Weights
from marlflow.flow import StageTimes


class WorkerStages:
    """The `stages` of one policy's plan that run on a worker, in order, on the rows of each collect."""

    def __init__(self, policy: str) -> None:
        self.policy = policy
        # Acting weights by policy.
        self.published: Mapping[str, Weights] = {policy: Weights(-1, None)}
        self.scheduled: Mapping[str, float] = {}
        # The acting actor, from the first collect on.
        self.actor: Any = None
        self.stages: Mapping[str, Callable[[Batch], Batch]] = {}

    def __call__(self, batch: Batch) -> tuple[Batch, tuple[StageTimes, ...]]:
        """Apply all stages and time them; raises StageFailed."""
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
