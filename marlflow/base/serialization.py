"""Serialization of run state without pickle: arrays as safetensors, the rest as JSON in its header.

A *tree* is None, a bool, int, float (NaN and infinities too), str, numpy array (bool, integers or floats), or a list or
str-keyed dict of trees, nested at most 64 deep. Reading one never executes code. An array is named by its JSON pointer
(RFC 6901) in the tree.

In the JSON a dict is {"dict": {...}}; {"array": name}, {"int": hexadecimal} beyond 64 bits and {"float": "nan"} are
values that JSON lacks.
"""

from __future__ import annotations

import json
import math
import reprlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeAlias

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable

Tree: TypeAlias = Any

_MAX_DEPTH = 64
_MAX_DIMENSIONS = 64
_FORMAT = "marlflow tree 1"
# Safetensors' dtype names by numpy's little-endian dtype strings.
_NAME_OF = {
    "|b1": "BOOL",
    "|u1": "U8",
    "|i1": "I8",
    "<u2": "U16",
    "<i2": "I16",
    "<f2": "F16",
    "<u4": "U32",
    "<i4": "I32",
    "<f4": "F32",
    "<u8": "U64",
    "<i8": "I64",
    "<f8": "F64",
}
_DTYPE_OF = {name: np.dtype(code) for code, name in _NAME_OF.items()}

