"""Types of torch in JAX, and its functions that convert and make tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

# float64 and int64 do not exist in JAX's usual mode; results computed with them are compared with autograd's.
DTYPES: Mapping[torch.dtype, Any] = {
    torch.float32: jnp.float32,
    torch.float64: jnp.float32,
    torch.float16: jnp.float16,
    torch.bfloat16: jnp.bfloat16,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.int16: jnp.int16,
    torch.int8: jnp.int8,
    torch.uint8: jnp.uint8,
    torch.bool: jnp.bool_,
}


def sizes_of(sizes: Sequence[Any]) -> tuple[int, ...]:
    """Return sizes that torch takes one by one or as one sequence."""
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)


def _cast(x: Any, *wanted: Any, **named: Any) -> Any:
    for one in (*wanted, *named.values()):
        if isinstance(one, torch.dtype):
            return x.astype(DTYPES[one])
        if isinstance(one, jax.Array):
            return x.astype(one.dtype)
    return x


def _filled(value: Any) -> Callable[..., Any]:
    def fill(*sizes: Any, dtype: torch.dtype | None = None, size: Any = None, **_: Any) -> Any:
        return jnp.full(tuple(size) if size is not None else sizes_of(sizes), value, DTYPES[dtype or torch.float32])

    return fill


def _filled_like(value: Any) -> Callable[..., Any]:
    def fill(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return jnp.full(x.shape, value, x.dtype if dtype is None else DTYPES[dtype])

    return fill


def _new_filled(value: Any) -> Callable[..., Any]:
    def fill(x: Any, *sizes: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return jnp.full(sizes_of(sizes), value, x.dtype if dtype is None else DTYPES[dtype])

    return fill


def _full(size: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.full(tuple(size), fill_value, None if dtype is None else DTYPES[dtype])


def _full_like(x: Any, fill_value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.full(x.shape, fill_value, x.dtype if dtype is None else DTYPES[dtype])


def _tensor(data: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    made = jnp.asarray(data)
    return made if dtype is None else made.astype(DTYPES[dtype])


def _arange(start: Any, end: Any = None, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    first, stop = (0, start) if end is None else (start, end)
    made = jnp.arange(first, stop, step)
    return made if dtype is None else made.astype(DTYPES[dtype])


def _eye(n: int, m: int | None = None, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return jnp.eye(n, m, dtype=jnp.float32 if dtype is None else DTYPES[dtype])


def _linspace(start: Any, end: Any, steps: int, **_: Any) -> Any:
    return jnp.linspace(start, end, steps, dtype=jnp.float32)


MAKING: Mapping[str, Callable[..., Any]] = {
    "to": _cast,
    "type_as": lambda x, other: x.astype(other.dtype),
    "float": lambda x, **_: x.astype(jnp.float32),
    "double": lambda x, **_: x.astype(jnp.float32),
    "long": lambda x, **_: x.astype(jnp.int32),
    "int": lambda x, **_: x.astype(jnp.int32),
    "bool": lambda x, **_: x.astype(jnp.bool_),
    "copy": lambda x, source: jnp.broadcast_to(source, x.shape).astype(x.dtype),
    "fill": lambda x, value: jnp.full(x.shape, value, x.dtype),
    "zero": lambda x: jnp.zeros(x.shape, x.dtype),
    "zeros": _filled(0),
    "ones": _filled(1),
    "zeros_like": _filled_like(0),
    "ones_like": _filled_like(1),
    "full": _full,
    "full_like": _full_like,
    "new_zeros": _new_filled(0),
    "new_ones": _new_filled(1),
    "new_full": lambda x, size, fill_value, *, dtype=None, **_: jnp.full(
        tuple(size), fill_value, x.dtype if dtype is None else DTYPES[dtype]
    ),
    "tensor": _tensor,
    "as_tensor": _tensor,
    "scalar_tensor": _tensor,
    "arange": _arange,
    "eye": _eye,
    "linspace": _linspace,
}
"""By torch's names."""
