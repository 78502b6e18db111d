"""Torch's reductions, along axes or of all numbers, in JAX; see `rows` for those over padded rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from marlflow.compiled.making import DTYPES


class ValuesAndIndices(NamedTuple):
    """The result of max, min, sort and topk along an axis."""

    values: Any
    indices: Any


def _axes(dim: Any) -> Any:
    return tuple(dim) if isinstance(dim, list | tuple) else dim


def _reduction(function: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
        result = function(x, axis=None if dim in ((), []) else _axes(dim), keepdims=keepdim)
        return result if dtype is None else result.astype(DTYPES[dtype])

    return reduce


def _extreme(values: Callable[..., Any], index: Callable[..., Any], pairwise: Callable[..., Any]) -> Callable[..., Any]:
    def extreme(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return values(x)
        if not isinstance(dim, int):
            return pairwise(x, dim)
        return ValuesAndIndices(values(x, axis=dim, keepdims=keepdim), index(x, axis=dim, keepdims=keepdim))

    return extreme


def _variance(function: Callable[..., Any]) -> Callable[..., Any]:
    def variance(
        x: Any, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *, correction: Any = None
    ) -> Any:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        ddof = correction if correction is not None else int(unbiased is None or unbiased)
        return function(x, axis=_axes(dim), ddof=ddof, keepdims=keepdim)

    return variance


def _norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=_axes(dim), keepdims=keepdim))
    return jnp.linalg.norm(x, ord, _axes(dim), keepdim)


def _sort(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    order = jnp.argsort(x, axis=dim, descending=descending)
    return ValuesAndIndices(jnp.take_along_axis(x, order, dim), order)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    return ValuesAndIndices(*(jax.lax.slice_in_dim(part, 0, k, axis=dim) for part in _sort(x, dim, largest)))


REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _reduction(jnp.sum),
    "mean": _reduction(jnp.mean),
    "prod": _reduction(jnp.prod),
    "any": _reduction(jnp.any),
    "all": _reduction(jnp.all),
    "amin": _reduction(jnp.min),
    "amax": _reduction(jnp.max),
    "max": _extreme(jnp.max, jnp.argmax, jnp.maximum),
    "min": _extreme(jnp.min, jnp.argmin, jnp.minimum),
    "argmax": lambda x, dim=None, keepdim=False: jnp.argmax(x, axis=dim, keepdims=keepdim),
    "argmin": lambda x, dim=None, keepdim=False: jnp.argmin(x, axis=dim, keepdims=keepdim),
    "var": _variance(jnp.var),
    "std": _variance(jnp.std),
    "norm": lambda x, p=2, dim=None, keepdim=False: _norm(x, 2 if p in {None, "fro"} else p, dim, keepdim),
    "linalg_vector_norm": _norm,
    "vector_norm": _norm,
    "logsumexp": lambda x, dim, keepdim=False: jax.scipy.special.logsumexp(x, _axes(dim), keepdims=keepdim),
    "cumsum": lambda x, dim: jnp.cumsum(x, dim),  # noqa: PLW0108  torch's names of arguments
    "cumprod": lambda x, dim: jnp.cumprod(x, dim),  # noqa: PLW0108  torch's names of arguments
    "count_nonzero": lambda x, dim=None: jnp.count_nonzero(x, dim),
    "sort": _sort,
    "argsort": lambda x, dim=-1, descending=False: _sort(x, dim, descending)[1],
    "topk": _topk,
}
"""By torch's names."""
