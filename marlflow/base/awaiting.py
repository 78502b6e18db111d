"""Start coroutines eagerly, as `asyncio.eager_task_factory` of Python 3.12 does."""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begun(coroutine: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run a coroutine until it waits; return its result, or an awaitable for the rest.

    Exceptions pass through. The coroutine must not begin with a call that needs a current task, such as
    `asyncio.timeout`.

    >>> async def three() -> int:
    ...     return 3
    >>> begun(three())
    3
    """
    try:
        waits_for = coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    return _awaited(coroutine, waits_for)


async def _awaited(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> T:
    return await _rest(coroutine, waits_for)


@types.coroutine
def _rest(coroutine: Coroutine[Any, Any, T], waits_for: Any) -> Generator[Any, Any, T]:
    # Continues after the first value, which `begun` already received by its send(None).
    try:
        while True:
            try:
                sent = yield waits_for
            except BaseException as error:  # noqa: BLE001  the coroutine raises it again, or deals with it
                waits_for = coroutine.throw(error)
            else:
                waits_for = coroutine.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result
