"""What the driver holds of learners and replays that live in actors: names, places, and what was last published.

A handle inside a stage becomes the object itself where the stage arrives: that is how one stage serves every runtime.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.items import Packed, Weights
from marlflow.flow import Outcome
from marlflow.flow.operators import OperatorRaised, emits
from marlflow.runtime.chain import Rows
from marlflow.runtime.ray.host import Raised, Ran, resident


class Handle:
    """A learner or replay that lives in an actor."""

    def __init__(self, name: str, key: str, place: RayPlace, trains_on: type | None = None) -> None:
        self.name, self.key, self.place, self.trains_on = name, key, place, trains_on
        self.published = Weights(-1, None)

    def __reduce__(self) -> tuple[Callable[[str], Any], tuple[str]]:
        return resident, (self.key,)

    def ask(self, method: str) -> Any:
        """What a method of the object returns; waits for it."""
        return ray.get(self.place.actor.ask.remote(self.key, method))


class RayPlace:
    """An actor as a place: neighbouring stages are one call to it."""

    def __init__(self, name: str, actor: Any) -> None:
        self.name, self.actor = name, actor
        self._chains = 0
        self._methods: dict[int, Any] = {}

    def __reduce__(self) -> Any:
        raise TypeError(f"{self.name} stays on the driver")

    def prepare(self, operators: Sequence[Any]) -> Callable[[Sequence[Any]], Awaitable[Outcome]]:
        """Sends the operators to the actor, once."""
        chain = self._chains
        self._chains += 1
        known = self.actor.prepare.remote(chain, list(operators))
        packs = _is_packed(emits(operators[-1]))
        publisher = next((op.learner for op in operators if getattr(op, "publishes", False)), None)
        confirmed = False

        async def call(items: Sequence[Any]) -> Outcome:
            nonlocal confirmed
            if not confirmed:  # whatever kept the operators from arriving is raised here
                await known
                confirmed = True
            returns = 1 + (len(items) if packs else 0) + (publisher is not None)
            receipt, *refs = await self._run(chain, items, returns)
            if receipt.version is not None and publisher is not None:
                publisher.published = Weights(receipt.version, refs[-1])
            outputs = receipt.outputs
            if packs:
                outputs = [Packed(rows, (ref,)) for rows, ref in zip(outputs, refs, strict=False)]
            return Outcome(outputs, receipt.times)

        return call

    async def _run(self, chain: int, items: Sequence[Any], returns: int) -> tuple[Ran, *tuple[Any, ...]]:
        payloads = [getattr(item, "payloads", ()) for item in items]
        light = [item.keys if found else item for item, found in zip(items, payloads, strict=True)]
        counts = [len(found) for found in payloads]
        flat = [payload for found in payloads for payload in found]
        made = self._method(returns).remote(chain, light, counts, returns, *flat)
        refs = made if returns > 1 else [made]
        try:
            receipt = await refs[0]
        except ray.exceptions.RayActorError as error:
            raise ActorLost(f"{self.name} died: {error}") from error
        if isinstance(receipt, Raised):
            raise OperatorRaised(receipt.position, receipt.text) from as_exception(receipt)
        return receipt, *refs[1:]

    def _method(self, returns: int) -> Any:
        if returns not in self._methods:
            self._methods[returns] = self.actor.run.options(num_returns=returns)
        return self._methods[returns]


def as_exception(carried: Raised) -> BaseException:
    """The exception that was raised over there, with its traceback as a note."""
    error = carried.error or RuntimeError(carried.text)
    error.add_note(carried.traceback)
    return error


def _is_packed(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Rows)
