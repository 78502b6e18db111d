"""Serialization of run state without pickle: arrays as safetensors, the rest as JSON in its header.

A *tree* is None, a bool, an int of any size, a float (NaN and infinities too), a str, a list of trees, a dict of trees
by str, or a numpy array (any shape; bool, integers and floats), nested at most 64 deep. Reading one never executes
code. An array's name in the file (https://github.com/huggingface/safetensors#format) is its place in the tree, as a
JSON pointer (RFC 6901).

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

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable

Tree: TypeAlias = Any

_DEEPEST = 64
_MOST_DIMENSIONS = 64
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
    """Serialize `tree` as one safetensors file; raises TypeError, with the path, for anything that is no tree.

    Equal trees give equal bytes. Tuples come back as lists, subclasses of numbers and str as the plain type.
    """
    arrays: dict[str, Array] = {}
    noted = json.dumps(_noted(tree, "", 0, arrays), separators=(",", ":"))
    header: dict[str, Any] = {"__metadata__": {"format": _FORMAT, "tree": noted}}
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
    """Restore the tree given to `to_bytes`, with writable arrays; raises CheckpointUnusable for other bytes.

    The arrays share one buffer. Bytes changed within an array go unnoticed, so store a hash too.
    """
    try:
        return _read(memoryview(data))
    except (ValueError, RecursionError) as error:
        raise CheckpointUnusable([f"these bytes are not what marlflow keeps: {error}"]) from None


def differences_of_shape(expected: Tree, came: Tree, path: str = "") -> Iterator[str]:
    """Yield where `came` does not match `expected`: a missing key, or a value of another type.

    Extra keys are allowed, lists may have any content, and an expected None matches anything.
    """
    kinds = (int, float) if isinstance(expected, float) else (type(expected),)
    if expected is None:
        return
    if isinstance(came, bool) != isinstance(expected, bool) or not isinstance(came, kinds):
        yield f"{path or 'it'} is {reprlib.repr(came)}, where {reprlib.repr(expected)} could stand"
    elif isinstance(expected, dict) and isinstance(came, dict):
        for key, value in expected.items():
            if key in came:
                yield from differences_of_shape(value, came[key], _below(path, key))
            else:
                yield f"{_below(path, key)} is missing"


def _noted(node: Tree, path: str, depth: int, arrays: dict[str, Array]) -> object:
    """Encode `node` for JSON; its arrays go to `arrays`, C-contiguous and little-endian."""
    match node:
        case None | bool():
            return node
        case int():
            return node if -(2**63) <= node < 2**63 else {"int": hex(node)}
        case float():
            return node if math.isfinite(node) else {"float": repr(float(node))}
        case str():
            return _encodable(node, path)
        case list() | tuple():
            _check_depth(depth, path)
            return [_noted(child, f"{path}/{at}", depth + 1, arrays) for at, child in enumerate(node)]
        case dict():
            _check_depth(depth, path)
            children = ((_key(key, path), child) for key, child in node.items())
            return {"dict": {key: _noted(child, _below(path, key), depth + 1, arrays) for key, child in children}}
        case np.ndarray():
            arrays[path] = _plain(node, path)
            return {"array": path}
    raise _refused(path, f"came {type(node).__qualname__}")


def _refused(path: str, what_came: str) -> TypeError:
    return TypeError(
        f"at {path or 'the top'!r}: expected None, a bool, int, float, text, list, dict by text or numpy array of "
        f"bools, integers or floats, but {what_came}"
    )


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _refused(path, f"came the text {text!r}, which Unicode does not allow") from None
    return text


def _key(key: object, path: str) -> str:
    if not isinstance(key, str):
        raise _refused(path, f"came a dict with the key {key!r}")
    return _encodable(key, path)


def _below(path: str, key: str) -> str:
    return f"{path}/{key.replace('~', '~0').replace('/', '~1')}"


def _check_depth(depth: int, path: str) -> None:
    if depth >= _DEEPEST:
        raise _refused(path, f"it is nested more than {_DEEPEST} deep; does it hold itself?")


def _plain(array: Array, path: str) -> Array:
    dtype = array.dtype.newbyteorder("<")
    # A subclass, such as a masked array, holds more than its numbers.
    if type(array) is not np.ndarray or dtype.str not in _NAME_OF:
        raise _refused(path, f"came {type(array).__qualname__} of {array.dtype}")
    return array.astype(dtype, order="C", copy=False)


def _read(data: memoryview) -> Tree:
    size = int.from_bytes(data[:8], "little")
    if size > len(data) - 8:
        raise ValueError(f"a header of {size} bytes is announced, but {len(data)} bytes came in all")
    header = _json(data[8 : 8 + size], "header")
    if not isinstance(header, dict):
        raise ValueError("the header is no JSON object")
    match header.pop("__metadata__", None):
        case {"format": str(format_), "tree": str(noted)} if format_ == _FORMAT:
            arrays = _arrays(header, data[8 + size :])
            tree = _tree(_json(noted.encode(), "tree"), 0, arrays)
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
    """Return the arrays named in `header`, which must cover `data` in order without gap or overlap."""
    # A environment, so that the arrays are writable.
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
        or len(shape) > _MOST_DIMENSIONS
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


def _tree(noted: object, depth: int, arrays: dict[str, Array]) -> Tree:
    """Decode `noted`, taking each array out of `arrays`."""
    match noted:
        case None | bool() | int() | float():
            return noted
        case str():
            return _valid(noted)
        case list() | {"dict": dict()} if depth >= _DEEPEST:
            raise ValueError(f"the tree is nested more than {_DEEPEST} deep")
        case list():
            return [_tree(child, depth + 1, arrays) for child in noted]
        case {"dict": dict(children), **others} if not others:
            return {_valid(key): _tree(child, depth + 1, arrays) for key, child in children.items()}
        case {"array": str(name), **others} if not others and name in arrays:
            return arrays.pop(name)
        case {"int": str(digits), **others} if not others:
            return int(digits, 16)
        case {"float": "nan" | "inf" | "-inf" as value, **others} if not others:
            return float(value)
    raise ValueError(f"the tree has {reprlib.repr(noted)}, which says nothing, or names an array that is not there")


def _valid(text: str) -> str:
    # JSON can encode half of a surrogate pair, which is invalid text; UnicodeEncodeError is a ValueError.
    text.encode()
    return text
