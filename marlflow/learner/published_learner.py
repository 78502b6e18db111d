"""A learner as it was last published, for stages of its plan that run elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from marlflow.base.batch import Array, Transitions
from marlflow.base.items import Gradients, Weights, as_it_is
from marlflow.base.train_batch import TrainBatch
from marlflow.flow import Place
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Scheduled
from marlflow.policy.tensors import as_tensor


class Publisher(Scheduled, Protocol):
    """Knows what a learner published last."""

    @property
    def published(self) -> Mapping[str, Weights]:
        """The weights of each policy that were last published."""
        ...


class PublishedLearner:
    """All parameters as they were last published: a ValueFunction, PriorityFunction and GradientFunction; no Updates.

    `source` has what was published of the only policy of the learner called `name`; `fetch` opens it where that is a
    reference. `build` makes a learner of the same kind, once, when values are first asked for. In a plan built over it,
    stages run at `place`.
    """

    def __init__(
        self,
        name: str,
        trains_on: type,
        build: Callable[[], TorchLearner],
        source: Publisher,
        place: Place | None = None,
        fetch: Callable[[Any], Array] = as_it_is,
    ) -> None:
        self.name, self.trains_on, self.place = name, trains_on, place
        self._build, self._source, self._fetch = build, source, fetch
        self._model: TorchLearner | None = None
        self._version: int | None = None

    @property
    def scheduled(self) -> Mapping[str, float]:
        """The settings that were last scheduled, as the publisher says."""
        return self._source.scheduled

    @property
    def acting(self) -> Any:
        """The actor that acts by the published weights; AttributeError for a source that is not on a rollout worker."""
        return self._source.actor  # type: ignore[attr-defined]

    @property
    def version(self) -> int:
        """The version of the published parameters."""
        return self._published.version

    @property
    def _published(self) -> Weights:
        (weights,) = self._source.published.values()
        return weights

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        """The published critic's values of `obs` [N, ...], after `memory` [N, ...] if it is recurrent, float32 [N]."""
        return self._loaded().values(obs, memory)

    def priorities(self, rows: Transitions) -> Array:
        """The priority of each of `rows` by the published parameters, float32 [N]."""
        return self._loaded().priorities(rows)

    def gradients(self, batch: TrainBatch) -> Gradients:
        """The gradient of the loss by the published parameters."""
        return self._loaded().gradients(batch)

    def _loaded(self) -> TorchLearner:
        if self._model is None:
            self._model = self._build()
        published = self._published
        if published.version != self._version:
            self._model.parameters.flat.load(as_tensor(self._fetch(published.flat)))
            self._version = published.version
        self._model.set_schedule(self._source.scheduled)
        return self._model
