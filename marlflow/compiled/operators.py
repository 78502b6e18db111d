"""The table of operators: what each torch function, method and property is in JAX, by its name.

Named as torch names them, without the underscores of in-place versions and of operators (`__add__` is `add`), so that
one line serves `torch.add`, `Tensor.add`, `Tensor.add_` and `+`. Entries take JAX arrays where torch takes tensors, and
torch's arguments otherwise. A network or loss with a function that has no line here is computed by autograd.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch

# float64 and int64 do not exist in JAX's usual mode; what a loss computes with them is held to autograd's result.
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

_FEW = 64
"""Numbers along an axis up to which one of each row is chosen by a sum over a mask, quicker than a gather."""


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


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    # By maximum and minimum, whose gradients at the bounds are torch's, unlike those of jnp.clip.
    if min is not None:
        x = jnp.where(x < min, jnp.asarray(min, x.dtype), x)
    if max is not None:
        x = jnp.where(x > max, jnp.asarray(max, x.dtype), x)
    return x


def _sum(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    return _reduction(jnp.sum)(x, dim, keepdim, dtype=dtype)


def _sizes(sizes: Sequence[Any]) -> tuple[int, ...]:
    return tuple(sizes[0]) if len(sizes) == 1 and isinstance(sizes[0], tuple | list) else tuple(sizes)


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
        return x.reshape(_sizes(sizes))
    # The same bytes as another type: JAX has those of one number on an axis of their own.
    wanted = jnp.dtype(DTYPES[sizes[0]])
    if wanted.itemsize > x.dtype.itemsize:
        x = x.reshape(*x.shape[:-1], -1, wanted.itemsize // x.dtype.itemsize)
    made = jax.lax.bitcast_convert_type(x, wanted)
    return made.reshape(*x.shape[:-1], -1) if made.ndim > x.ndim else made


def _expand(x: Any, *sizes: Any) -> Any:
    wanted = _sizes(sizes)
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


def _matmul(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = jnp.matmul(x, weight.T)
    return product if bias is None else product + bias


def _pair(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def _convolution(dims: int) -> Callable[..., Any]:
    letters = "DHW"[3 - dims :]

    def convolve(
        x: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Any:
        pads = padding.upper() if isinstance(padding, str) else [(one, one) for one in _pair(padding, dims)]
        result = jax.lax.conv_general_dilated(
            x,
            weight,
            _pair(stride, dims),
            pads,
            rhs_dilation=_pair(dilation, dims),
            dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
            feature_group_count=groups,
        )
        return result if bias is None else result + bias.reshape(-1, *[1] * dims)

    return convolve


def _pool(x: Any, kernel_size: Any, stride: Any, padding: Any, initial: Any, combine: Any) -> Any:
    window, steps = _pair(kernel_size, 2), _pair(kernel_size if stride is None else stride, 2)
    pads = [(0, 0)] * (x.ndim - 2) + [(one, one) for one in _pair(padding, 2)]
    ones = (1,) * (x.ndim - 2)
    return jax.lax.reduce_window(x, initial, combine, ones + window, ones + steps, pads)


def _max_pool2d(x: Any, kernel_size: Any, stride: Any = None, padding: Any = 0) -> Any:
    return _pool(x, kernel_size, stride, padding, -jnp.inf, jax.lax.max)


def _avg_pool2d(x: Any, kernel_size: Any, stride: Any = None) -> Any:
    return _pool(x, kernel_size, stride, 0, 0.0, jax.lax.add) / math.prod(_pair(kernel_size, 2))


def _layer_norm(
    x: Any, normalized_shape: Sequence[int], weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    axes = tuple(range(-len(normalized_shape), 0))
    centered = x - x.mean(axes, keepdims=True)
    scaled = centered * jax.lax.rsqrt(jnp.square(centered).mean(axes, keepdims=True) + eps)
    scaled = scaled if weight is None else scaled * weight
    return scaled if bias is None else scaled + bias


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
) -> Any:
    if dropout_p:
        raise NotImplementedError("dropout draws random numbers of its own")
    scores = query @ jnp.swapaxes(key, -1, -2) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = jnp.tril(jnp.ones(scores.shape[-2:], bool))
    if attn_mask is not None:
        scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    return jax.nn.softmax(scores, -1) @ value


def _dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    if training and p:
        raise NotImplementedError("dropout draws random numbers of its own")
    return x


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


def _reduced(loss: Any, reduction: str) -> Any:
    return {"mean": jnp.mean, "sum": jnp.sum, "none": lambda x: x}[reduction](loss)


def _huber(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    size = jnp.abs(x - target)
    return _reduced(jnp.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


def _smooth_l1(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    return _huber(x, target, reduction, beta) / beta


def _mse(x: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced(jnp.square(x - target), reduction)


def _cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if weight is not None or label_smoothing or x.ndim != 2 or target.ndim != 1:
        raise NotImplementedError("cross_entropy with weights, smoothing or more than two axes")
    return _reduced(-_gather(jax.nn.log_softmax(x, -1), -1, target[:, None])[:, 0], reduction)


def _binary_cross_entropy_with_logits(x: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    loss = jnp.maximum(x, 0) - x * target + jnp.log1p(jnp.exp(-jnp.abs(x)))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _pad(x: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Any:
    if mode != "constant":
        raise NotImplementedError(f"padding by {mode!r}")
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    return jnp.pad(x, widths, constant_values=0 if value is None else value)


def _norm(x: Any, ord: Any = 2, dim: Any = None, keepdim: bool = False) -> Any:
    if ord == 2:
        return jnp.sqrt(jnp.sum(jnp.square(x), axis=_axes(dim), keepdims=keepdim))
    return jnp.linalg.norm(x, ord, _axes(dim), keepdim)


def _cast(x: Any, *wanted: Any, **named: Any) -> Any:
    for one in (*wanted, *named.values()):
        if isinstance(one, torch.dtype):
            return x.astype(DTYPES[one])
        if isinstance(one, jax.Array):
            return x.astype(one.dtype)
    return x


def _filled(value: Any) -> Callable[..., Any]:
    def fill(*sizes: Any, dtype: torch.dtype | None = None, size: Any = None, **_: Any) -> Any:
        return jnp.full(tuple(size) if size is not None else _sizes(sizes), value, DTYPES[dtype or torch.float32])

    return fill


def _filled_like(value: Any) -> Callable[..., Any]:
    def fill(x: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return jnp.full(x.shape, value, x.dtype if dtype is None else DTYPES[dtype])

    return fill


def _new_filled(value: Any) -> Callable[..., Any]:
    def fill(x: Any, *sizes: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
        return jnp.full(_sizes(sizes), value, x.dtype if dtype is None else DTYPES[dtype])

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


def _get_item(x: Any, index: Any) -> Any:
    return x[_index(index)]


def _index(index: Any) -> Any:
    """Return an index as JAX takes it; raises NotImplementedError for truth values."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if getattr(index, "dtype", None) == jnp.bool_:
        raise NotImplementedError("an index of truth values, whose result has a shape that depends on data")
    return jnp.asarray(index) if isinstance(index, list) else index


