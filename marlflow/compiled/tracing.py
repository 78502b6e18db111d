"""Runs a torch function on JAX values: every torch call in it, on the module's parameters too, becomes a JAX operation.

At the level of torch's functions (`__torch_function__`), because tracing at the level of ATen takes three CPU seconds
of imports in each process that learns. Within `traced`, tensors have shapes and types but no numbers: a loss that asks
for a number (`item`, `if tensor:`), draws random numbers or changes a tensor that it does not own raises NotCompiled,
with the line of code where that is.
"""

from __future__ import annotations

import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from marlflow.base.errors import NotCompiled
from marlflow.compiled.operators import DEFAULTS, OPERATORS, VIEWS, WITHOUT_EFFECT
from marlflow.compiled.rows import Rows, over_rows
from marlflow.compiled.shapes import ValuesAndIndices

_TORCH_TYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int32": torch.int64,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}

_OF_NUMBERS = frozenset(
    [
        "item",
        "tolist",
        "numpy",
        "__bool__",
        "__float__",
        "__int__",
        "__index__",
        "__array__",
        "__contains__",
        "nonzero",
        "unique",
        "masked_select",
        "equal",
        "allclose",
        "is_nonzero",
    ]
)
"""Calls whose result, and so the next steps of the code, depend on a tensor's numbers."""

_RANDOM = frozenset(
    [
        "rand",
        "randn",
        "randint",
        "randperm",
        "rand_like",
        "randn_like",
        "randint_like",
        "normal",
        "bernoulli",
        "multinomial",
        "poisson",
        "uniform_",
        "normal_",
        "exponential_",
        "random_",
        "bernoulli_",
        "cauchy_",
        "geometric_",
        "log_normal_",
        "rrelu",
        "alpha_dropout",
        "feature_dropout",
    ]
)

_DIFFERENTIATING = frozenset({"grad", "backward"})

_METADATA = frozenset(
    [
        "shape",
        "dtype",
        "device",
        "ndim",
        "layout",
        "size",
        "dim",
        "numel",
        "nelement",
        "is_floating_point",
        "is_complex",
        "is_cuda",
        "is_cpu",
        "is_meta",
        "is_leaf",
        "requires_grad",
        "is_contiguous",
        "element_size",
        "__len__",
        "names",
        "is_sparse",
        "is_quantized",
        "grad_fn",
        "itemsize",
        "nbytes",
        "stride",
        "ndimension",
        "is_same_size",
        "is_inference",
        "get_device",
        "type",
        "output_nr",
        "__hash__",
        "_is_view",
    ]
)
"""Properties and methods that are answered by a tensor without numbers."""


_ITSELF = frozenset({"to", "type_as", "float", "long", "bool", "contiguous"})
"""Calls that return the tensor itself if it is as they would make it."""
_OF_OTHER_SIZES = frozenset({torch.float64, torch.int32})
"""Types that are others here: float32, and the type that stands for int64."""

_GRADIENT_MODES = frozenset({"requires_grad_", "retain_grad", "is_grad_enabled", "_set_grad_enabled"})


