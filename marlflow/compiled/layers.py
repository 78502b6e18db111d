"""Torch's products, layers and losses in JAX: torch.matmul, and functions of torch.nn.functional."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from marlflow.compiled.making import DTYPES
from marlflow.compiled.shapes import SHAPES, magnitude


def _matmul(x: Any, y: Any) -> Any:
    return jnp.matmul(x, y)


def _linear(x: Any, weight: Any, bias: Any = None) -> Any:
    product = jnp.matmul(x, weight.T)
    return product if bias is None else product + bias


def _addmm(x: Any, a: Any, b: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    product = a @ b
    return (x if beta == 1 else beta * x) + (product if alpha == 1 else alpha * product)


def _pair(value: Any, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


def _convolution(dims: int) -> Callable[..., Any]:
    letters = "DHW"[3 - dims :]

    def convolve(
        x: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
    ) -> Any:
        strides, dilations = _pair(stride, dims), _pair(dilation, dims)
        kernel = [(size - 1) * by + 1 for size, by in zip(weight.shape[2:], dilations, strict=True)]
        pads = (
            jax.lax.padtype_to_pads(x.shape[2:], kernel, strides, padding.upper())
            if isinstance(padding, str)
            else [(one, one) for one in _pair(padding, dims)]
        )
        if groups == 1:
            result = _product_of_patches(x, weight, strides, pads, dilations)
        else:
            result = jax.lax.conv_general_dilated(
                x,
                weight,
                strides,
                pads,
                rhs_dilation=dilations,
                dimension_numbers=(f"NC{letters}", f"OI{letters}", f"NC{letters}"),
                feature_group_count=groups,
            )
        return result if bias is None else result + bias.reshape(-1, *[1] * dims)

    return convolve


def _product_of_patches(x: Any, weight: Any, strides: Sequence[int], pads: Any, dilations: Sequence[int]) -> Any:
    """Convolve `x` [N, C, ...] as one product of matrices.

    On the CPU, XLA computes convolutions within a loop, as the minibatches of an update are, some 30 times slower than
    outside of one.
    """
    # With the channels last, patches are put together from whole rows of memory.
    x = jnp.pad(jnp.moveaxis(x, 1, -1), ((0, 0), *pads, (0, 0)))
    out_channels, channels, *kernel = weight.shape
    spans = [(size - 1) * by + 1 for size, by in zip(kernel, dilations, strict=True)]
    sizes = [(have - span) // step + 1 for have, span, step in zip(x.shape[1:-1], spans, strides, strict=True)]
    parts = []
    for offset in itertools.product(*map(range, kernel)):
        first = [at * by for at, by in zip(offset, dilations, strict=True)]
        last = [at + (size - 1) * step + 1 for at, size, step in zip(first, sizes, strides, strict=True)]
        parts.append(jax.lax.slice(x, (0, *first, 0), (len(x), *last, channels), (1, *strides, 1)))
    factors = jnp.moveaxis(weight, (0, 1), (-1, -2)).reshape(-1, out_channels)
    return jnp.moveaxis(jnp.concatenate(parts, -1) @ factors, -1, 1)


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
    if attn_mask is None:
        return jax.nn.softmax(scores, -1) @ value
    scores = jnp.where(attn_mask, scores, -jnp.inf) if attn_mask.dtype == bool else scores + attn_mask
    # A query that may attend to nothing has 0, and not the softmax of no numbers.
    is_alone = jnp.isneginf(scores).all(-1, keepdims=True)
    return jnp.where(is_alone, 0.0, jax.nn.softmax(jnp.where(is_alone, 0.0, scores), -1)) @ value


def _dropout(x: Any, p: float = 0.5, training: bool = True) -> Any:
    if training and p:
        raise NotImplementedError("dropout draws random numbers of its own")
    return x


def _softmax(function: Callable[..., Any]) -> Callable[..., Any]:
    def soft(x: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> Any:
        if dim is None:
            # torch's functions choose this axis, and warn.
            dim = 0 if x.ndim in (0, 1, 3) else 1
        return function(x if dtype is None else x.astype(DTYPES[dtype]), axis=dim)

    return soft


def _reduced(loss: Any, reduction: str) -> Any:
    return {"mean": jnp.mean, "sum": jnp.sum, "none": lambda x: x}[reduction](loss)


def _huber(x: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Any:
    size = jnp.abs(x - target)
    return _reduced(jnp.where(size < delta, 0.5 * size * size, delta * (size - 0.5 * delta)), reduction)


def _smooth_l1(x: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Any:
    return _huber(x, target, reduction, beta) / beta if beta else _reduced(magnitude(x - target), reduction)


def _mse(x: Any, target: Any, reduction: str = "mean") -> Any:
    return _reduced(jnp.square(x - target), reduction)


def _cross_entropy(
    x: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Any:
    if weight is not None or label_smoothing or x.ndim != 2 or target.ndim != 1:
        raise NotImplementedError("cross_entropy with weights, smoothing or more than two axes")
    is_counted = target != ignore_index
    index = jnp.where(is_counted, target, 0)[:, None]
    loss = jnp.where(is_counted, -SHAPES["gather"](jax.nn.log_softmax(x, -1), -1, index)[:, 0], 0.0)
    return _reduced(loss, "sum") / is_counted.sum() if reduction == "mean" else _reduced(loss, reduction)


def _binary_cross_entropy_with_logits(x: Any, target: Any, weight: Any = None, reduction: str = "mean") -> Any:
    loss = jnp.maximum(x, 0) - x * target + jnp.log1p(jnp.exp(-jnp.abs(x)))
    return _reduced(loss if weight is None else loss * weight, reduction)


LAYERS: Mapping[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": _matmul,
    "rmatmul": lambda x, y: jnp.matmul(y, x),
    "mm": _matmul,
    "bmm": _matmul,
    "mv": _matmul,
    "dot": jnp.dot,
    "inner": jnp.inner,
    "outer": jnp.outer,
    "einsum": jnp.einsum,
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
    "one_hot": lambda x, num_classes=-1: jax.nn.one_hot(x, num_classes, dtype=jnp.int32),
    "huber_loss": lambda input, target, reduction="mean", delta=1.0: _huber(input, target, reduction, delta),
    "smooth_l1_loss": _smooth_l1,
    "mse_loss": _mse,
    "cross_entropy": _cross_entropy,
    "binary_cross_entropy_with_logits": _binary_cross_entropy_with_logits,
}
"""By torch's names."""
