"""The table of operators: the JAX counterpart of each torch function, method and property, by name.

Named as torch names them, without the underscores of in-place versions and of operators (`__add__` is `add`), so that
one line serves `torch.add`, `Tensor.add`, `Tensor.add_` and `+`. Entries take JAX arrays where torch takes tensors, and
torch's arguments otherwise. A network or loss with a function that has no line here is computed by autograd.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from marlflow.compiled.layers import LAYERS
from marlflow.compiled.making import MAKING
from marlflow.compiled.shapes import REDUCTIONS, SHAPES, magnitude


def _within(x: Any, low: float, high: float) -> Any:
    # The derivative is 0 at the bounds, too, where that of clamp is 1.
    return jnp.where((x > low) & (x < high), x, jax.lax.stop_gradient(jnp.clip(x, low, high)))


def _clamp(x: Any, min: Any = None, max: Any = None) -> Any:
    # Not jnp.clip: its gradients at the bounds differ from torch's, and the gradients of jnp.where do not.
    if any(isinstance(bound, float) for bound in (min, max)) and not jnp.issubdtype(x.dtype, jnp.floating):
        x = x.astype(jnp.float32)
    if min is not None:
        x = jnp.where(x < min, jnp.asarray(min, x.dtype), x)
    if max is not None:
        x = jnp.where(x > max, jnp.asarray(max, x.dtype), x)
    return x


def _where(condition: Any, x: Any, y: Any) -> Any:
    return jnp.where(condition, x, y)


def _masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return jnp.where(mask, jnp.asarray(value, x.dtype), x)


def _softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


def _gelu(x: Any, approximate: str = "none") -> Any:
    return jax.nn.gelu(x, approximate=approximate == "tanh")


def _reversed(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: function(y, x)


def _rounded(x: Any, mode: str) -> Any:
    return jnp.floor(x) if mode == "floor" else jnp.trunc(x)


ELEMENTWISE: Mapping[str, Callable[..., Any]] = {
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
    "abs": magnitude,
    "absolute": magnitude,
    "neg": jnp.negative,
    "negative": jnp.negative,
    "pos": lambda x: x,
    "sigmoid": jax.nn.sigmoid,
    "rsqrt": jax.lax.rsqrt,
    "relu": lambda x: jnp.where(x > 0, x, jnp.zeros((), x.dtype)),
    "relu6": lambda x: _within(x, 0.0, 6.0),
    "elu": lambda x, alpha=1.0: jnp.where(x > 0, x, alpha * jnp.expm1(jnp.where(x > 0, 0.0, x))),
    "leaky_relu": lambda x, negative_slope=0.01: jnp.where(x > 0, x, negative_slope * x),
    "silu": jax.nn.silu,
    "mish": lambda x: x * jnp.tanh(jax.nn.softplus(x)),
    "gelu": _gelu,
    "softplus": _softplus,
    "logsigmoid": jax.nn.log_sigmoid,
    "log_sigmoid": jax.nn.log_sigmoid,
    "hardtanh": lambda x, min_val=-1.0, max_val=1.0: _within(x, min_val, max_val),
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
}
"""By torch's names."""


OPERATORS: Mapping[str, Callable[..., Any]] = {**ELEMENTWISE, **LAYERS, **REDUCTIONS, **SHAPES, **MAKING}

WITHOUT_EFFECT = frozenset(
    {
        "inplace",  # tracing changes the tensor
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
    "norm_type": 2.0,
    "dilation": 1,
    "ceil_mode": False,
    "return_indices": False,
    "count_include_pad": True,
    "enable_gqa": False,
    "scale_grad_by_freq": False,
    "sparse": False,
}
"""Keyword arguments that torch's own Python functions pass on; with these values they have no effect."""

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
