"""A read-only learner with published parameters, for stages in other processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from marlflow.base.arrays import Array
from marlflow.batches.batch import TrainBatch, Transitions
from marlflow.batches.critic_input import CriticInput
from marlflow.batches.items import Gradients, Weights, as_it_is
from marlflow.flow import Place
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Scheduled
from marlflow.policy.tensors import as_tensor


class Publisher(Scheduled, Protocol):
    """Has a learner's last published weights."""

    @property
    def published(self) -> Mapping[str, Weights]:
        """The last published weights, by policy."""
        ...


class PublishedLearner:
    """Computes values, priorities and gradients with a learner's last published parameters.

    `source` has the weights of the learner's only policy; `fetch` resolves them if they are a remote reference. `build`
    makes a learner of the same kind, at the first use.
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
        self.name = name
        self.trains_on = trains_on
        self.place = place
        # Stages that update the learner are never relocated.
        self.loss_groups: Mapping[str, type] = {}
        # Only learners of joint rows need seats, and their stages are never relocated.
        self.seats: Mapping[str, tuple[int, ...]] = {}
        self._build = build
        self._source = source
        self._fetch = fetch
        self._learner: TorchLearner | None = None
        self._version: int | None = None

    @property
    def scheduled(self) -> Mapping[str, float]:
        return self._source.scheduled

    @property
    def acting(self) -> Any:
        """The actor with the published weights; AttributeError for a source that is not on a rollout worker."""
        return self._source.actor  # type: ignore[attr-defined]

    @property
    def version(self) -> int:
        return self._published.version

    @property
    def _published(self) -> Weights:
        # Unpacking fails for a learner of several policies, which cannot be published this way.
        (weights,) = self._source.published.values()
        return weights

    @property
    def critic_input(self) -> CriticInput | None:
        return self._loaded().critic_input

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return self._loaded().values(obs, memory)

    def priorities(self, rows: Transitions) -> Array:
        return self._loaded().priorities(rows)

    def gradients(self, batch: TrainBatch) -> Gradients:
        """Return the gradient of the loss over all rows, which the learner applies."""
        return self._loaded().gradients(batch)

    def _loaded(self) -> TorchLearner:
        # Built at the first use, because a plan may never compute anything here.
        if self._learner is None:
            self._learner = self._build()
        published = self._published
        if published.version != self._version:
            self._learner.parameters.flat.load(as_tensor(self._fetch(published.flat)))
            self._version = published.version
        self._learner.set_schedule(self._source.scheduled)
        return self._learner
