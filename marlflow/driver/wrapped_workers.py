"""The base class of workers that change what other workers do."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from marlflow.sampling.protocol import Assign, EvaluationRequest, Request, Round, Workers
from marlflow.sampling.receipts import Evaluated

T = TypeVar("T")


class WrappedWorkers:
    """Workers that pass each call on to `workers`; subclasses override what they change, or `_call` for all calls."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers

    async def _call(self, call: Awaitable[T]) -> T:
        """Return the result of a call of the wrapped workers."""
        return await call

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        return await self._call(self._workers.collect(request, assign))

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        return await self._call(self._workers.collect_next(request, assign))

    @property
    def under_way(self) -> int:
        return self._workers.under_way

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        return await self._call(self._workers.evaluate(request))