class Traced(Tensor):
    """A tensor of a traced function: `value` is a JAX value of its shape."""

    value: Any
    root: Traced | None
    """The tensor whose memory it shares in torch, if it is a view."""
    views: list[weakref.ref[Traced]]
    """The views that share its memory; those that are gone are left in."""

    @staticmethod
    def __new__(cls, value: Any, of: Any = None) -> Self:
        """Make one for `value`; `of` is the tensor that it is a view of."""
        dtype = _TORCH_TYPES[str(value.dtype)]
        # Not of the CPU: code that takes a shorter way through numpy there must not.
        make: Any = torch.Tensor._make_wrapper_subclass
        made: Self = make(cls, value.shape, dtype=dtype, device="meta")
        made.value, made.root, made.views = value, None, []
        if isinstance(of, Traced):
            made.root = of if of.root is None else of.root
            made.root.views.append(weakref.ref(made))
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _TRACES[-1].call(func, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        raise NotCompiled(_sentence(f"the operator {func} has no line in the table of operators"))

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Traced({self.value})"


_TRACES: list[_Trace] = []


class _Trace(TorchFunctionMode):
    """Hands every torch call within it to the table of operators."""

    def __init__(self, known: Mapping[int, Any], rows: Rows) -> None:
        super().__init__()
        self._known, self._rows = known, rows

    def __enter__(self) -> Self:
        _TRACES.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *failure: type[BaseException] | BaseException | TracebackType | None) -> None:
        _TRACES.pop()
        super().__exit__(*failure)  # type: ignore[no-untyped-call]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Return the result of a torch function: Traced, or torch's own where no number is involved."""
        name = _name_of(func)
        if func is Tensor.where and len(args) > 1:
            # As a method it has the condition second.
            args, name = (args[1], args[0], *args[2:]), "where"
        if name in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if name in _GRADIENT_MODES:
            return args[0] if args and isinstance(args[0], Tensor) else func(*args, **kwargs)
        if name == "scan_steps":
            return self._scan(*args)
        changes, base = _in_place(name)
        changes = changes or bool(kwargs.get("inplace"))
        touched = self._touches(args) or self._touches(tuple(kwargs.values()))
        self._verify(name, base, changes, touched, args)
        if base not in OPERATORS:
            # On tensors that are constants of the function.
            return func(*args, **kwargs)
        result = self._result(name, base, args, kwargs)
        if changes:
            before = args[0].value
            if (result.shape, result.dtype) != (before.shape, before.dtype):
                raise NotCompiled(_sentence(f"{name}() would change the shape or the type of a tensor in place"))
            args[0].value = result
            return args[0]
        if isinstance(result, ValuesAndIndices):
            return ValuesAndIndices(*map(Traced, result))
        if base in _ITSELF and _is_itself(result, args, kwargs):
            return args[0]
        of = args[0] if base in VIEWS else None
        return tuple(Traced(one, of) for one in result) if isinstance(result, tuple) else Traced(result, of)

    def _verify(self, name: str, base: str, changes: bool, touched: bool, args: Any) -> None:
        """Raise NotCompiled for a call that has no counterpart in a compiled function."""
        if name in _OF_NUMBERS and touched:
            asks = f"{name.strip('_')}() asks for a tensor's numbers, on which the code then depends"
            raise NotCompiled(_sentence(asks))
        if name in _RANDOM:
            raise NotCompiled(_sentence(f"{name}() draws random numbers, which a loss takes from the column `noise`"))
        if name in _DIFFERENTIATING and touched:
            raise NotCompiled(_sentence(f"{name}() differentiates within the loss"))
        if base not in OPERATORS and touched:
            raise NotCompiled(_sentence(f"the operator {name} has no line in the table of operators"))
        if changes and not isinstance(args[0], Traced):
            raise NotCompiled(_sentence(f"{name}() changes a tensor that was made outside of the loss"))
        if changes and args[0].root is not None:
            raise NotCompiled(_sentence(f"{name}() changes a part of another tensor in place"))
        if changes and any(view() is not None for view in args[0].views):
            raise NotCompiled(_sentence(f"{name}() changes a tensor in place that has views"))

    def _result(self, name: str, base: str, args: Any, kwargs: Mapping[str, Any]) -> Any:
        given = {
            key: self._values(value)
            for key, value in kwargs.items()
            if key not in WITHOUT_EFFECT and not (key in DEFAULTS and _is_default(value, DEFAULTS[key]))
        }
        values = self._values(args)
        try:
            if (result := over_rows(self._rows, base, values, given)) is None:
                result = OPERATORS[base](*values, **given)
        except NotImplementedError as error:
            raise NotCompiled(_sentence(str(error))) from error
        except jax.errors.JAXTypeError as error:
            raise NotCompiled(_sentence(f"{name}() needs a number where the loss has a tensor")) from error
        except TypeError as error:
            unknown = f"{name}() has arguments that the table of operators does not know ({error})"
            raise NotCompiled(_sentence(unknown)) from error
        return result if torch.is_grad_enabled() else jax.tree.map(jax.lax.stop_gradient, result)

    def _scan(self, cell: Any, inputs: Any, memory: Any, valid: Any) -> tuple[Traced, Traced]:
        """Loop over steps as policy.recurrent.scan_steps does."""

        def step(memory: Any, now: Any) -> tuple[Any, Any]:
            inputs_t, valid_t = now
            # Within a call that is being traced, others are not.
            with self:
                features, after = cell(Traced(inputs_t), Traced(memory))
            return jnp.where(valid_t.reshape(-1, *[1] * (memory.ndim - 1)), value_of(after), memory), value_of(features)

        inputs, memory, valid = self._values((inputs, memory, valid))
        steps = jnp.moveaxis(inputs, 1, 0), jnp.moveaxis(valid, 1, 0)
        after, features = jax.lax.scan(step, memory, steps)
        return Traced(jnp.moveaxis(features, 0, 1)), Traced(after)

    def _touches(self, found: Any) -> bool:
        if isinstance(found, Traced):
            return True
        if isinstance(found, Tensor):
            return id(found) in self._known
        return isinstance(found, tuple | list) and any(map(self._touches, found))

    def _values(self, found: Any) -> Any:
        if isinstance(found, Traced):
            return found.value
        if isinstance(found, Tensor):
            if (known := self._known.get(id(found))) is not None:
                return known
            if torch._C._functorch.is_functorch_wrapped_tensor(found):
                raise NotCompiled(_sentence("vmap() or another function of torch.func transforms the network"))
            if found.is_meta:
                raise NotCompiled(_sentence("a tensor without numbers"))
            with torch._C.DisableTorchFunction():
                return jnp.asarray(found.detach().numpy())
        if isinstance(found, torch.Size):
            return tuple(found)
        if isinstance(found, tuple | list):
            return type(found)(map(self._values, found))
        return found


