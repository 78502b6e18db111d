"""Coroutines that are begun at once, so that one that never waits costs no turn of the event loop.

Python 3.12 has this as eager tasks.
"""

from __future__ import annotations

import types
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any, TypeVar

T = TypeVar("T")


def begun(coroutine: Coroutine[Any, Any, T]) -> T | Awaitable[T]:
    """Run a coroutine until it waits; return its result, or an awaitable for the rest. Its exceptions pass through.

    Call it in a running event loop, if the coroutine may wait. There is no current task until then, so it must not
    begin with what needs one, such as `asyncio.timeout`.

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
    """Await, for a coroutine that was started, everything it waits for, and send it the results."""
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