def _set_item(x: Any, index: Any, value: Any) -> Any:
    return x.at[_index(index)].set(value)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


def _where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition, x, y)


def _repeat(x: Any, *repeats: Any) -> Any:
    counts = _sizes(repeats)
    return jnp.tile(x.reshape((1,) * (len(counts) - x.ndim) + x.shape), counts)


def _transpose(x: Any, dim0: int, dim1: int) -> Any:
    return jnp.swapaxes(x, dim0, dim1)


def _sort(x: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    order = jnp.argsort(x, axis=dim, descending=descending)
    return ValuesAndIndices(jnp.take_along_axis(x, order, dim), order)


def _topk(x: Any, k: int, dim: int = -1, largest: bool = True) -> Any:
    return ValuesAndIndices(*(jax.lax.slice_in_dim(part, 0, k, axis=dim) for part in _sort(x, dim, largest)))


def _addmm(x: Any, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    product = a @ b
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _reversed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(y, x)


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def soft(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        return function(x if dtype is None else x.astype(DTYPES[dtype]), axis=-1 if dim is None else dim)

    return soft


OPERATORS: Mapping[str, Callable[..., Any]] = {
    # one number from one
    **{
        name: getattr(jnp, name)
        for name in [
            "exp",
            "log",
            "tanh",
            "sqrt",
            "square",
            "sin",
            "cos",
            "floor",
            "ceil",
            "round",
            "sign",
            "log1p",
            "expm1",
            "isfinite",
            "isnan",
            "isinf",
            "reciprocal",
            "sinh",
            "cosh",
            "log2",
            "log10",
            "exp2",
            "logical_not",
            "atan",
            "asin",
            "acos",
            "tan",
            "arctan",
        ]
        if hasattr(jnp, name)
    },
    "abs": jnp.abs,
    "absolute": jnp.abs,
    "neg": jnp.negative,
    "negative": jnp.negative,
    "pos": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "rsqrt": jax.lax.rsqrt,
    "relu": lambda x: jnp.where(x > 0, x, jnp.zeros((), x.dtype)),
    "relu6": lambda x: _clamp(x, 0.0, 6.0),
    "elu": lambda x, alpha=1.0: jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0.0))),
    "leaky_relu": lambda x, negative_slope=0.01: jnp.where(x > 0, x, negative_slope * x),
    "silu": jax.nn.silu,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "gelu": _gelu,
    "softplus": _softplus,
    "logsigmoid": jax.nn.log_sigmoid,
    "log_sigmoid": jax.nn.log_sigmoid,
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: _clamp(x, min_val, max_val),
    "erf": jax.scipy.special.erf,
    "lgamma": jax.scipy.special.gammaln,
    "special_log_ndtr": jax.scipy.special.log_ndtr,
    "log_ndtr": jax.scipy.special.log_ndtr,
    "special_ndtr": jax.scipy.special.ndtr,
    "ndtr": jax.scipy.special.ndtr,
    "special_expit": jax.nn.sigmoid,
    "invert": jnp.invert,
    "bitwise_not": jnp.invert,
    "nan_to_num": lambda x, nan=0.0, posinf=None, neginf=None: jnp.nan_to_num(x, nan=nan, posinf=posinf, neginf=neginf),
    # one from two or three
    "add": lambda x, y, *, alpha=1: x + (y if alpha == 1 else alpha * y),
    "sub": lambda x, y, *, alpha=1: x - (y if alpha == 1 else alpha * y),
    "subtract": lambda x, y, *, alpha=1: x - (y if alpha == 1 else alpha * y),
    "rsub": lambda x, y, *, alpha=1: y - (x if alpha == 1 else alpha * x),
    "radd": operator.add,
    "iadd": operator.add,
    "isub": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "rmul": operator.mul,
    "imul": operator.mul,
    "div": lambda x, y, *, rounding_mode=None: x / y if rounding_mode is None else _rounded(x / y, rounding_mode),
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "truediv": operator.truediv,
    "itruediv": operator.truediv,
    "rtruediv": _reversed(operator.truediv),
    "rdiv": _reversed(operator.truediv),
    "floor_divide": jnp.floor_divide,
    "floordiv": jnp.floor_divide,
    "remainder": jnp.remainder,
    "mod": jnp.remainder,
    "pow": lambda x, y: x * x if isinstance(y, int | float) and y == 2 else x**y,
    "rpow": _reversed(operator.pow),
    "minimum": jnp.minimum,
    "maximum": jnp.maximum,
    "fmin": jnp.fmin,
    "fmax": jnp.fmax,
    "xlogy": lambda x, y: jnp.where(x == 0, 0.0, x * jnp.log(jnp.where(x == 0, 1.0, y))),
    "atan2": jnp.arctan2,
    "hypot": jnp.hypot,
    "logaddexp": jnp.logaddexp,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda x, min: _clamp(x, min),  # noqa: PLW0108  torch's names of arguments
    "clamp_max": lambda x, max: _clamp(x, None, max),
    "lerp": lambda x, end, weight: x + weight * (end - x),
    "addcmul": lambda x, a, b, *, value=1: x + (a * b if value == 1 else value * a * b),
    "addcdiv": lambda x, a, b, *, value=1: x + (a / b if value == 1 else value * a / b),
    "where": _where,
    "masked_fill": _masked_fill,
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "not_equal": operator.ne,
    "logical_and": jnp.logical_and,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "bitwise_and": operator.and_,
    "bitwise_or": operator.or_,
    "bitwise_xor": operator.xor,
    "and": operator.and_,
    "rand_": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    # matrices
    "linear": _linear,
    "matmul": _matmul,
    "rmatmul": _reversed(_matmul),
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": jnp.dot,
    "inner": jnp.inner,
    "outer": jnp.outer,
    "einsum": lambda equation, *operands: jnp.einsum(equation, *_sizes(operands)),
    "addmm": _addmm,
    "addmv": _addmm,
    "baddbmm": _addmm,
    "conv1d": _convolution(1),
    "conv2d": _convolution(2),
    "max_pool2d": _max_pool2d,
    "avg_pool2d": _avg_pool2d,
    "layer_norm": _layer_norm,
    "embedding": lambda input, weight: weight[input],
    "scaled_dot_product_attention": _attention,
    "dropout": _dropout,
    "solve": jnp.linalg.solve,
    "linalg_solve": jnp.linalg.solve,
    "softmax": _softmax(jax.nn.softmax),
    "log_softmax": _softmax(jax.nn.log_softmax),
    "logsumexp": lambda x, dim, keepdim=False: jax.scipy.special.logsumexp(x, _axes(dim), keepdims=keepdim),
    "one_hot": lambda x, num_classes=-1: jax.nn.one_hot(x, num_classes, dtype=jnp.int32),
    "huber_loss": lambda input, target, reduction="mean", delta=1.0: _huber(input, target, reduction, delta),
    "smooth_l1_loss": _smooth_l1,
    "mse_loss": _mse,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
    # reductions
    "sum": _sum,
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
    "cumsum": lambda x, dim: jnp.cumsum(x, dim),  # noqa: PLW0108  torch's names of arguments
    "cumprod": lambda x, dim: jnp.cumprod(x, dim),  # noqa: PLW0108  torch's names of arguments
    "count_nonzero": lambda x, dim=None: jnp.count_nonzero(x, dim),
    "sort": _sort,
    "argsort": lambda x, dim=-1, descending=False: _sort(x, dim, descending)[1],
    "topk": _topk,
    # shapes
    "reshape": lambda x, *sizes: x.reshape(_sizes(sizes)),
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
    "permute": lambda x, *dims: jnp.transpose(x, _sizes(dims)),
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
    "flip": lambda x, *dims: jnp.flip(x, _sizes(dims)),
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
    # types, and tensors made within a loss
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


def _rounded(x: Any, mode: str) -> Any:
    return jnp.floor(x) if mode == "floor" else jnp.trunc(x)


WITHOUT_EFFECT = frozenset(
    {
        "inplace",
        "memory_format",
        "non_blocking",
        "layout",
        "pin_memory",
        "device",
        "requires_grad",
        "generator",
        "sparse_grad",
        "stable",
        "sorted",
        "_stacklevel",
    }
)
"""Named arguments that change nothing of the result here."""

DEFAULTS: Mapping[str, Any] = {
    **dict.fromkeys(("size_average", "reduce", "out", "dtype", "divisor_override")),
    **dict.fromkeys(("weight", "pos_weight", "max_norm", "padding_idx")),
    "ignore_index": -100,
    "dilation": 1,
    "ceil_mode": False,
    "return_indices": False,
    "count_include_pad": True,
    "enable_gqa": False,
    "scale_grad_by_freq": False,
    "sparse": False,
}
"""Those that torch's own Python functions pass on, and that change nothing while they have these values."""

VIEWS = frozenset(
    [
        "view",
        "view_as",
        "reshape",
        "reshape_as",
        "flatten",
        "unflatten",
        "unsqueeze",
        "squeeze",
        "transpose",
        "swapaxes",
        "t",
        "T",
        "mT",
        "permute",
        "movedim",
        "expand",
        "expand_as",
        "split",
        "chunk",
        "unbind",
        "select",
        "narrow",
        "getitem",
        "diagonal",
        "detach",
        "data",
        "ravel",
    ]
)
"""Results that share memory with their argument in torch, where changing one in place changes the other."""
