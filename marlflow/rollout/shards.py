"""The gather of a plan whose learner has a replica on every rollout worker: no row leaves the worker that made it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from marlflow.base.batch import Batch
from marlflow.base.items import Fragment
from marlflow.rollout.stages import Concat


@dataclass(slots=True)
class Shards(Concat):
    """As Concat, but each worker's rows stay its own: what it emits says whose each payload is."""

    def add(self, fragment: Fragment) -> Sequence[Batch]:
        """Keeps the fragment; the batch, if it is complete: a shard for each worker, for all replicas at once."""
        worker = str(fragment.worker)
        # Not super(): a class with slots is made twice, and the first knows nothing of the second.
        return Concat.add(self, replace(fragment, keys=(worker,) * len(fragment.payloads)))