MALFORMED = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that code may raise when it restores state from a tree, or file, of an unexpected shape."""


def to_bytes(tree: Tree) -> bytes:
    """Serialize `tree` as a safetensors file; raises TypeError, with the path, if it is not a tree.

    Equal trees give equal bytes. Tuples become lists; subclasses of numbers and str, and NumPy's, their plain type.
    """
    arrays: dict[str, Array] = {}
    encoded = json.dumps(_encoded(tree, "", 0, arrays), separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"format": _FORMAT, "tree": encoded}}
    # Widest items first, so that each array is aligned to its item size.
    by_width = sorted(arrays.items(), key=lambda item: -item[1].itemsize)
    start = 0
    for name, array in by_width:
        span = [start, start := start + array.nbytes]
        header[name] = {"dtype": _NAME_OF[array.dtype.str], "shape": array.shape, "data_offsets": span}
    text = json.dumps(header, separators=(",", ":")).encode()
    # Padded, so that the data begins at a multiple of 8 bytes.
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *(a.reshape(-1).view(np.uint8).data for _, a in by_width)])


def from_bytes(data: bytes | memoryview) -> Tree:
    """Restore the tree given to `to_bytes`, with writable arrays; raises CheckpointUnusable.

    The arrays share one buffer. Corrupted array data goes undetected, so store a hash too.
    """
    try:
        return _read(memoryview(data))
    except (ValueError, RecursionError) as error:
        raise CheckpointUnusable([f"these bytes are not what marlflow keeps: {error}"]) from None


def is_count(value: object) -> bool:
    """Return whether a value that was read is a whole number from 0 on; bool, a subclass of int, is none."""
    return type(value) is int and value >= 0


def differences_of_shape(expected: Tree, actual: Tree, path: str = "") -> Iterator[str]:
    """Yield where `actual` does not match `expected`: a missing key, or a value of another type.

    Extra keys are allowed, lists may have any content, and an expected None matches anything.
    """
    kinds = (int, float) if isinstance(expected, float) else (type(expected),)
    if expected is None:
        return
    if isinstance(actual, bool) != isinstance(expected, bool) or not isinstance(actual, kinds):
        yield f"{path or 'it'} is {reprlib.repr(actual)}, where a value like {reprlib.repr(expected)} is expected"
    elif isinstance(expected, dict) and isinstance(actual, dict):
        for key, value in expected.items():
            if key in actual:
                yield from differences_of_shape(value, actual[key], _child_path(path, key))
            else:
                yield f"{_child_path(path, key)} is missing"


def _encoded(node: Tree, path: str, depth: int, arrays: dict[str, Array]) -> object:
    match node:
        case None | bool():
            return node
        case np.bool_() | np.integer() | np.floating() if not isinstance(node, np.longdouble):
            return _encoded(node.item(), path, depth, arrays)
        case int():
            return node if -(2**63) <= node < 2**63 else {"int": hex(node)}
        case float():
            return node if math.isfinite(node) else {"float": repr(float(node))}
        case str():
            return _encodable(node, path)
        case list() | tuple():
            _check_depth(depth, path)
            return [_encoded(child, f"{path}/{at}", depth + 1, arrays) for at, child in enumerate(node)]
        case dict():
            _check_depth(depth, path)
            children = ((_key(key, path), child) for key, child in node.items())
            return {
                "dict": {key: _encoded(child, _child_path(path, key), depth + 1, arrays) for key, child in children}
            }
        case np.ndarray():
            arrays[path] = _storable(node, path)
            return {"array": path}
    raise _not_a_tree(path, f"came {type(node).__qualname__}")


def _not_a_tree(path: str, problem: str) -> TypeError:
    return TypeError(
        f"at {path or 'the top'!r}: expected None, a bool, int, float, text, list, dict by text or numpy array of "
        f"bools, integers or floats, but {problem}"
    )


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_a_tree(path, f"came the text {text!r}, which Unicode does not allow") from None
    return text


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _not_a_tree(path, f"came a dict with the key {key!r}")
    return _encodable(key, path)


def _child_path(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _check_depth(depth: int, path: str) -> None:
    if depth >= _MAX_DEPTH:
        raise _not_a_tree(path, f"it is nested more than {_MAX_DEPTH} deep; does it hold itself?")


def _storable(array: Array, path: str) -> Array:
    dtype = array.dtype.newbyteorder("<")
    # A subclass, such as a masked array, holds more than its numbers.
    if type(array) is not np.ndarray or dtype.str not in _NAME_OF:
        raise _not_a_tree(path, f"came {type(array).__qualname__} of {array.dtype}")
    return array.astype(dtype, order="C", copy=False)


def _read(data: memoryview) -> Tree:
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError(f"a header of {size} bytes is announced, but {len(data)} bytes came in all")
    header = _json(data[8 : 8 + size], "header")
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    match header.pop("__metadata__", None):
        case {"format": str(format_), "tree": str(encoded)} if format_ == _FORMAT:
            arrays = _arrays(header, data[8 + size :])
            tree = _decoded(_json(encoded.encode(), "tree"), 0, arrays)
        case _:
            raise ValueError(f"the header is not that of a {_FORMAT!r}")
    if arrays:
        raise ValueError(f"the tree has no place for the array {next(iter(arrays))!r}")
    return tree


def _json(text: bytes | memoryview, what: str) -> object:
    # Python's parser accepts NaN and Infinity, which JSON lacks.
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is no JSON")

    try:
        return json.loads(bytes(text).decode(), parse_constant=refuse)
    except ValueError as error:
        raise ValueError(f"the {what} is no JSON in UTF-8: {error}") from None


def _arrays(header: Mapping[str, object], data: memoryview) -> dict[str, Array]:
    # A copy, so that the arrays are writable.
    buffer = np.array(data, np.uint8)
    arrays, start = {}, 0
    for name, entry in header.items():
        match entry:
            case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(first), int(stop)]}:
                arrays[name] = _array(kind, shape, buffer[start:stop])
            case _:
                raise ValueError(f"the array {name!r} is not described as safetensors does")
        if first != start or stop < start:
            raise ValueError(f"the array {name!r} is said to lie at {first}:{stop}, not from {start} on")
        start = stop
    if start != len(buffer):
        raise ValueError(f"{len(buffer)} bytes of arrays came, but {start} are described")
    return arrays


def _array(kind: str, shape: list[Any], data: Array) -> Array:
    dtype = _DTYPE_OF.get(kind)
    if (
        dtype is None
        or len(shape) > _MAX_DIMENSIONS
        # An exact type, because bool is a subclass of int.
        or not all(type(n) is int and 0 <= n < sys.maxsize for n in shape)
    ):
        raise ValueError(f"there is no array of {kind[:20]!r} with such a shape")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise ValueError(f"an array of {kind} {shape} does not take {len(data)} bytes")
    # For other bytes numpy's operations disagree about True and False.
    if dtype.kind == "b" and data.max(initial=0) > 1:
        raise ValueError("a bool is neither 0 nor 1")
    return data.view(dtype).reshape(shape)


def _decoded(encoded: object, depth: int, arrays: dict[str, Array]) -> Tree:
    match encoded:
        case None | bool() | int() | float():
            return encoded
        case str():
            return _valid_text(encoded)
        case list() | {"dict": dict()} if depth >= _MAX_DEPTH:
            raise ValueError(f"the tree is nested more than {_MAX_DEPTH} deep")
        case list():
            return [_decoded(child, depth + 1, arrays) for child in encoded]
        case {"dict": dict(children), **others} if not others:
            return {_valid_text(key): _decoded(child, depth + 1, arrays) for key, child in children.items()}
        case {"array": str(name), **others} if not others and name in arrays:
            return arrays.pop(name)
        case {"int": str(digits), **others} if not others:
            return int(digits, 16)
        case {"float": "nan" | "inf" | "-inf" as value, **others} if not others:
            return float(value)
    raise ValueError(f"the tree has {reprlib.repr(encoded)}, which says nothing, or names an array that is not there")


def _valid_text(text: str) -> str:
    # JSON can encode half of a surrogate pair, which is invalid text; UnicodeEncodeError is a ValueError.
    text.encode()
    return text
