"""Torch's functions that move numbers: shapes, parts and indices, in JAX."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

from marlflow.compiled.making import DTYPES, sizes_of

_FEW = 64
"""The longest axis along which one number of each row is chosen by a masked sum, which is quicker than a gather."""


def _flatten(x: Any, start_dim: int = 0, end_dim: int = -1) -> Any:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start_dim % x.ndim, end_dim % x.ndim
    return x.reshape(*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :])


def _unflatten(x: Any, dim: int, sizes: Sequence[int]) -> Any:
    dim %= x.ndim
    known = list(sizes)
    if -1 in known:
        known[known.index(-1)] = x.shape[dim] // -math.prod(known)
    return x.reshape(*x.shape[:dim], *known, *x.shape[dim + 1 :])


def _view(x: Any, *sizes: Any) -> Any:
    if not isinstance(sizes[0], torch.dtype):
        return x.reshape(sizes_of(sizes))
    # The same bytes as another dtype. JAX puts the parts of one number on an axis of their own, torch on the last one.
    wanted = jnp.dtype(DTYPES[sizes[0]])
    if wanted.itemsize > x.dtype.itemsize:
        x = x.reshape(*x.shape[:-1], -1, wanted.itemsize // x.dtype.itemsize)
    made = jax.lax.bitcast_convert_type(x, wanted)
    return made.reshape(*x.shape[:-1], -1) if made.ndim > x.ndim else made


def _expand(x: Any, *sizes: Any) -> Any:
    wanted = sizes_of(sizes)
    shape = (1,) * (len(wanted) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(old if new == -1 else new for old, new in zip(shape, wanted, strict=True)))


def _squeeze(x: Any, dim: Any = None) -> Any:
    if dim is None:
        return jnp.squeeze(x)
    dims = dim if isinstance(dim, tuple | list) else (dim,)
    return jnp.squeeze(x, tuple(one % x.ndim for one in dims if x.shape[one] == 1))


def _split(x: Any, sizes: Any, dim: int = 0) -> tuple[Any, ...]:
    bounds = list(range(sizes, x.shape[dim], sizes)) if isinstance(sizes, int) else list(np.cumsum(sizes)[:-1])
    return tuple(jnp.split(x, bounds, dim))


def _chunk(x: Any, chunks: int, dim: int = 0) -> tuple[Any, ...]:
    return _split(x, -(-x.shape[dim] // chunks), dim)


def _unbind(x: Any, dim: int = 0) -> tuple[Any, ...]:
    return tuple(jax.lax.index_in_dim(x, index, dim, keepdims=False) for index in range(x.shape[dim]))


def _gather(x: Any, dim: int, index: Any) -> Any:
    last = dim % x.ndim == x.ndim - 1
    if last and index.shape[-1] == 1 and x.shape[-1] <= _FEW:
        chosen = index == jnp.arange(x.shape[-1])
        return jnp.sum(jnp.where(chosen, x, jnp.zeros((), x.dtype)), -1, keepdims=True)
    # torch's index may be shorter than the tensor along other axes.
    cut = tuple(slice(None) if axis == dim % x.ndim else slice(0, size) for axis, size in enumerate(index.shape))
    return jnp.take_along_axis(x[cut], index, dim)


def _scatter(x: Any, dim: int, index: Any, src: Any, adds: bool) -> Any:
    places = list(jnp.meshgrid(*(jnp.arange(size) for size in index.shape), indexing="ij"))
    places[dim] = index
    at = x.at[tuple(places)]
    values = src if jnp.ndim(src) == 0 else src[tuple(slice(0, size) for size in index.shape)]
    return at.add(values) if adds else at.set(values)


def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    if mode != "constant":
        raise NotImplementedError(f"padding by {mode!r}")
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    return jnp.pad(x, widths, constant_values=0 if value is None else value)


def _get_item(x: Any, index: Any) -> Any:
    return x[_index(index)]


def _index(index: Any) -> Any:
    """Return an index as JAX takes it; raises NotImplementedError for truth values."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if getattr(index, "dtype", None) == jnp.bool_:
        raise NotImplementedError("an index of truth values, whose result has a shape that depends on data")
    if getattr(index, "dtype", None) == jnp.uint8:
        raise NotImplementedError("an index of bytes, which torch takes for truth values")
    return jnp.asarray(index) if isinstance(index, list) else index


