"""Reductions over the rows of a padded minibatch: the result that torch has for the real rows alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marlflow.compiled.shapes import root, wide


class Rows(NamedTuple):
    """Which of the M rows of a minibatch are real: `valid`, bool [M], and their number."""

    valid: Any
    count: Any

    def of(self, x: Any, dim: Any) -> Any:
        """Return a mask of the entries of `x` in real rows, broadcastable to it; None if it is not reduced over rows.

        An axis is one of rows if it has M entries; the first, too, if it has a multiple: several for each row.
        """
        if (axis := self._axis(x, dim)) is None:
            return None
        per_row = x.shape[axis] // len(self.valid)
        valid = self.valid if per_row == 1 else jnp.repeat(self.valid, per_row)
        return valid.reshape(-1, *[1] * (x.ndim - 1 - axis))

    def number_of(self, x: Any, dim: Any) -> Any:
        """Return how many real numbers of `x` one result is made of."""
        rows = self._axis(x, dim)
        assert rows is not None
        others = math.prod(x.shape[axis] for axis in _reduced(x, dim) if axis != rows)
        return self.count * (x.shape[rows] // len(self.valid) * others)

    def _axis(self, x: Any, dim: Any) -> int | None:
        padded = len(self.valid)
        if x.ndim and x.shape[0] and x.shape[0] % padded == 0:
            return 0 if 0 in _reduced(x, dim) else None
        return next((axis for axis in _reduced(x, dim) if x.shape[axis] == padded), None)


class _NoPadding(Rows):
    def of(self, x: Any, dim: Any) -> Any:
        del x, dim
        return None


NO_PADDING = _NoPadding(None, None)
"""All rows are real, so that reductions are torch's."""


def _reduced(x: Any, dim: Any) -> list[int]:
    return list(range(x.ndim)) if dim is None else sorted(axis % x.ndim for axis in _axes(dim))


def _axes(dim: Any) -> tuple[int, ...]:
    return tuple(dim) if isinstance(dim, tuple | list) else (dim,)


def _mean(rows: Rows, valid: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    total = jnp.sum(jnp.where(valid, x, 0), None if dim is None else _axes(dim), keepdims=keepdim)
    return total / rows.number_of(x, dim)


def _variance(
    rows: Rows,
    valid: Any,
    x: Any,
    dim: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    taken = correction if correction is not None else int(unbiased is None or unbiased)
    axes = None if dim is None else _axes(dim)
    number = rows.number_of(x, dim)
    mean = jnp.sum(jnp.where(valid, x, 0), axes, keepdims=True) / number
    return jnp.sum(jnp.where(valid, jnp.square(x - mean), 0), axes, keepdims=keepdim) / (number - taken)


def _filled(neutral: Any, reduce: Callable[..., Any]) -> Callable[..., Any]:
    def reduced(_: Rows, valid: Any, x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        axes = None if dim is None else _axes(dim)
        return reduce(jnp.where(valid, x, jnp.asarray(neutral, x.dtype)), axis=axes, keepdims=keepdim)

    return reduced


def _standard_deviation(*args: Any, **named: Any) -> Any:
    return root(_variance(*args, **named))


def _dot(_: Rows, valid: Any, x: Any, y: Any) -> Any:
    return jnp.sum(jnp.where(valid, x * y, 0))


def _norm(_: Rows, valid: Any, x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, p: Any = 2) -> Any:
    if ord not in {2, "fro", None} or p not in {2, "fro", None}:
        raise NotImplementedError("a norm over rows that is not the Euclidean one")
    axes = None if dim is None else _axes(dim)
    return root(jnp.sum(jnp.where(valid, jnp.square(x), 0), axes, keepdims=keepdim))


REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "mean": _mean,
    "var": _variance,
    "std": _standard_deviation,
    "sum": _filled(0, wide(jnp.sum)),
    "prod": _filled(1, wide(jnp.prod)),
    "any": _filled(False, jnp.any),
    "all": _filled(True, jnp.all),
    "amax": _filled(-jnp.inf, jnp.max),
    "amin": _filled(jnp.inf, jnp.min),
    "logsumexp": _filled(-jnp.inf, lambda x, axis, keepdims: jax.scipy.special.logsumexp(x, axis, keepdims=keepdims)),
    "dot": _dot,
    "norm": _norm,
    "linalg_vector_norm": _norm,
    "vector_norm": _norm,
}
"""Reductions of torch that are computed here where they are over rows."""

_UNKNOWN = frozenset(
    ["max", "min", "argmax", "argmin", "median", "cumsum", "cumprod", "sort", "argsort", "topk", "count_nonzero"]
)
"""Reductions that are refused over rows; `max` and `min` are refused only along a dimension."""


def over_rows(rows: Rows, name: str, values: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
    """Return the result of a reduction over rows, or None if it is none."""
    if not values or not hasattr(values[0], "ndim") or name not in REDUCTIONS.keys() | _UNKNOWN:
        return None
    dim = named.get("dim", named.get("axis"))
    position = 2 if name in {"norm", "linalg_vector_norm", "vector_norm"} else 1
    if dim is None and len(values) > position and name != "dot" and not isinstance(values[position], bool):
        dim = values[position]
    if dim is not None and not isinstance(dim, int | tuple | list):
        return None  # the pairwise maximum of two tensors
    if dim in ((), []):
        dim = None
    if (valid := rows.of(values[0], dim)) is None:
        return None
    if name in {"max", "min"} and dim is None:
        name = f"a{name}"
    if name not in REDUCTIONS:
        raise NotImplementedError(f"{name}() over the rows of a minibatch")
    return REDUCTIONS[name](rows, valid, *values, **named)