def traced(known: Mapping[int, Any], rows: Rows, function: Callable[[], Any]) -> Any:
    """Call `function`; in it, each tensor whose id is in `known` is replaced by the JAX value given there.

    Reductions over a minibatch include its real `rows` and no padding. Raises NotCompiled if something in it cannot be
    compiled.
    """
    with _Trace(known, rows):
        return function()


def value_of(tensor: Any) -> Any:
    """Return the JAX value of a result of a traced function: a Traced, a tensor, or a number."""
    if isinstance(tensor, Traced):
        return tensor.value
    return jnp.asarray(tensor.detach().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor))


def _is_itself(result: Any, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """Return whether torch's conversion returns its first argument, so that a change in place is one of both."""
    asked = [one for one in (*args[1:], *kwargs.values()) if isinstance(one, torch.dtype)]
    is_of_type = isinstance(args[0], Traced) and args[0].value.dtype == result.dtype
    return is_of_type and not kwargs.get("copy") and _OF_OTHER_SIZES.isdisjoint(asked)


def _is_default(value: Any, default: Any) -> bool:
    # Tensors would be compared number by number.
    return value is None if default is None else isinstance(value, int | float) and value == default


def _name_of(func: Any) -> str:
    name = str(getattr(func, "__name__", func))
    if name in {"__get__", "__set__"}:
        return str(func.__self__.__name__)
    return name


def _in_place(name: str) -> tuple[bool, str]:
    """Return whether a function of this name changes its first argument, and its name in the table."""
    if name == "__setitem__":
        return True, "setitem"
    if name == "__rand__":
        return False, "and"
    if name in {"__iand__", "__ior__"}:
        return True, name.strip("_")[1:]
    if name.startswith("__") and name.endswith("__"):
        base = name.strip("_")
        return base in {"iadd", "isub", "imul", "itruediv"}, base
    if name.endswith("_") and name[:-1] in OPERATORS:
        return True, name[:-1]
    return False, name


_OURS = str(Path(__file__).parent)
_TORCH = str(Path(torch.__file__).parent)
_JAX = str(Path(jax.__file__).parent)


def _sentence(problem: str) -> str:
    """Add the innermost line of code outside of torch, JAX and this package."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith((_OURS, _TORCH, _JAX)):
            return f"{problem}: {frame.line} ({Path(frame.filename).name}, line {frame.lineno})"
    return problem
