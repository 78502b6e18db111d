"""What stands for a learner where stages of its plan run elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from marlflow.base.batch import Array
from marlflow.base.items import Weights, as_it_is
from marlflow.flow import Place
from marlflow.learn.learner import TorchLearner
from marlflow.policy.tensors import as_tensor


class Publisher(Protocol):
    """Knows what a learner published last."""

    published: Weights


class PublishedLearner:
    """A learner as it was last published, all parameters: it values, and cannot learn.

    `source` has what was published; `fetch` opens it where that is a reference. `build` makes a learner of the same
    kind, once, when values are first asked for. In a plan built over it, stages run at `place`.
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
        self._loaded: int | None = None

    @property
    def version(self) -> int:
        """That of the parameters by which it values."""
        return self._source.published.version

    def values(self, obs: Array) -> Array:
        """The published critic's values of `obs` [N, ...], float32 [N]."""
        if self._model is None:
            self._model = self._build()
        published = self._source.published
        if published.version != self._loaded:
            self._model.flat.load(as_tensor(self._fetch(published.flat)))
            self._loaded = published.version
        return self._model.values(obs)
