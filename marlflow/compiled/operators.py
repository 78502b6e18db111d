"""The table of operators: what each torch function, method and property is in JAX, by its name.

Named as torch names them, without the underscores of in-place versions and of operators (`__add__` is `add`), so that
one line serves `torch.add`, `Tensor.add`, `Tensor.add_` and `+`. Entries take JAX arrays where torch takes tensors, and
torch's arguments otherwise. A network or loss with a function that has no line here is computed by autograd.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from marlflow.compiled.elementwise import ELEMENTWISE
from marlflow.compiled.layers import LAYERS
from marlflow.compiled.making import MAKING
from marlflow.compiled.reductions import REDUCTIONS
from marlflow.compiled.shapes import SHAPES

OPERATORS: Mapping[str, Callable[..., Any]] = {**ELEMENTWISE, **LAYERS, **REDUCTIONS, **SHAPES, **MAKING}

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
