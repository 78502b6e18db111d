"""Progress of long work: code that works reports how far it is, and a command may listen and show it.

Nothing listens by default, so that training and calls from Python print nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

T = TypeVar("T")

Listener: TypeAlias = Callable[[str, int, int | None], None]
"""Takes what is being done, how much of it is done, and of how much; None where that is not known."""

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def progress(doing: str, done: int = 0, total: int | None = None) -> None:
    """Report progress, `playing episodes` 3 of 20 say; `total` is None where it is not known."""
    if (listener := _listener.get()) is not None:
        listener(doing, done, total)


def tracked(doing: str, items: Sequence[T]) -> Iterator[T]:
    """Yield `items`, and report how many are done before each and at the end."""
    for done, item in enumerate(items):
        progress(doing, done, len(items))
        yield item
    progress(doing, len(items), len(items))


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Call `listener` with all progress that is reported in the context, by this thread or asyncio task."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