def _set_item(x: Any, index: Any, value: Any) -> Any:
    return x.at[_index(index)].set(value)


def _repeat(x: Any, *repeats: Any) -> Any:
    counts = sizes_of(repeats)
    return jnp.tile(x.reshape((1,) * (len(counts) - x.ndim) + x.shape), counts)


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    return jnp.swapaxes(x, dim0, dim1)


SHAPES: Mapping[str, Callable[..., Any]] = {
    "reshape": lambda x, *sizes: x.reshape(sizes_of(sizes)),
    "view": _view,
    "view_as": lambda x, other: x.reshape(other.shape),
    "reshape_as": lambda x, other: x.reshape(other.shape),
    "flatten": _flatten,
    "ravel": jnp.ravel,
    "unflatten": _unflatten,
    "unsqueeze": jnp.expand_dims,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "swapaxes": _transpose,
    "t": lambda x: x.T,
    "T": lambda x: x.T,
    "mT": lambda x: jnp.swapaxes(x, -1, -2),
    "permute": lambda x, *dims: jnp.transpose(x, sizes_of(dims)),
    "movedim": jnp.moveaxis,
    "expand": _expand,
    "expand_as": lambda x, other: _expand(x, other.shape),
    "broadcast_to": lambda x, size: _expand(x, size),  # noqa: PLW0108  torch's names of arguments
    "repeat": _repeat,
    "tile": _repeat,
    "repeat_interleave": lambda x, repeats, dim=None: jnp.repeat(x, repeats, axis=dim),
    "cat": lambda tensors, dim=0, *, axis=None: jnp.concatenate(tensors, dim if axis is None else axis),
    "concat": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "concatenate": lambda tensors, dim=0: jnp.concatenate(tensors, dim),
    "stack": lambda tensors, dim=0: jnp.stack(tensors, dim),
    "split": _split,
    "split_with_sizes": _split,
    "chunk": _chunk,
    "unbind": _unbind,
    "select": lambda x, dim, index: jax.lax.index_in_dim(x, index, dim, keepdims=False),
    "narrow": lambda x, dim, start, length: jax.lax.slice_in_dim(x, start, start + length, axis=dim),
    "index_select": lambda x, dim, index: jnp.take(x, index, axis=dim),
    "gather": _gather,
    "take_along_dim": lambda x, indices, dim: jnp.take_along_axis(x, indices, dim),  # noqa: PLW0108  torch's names of arguments
    "scatter": lambda x, dim, index, src=None, value=None: _scatter(
        x, dim, index, value if src is None else src, False
    ),
    "scatter_add": lambda x, dim, index, src: _scatter(x, dim, index, src, True),
    "flip": lambda x, *dims: jnp.flip(x, sizes_of(dims)),
    "roll": lambda x, shifts, dims=None: jnp.roll(x, shifts, dims),
    "tril": jnp.tril,
    "triu": jnp.triu,
    "diagonal": lambda x, offset=0, dim1=0, dim2=1: jnp.diagonal(x, offset, dim1, dim2),
    "pad": _pad,
    "getitem": _get_item,
    "setitem": _set_item,
    "contiguous": lambda x, **_: x,
    "clone": lambda x, **_: x,
    "alias": lambda x: x,
    "detach": jax.lax.stop_gradient,
    "data": jax.lax.stop_gradient,
}
"""By torch's names."""


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
    @functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
    def along(x: Any, dim: int) -> Any:
        return values(x, axis=dim, keepdims=True)

    @along.defjvp
    def of_the_index(dim: int, given: Any, changes: Any) -> Any:
        # Of equal numbers, the one at the index has the whole derivative, as in torch; JAX shares it among them.
        return along(given[0], dim), _gather(changes[0], dim, index(given[0], axis=dim, keepdims=True))

    def extreme(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None:
            return values(x)
        if not isinstance(dim, int):
            return pairwise(x, dim)
        kept = along(x, dim) if jnp.issubdtype(x.dtype, jnp.floating) else values(x, axis=dim, keepdims=True)
        found = kept if keepdim else kept.squeeze(dim)
        return ValuesAndIndices(found, index(x, axis=dim, keepdims=keepdim))

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


def magnitude(x: Any) -> Any:
    """Return the absolute values, with torch's derivative of 0 at 0."""
    return x * jax.lax.stop_gradient(jnp.sign(x))


def root(x: Any) -> Any:
    """Return the square root, with a derivative of 0 at 0, as torch's norms and deviations have."""
    is_zero = x == 0
    return jnp.where(is_zero, 0.0, jnp.sqrt(jnp.where(is_zero, 1.0, x)))


def wide(reduce: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce whole numbers and truth values in int32, where sums of 8-bit numbers do not wrap around."""

    def reduced(x: Any, *args: Any, **named: Any) -> Any:
        return reduce(x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.int32), *args, **named)

    return reduced


def _norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    """Return the norms of vectors, of all numbers if `dim` is None, with torch's derivative of 0 at 0."""
    axes = _axes(dim)
    if ord == 2:
        return root(jnp.sum(jnp.square(x), axis=axes, keepdims=keepdim))
    if ord == math.inf:
        return jnp.max(magnitude(x), axis=axes, keepdims=keepdim)
    if ord == 1:
        return jnp.sum(magnitude(x), axis=axes, keepdims=keepdim)
    raise NotImplementedError(f"a norm of order {ord}")


def _sort(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    order = jnp.argsort(x, axis=dim, descending=descending)
    return ValuesAndIndices(jnp.take_along_axis(x, order, dim), order)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    return ValuesAndIndices(*(jax.lax.slice_in_dim(part, 0, k, axis=dim) for part in _sort(x, dim, largest)))


REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    "sum": _reduction(wide(jnp.sum)),
    "mean": _reduction(jnp.mean),
    "prod": _reduction(wide(jnp.prod)),
    "any": _reduction(jnp.any),
    "all": _reduction(jnp.all),
    "amin": _reduction(jnp.min),
    "amax": _reduction(jnp.max),
    "max": _extreme(jnp.max, jnp.argmax, jnp.maximum),
    "min": _extreme(jnp.min, jnp.argmin, jnp.minimum),
    "argmax": lambda x, dim=None, keepdim=False: jnp.argmax(x, axis=dim, keepdims=keepdim),
    "argmin": lambda x, dim=None, keepdim=False: jnp.argmin(x, axis=dim, keepdims=keepdim),
    "var": _variance(jnp.var),
    "std": _variance(lambda x, **named: root(jnp.var(x, **named))),
    "norm": lambda x, p=2, dim=None, keepdim=False: _norm(x, 2 if p in {None, "fro"} else p, dim, keepdim),
    "linalg_vector_norm": _norm,
    "vector_norm": _norm,
    "logsumexp": lambda x, dim, keepdim=False: jax.scipy.special.logsumexp(x, _axes(dim), keepdims=keepdim),
    "cumsum": lambda x, dim: wide(jnp.cumsum)(x, dim),  # noqa: PLW0108  torch's names of arguments
    "cumprod": lambda x, dim: wide(jnp.cumprod)(x, dim),  # noqa: PLW0108  torch's names of arguments
    "count_nonzero": lambda x, dim=None: jnp.count_nonzero(x, dim),
    "sort": _sort,
    "argsort": lambda x, dim=-1, descending=False: _sort(x, dim, descending)[1],
    "topk": _topk,
}
"""By torch's names."""
