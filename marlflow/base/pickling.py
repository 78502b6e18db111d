"""Fast pickling of messages and of small batches, which processes exchange in each round."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from operator import attrgetter
from typing import Any, TypeVar

T = TypeVar("T")


def pickled_by_arguments(kind: type[T]) -> type[T]:
    """Let instances of a dataclass be pickled as a call of the class with the values of its fields, in their order.

    For messages that processes exchange by the thousand: a driver reads a receipt of each worker in each round. A
    frozen dataclass with slots is otherwise pickled by a loop in Python over its fields.
    """
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    values: Callable[[Any], Any] = attrgetter(*names)

    def reduce(self: Any) -> tuple[type[T], tuple[Any, ...]]:
        arguments = values(self)
        return kind, arguments if len(names) > 1 else (arguments,)

    setattr(kind, "__reduce__", reduce)  # noqa: B010  mypy lets no method be assigned to
    return kind


def reduced_in_band(instance: Any) -> tuple[Callable[[type[T], bytes], T], tuple[type[T], bytes]]:
    """Return an `__reduce_ex__` of an instance that has `__getstate__` and `__setstate__`: its state in one `bytes`.

    Arrays are otherwise pickled out of band, so that they need not be copied, which costs some 10 us for each: more
    than to copy small ones.
    """
    return _from_state, (type(instance), pickle.dumps(instance.__getstate__(), pickle.HIGHEST_PROTOCOL))


def _from_state(kind: type[T], packed: bytes) -> T:
    instance = object.__new__(kind)
    instance.__setstate__(pickle.loads(packed))  # type: ignore[attr-defined]  # noqa: S301  inside of another pickle
    return instance
