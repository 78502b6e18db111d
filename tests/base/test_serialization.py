import json
import math
import struct
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree, from_bytes, to_bytes

DTYPES = ["?", *(f"{end}{kind}{width}" for end in "<>" for kind in "iu" for width in (1, 2, 4, 8)), "<f2", ">f4", "<f8"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3))
)
LEAVES = st.none() | st.booleans() | st.integers(-(2**140), 2**140) | st.floats() | st.text() | ARRAYS
TREES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=12)

EXAMPLE: Tree = {
    "a/b.c~": [1, 2.5, math.nan, -0.0, None, True, 2**200, "é", np.array([True, False])],
    "": {"array": np.arange(6, dtype=np.float32).reshape(2, 3)},
    "float": {"float": "nan"},
}
WRITTEN = to_bytes(EXAMPLE)


def same(one: Tree, other: Tree) -> bool:
    """Equal to the bit, the order of dicts and the type of every leaf included."""
    if isinstance(one, list | tuple):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    if isinstance(one, np.ndarray):
        plain = one.astype(one.dtype.newbyteorder("="))
        return (plain.dtype, plain.shape, plain.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, float) and not math.isnan(one):
        return isinstance(other, float) and struct.pack("d", one) == struct.pack("d", other)
    return type(one) is type(other) and (one == other or (isinstance(one, float) and math.isnan(other)))


def arrays_in(tree: Tree, path: str = "") -> dict[str, np.ndarray]:
    if isinstance(tree, np.ndarray):
        return {path: tree}
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    found: dict[str, np.ndarray] = {}
    for key, child in children:
        found |= arrays_in(child, f"{path}/{str(key).replace('~', '~0').replace('/', '~1')}")
    return found


def as_file(header: Any, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def with_tree(noted: str, data: bytes = b"", **arrays: Any) -> bytes:
    return as_file({"__metadata__": {"format": "marlflow tree 1", "tree": noted}, **arrays}, data)


def entry(dtype: str, shape: Any, start: int, stop: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@given(TREES)
def test_a_tree_comes_back_to_the_bit_and_its_arrays_can_be_written_to(tree) -> None:
    back = from_bytes(to_bytes(tree))
    assert same(tree, back)
    for array in arrays_in(back).values():
        assert array.flags.writeable
        assert array.flags.aligned
        array[...] = 1


@given(TREES)
def test_what_is_written_is_a_safetensors_file_with_arrays_named_by_their_place(tree) -> None:
    data = to_bytes(tree)
    read, expected = safetensors.numpy.load(data), arrays_in(tree)
    assert int.from_bytes(data[:8], "little") % 8 == 0
    assert read.keys() == expected.keys()
    assert all(same(expected[name], read[name]) for name in read)


@given(TREES)
def test_equal_trees_give_equal_bytes_through_a_memoryview_as_well(tree) -> None:
    data = to_bytes(tree)
    assert to_bytes(from_bytes(memoryview(b"ahead" + data)[5:])) == data


@pytest.mark.parametrize("dtype", ["<i8", ">i8"])
def test_arrays_in_other_orders_are_kept_by_their_values(dtype: str) -> None:
    grid = np.arange(24, dtype=dtype).reshape(2, 3, 4)
    for view in (
        grid.T,
        grid[:, ::-1, ::2],
        grid[1, 2, 3:],
        grid[0, 0, ::-1],
        np.asfortranarray(grid),
        np.broadcast_to(grid[0], (2, 3, 4)),
    ):
        assert np.array_equal(from_bytes(to_bytes([view]))[0], view)
    assert grid.dtype.str == dtype


def test_arrays_share_no_memory_with_what_they_came_from() -> None:
    data = bytearray(to_bytes(np.arange(4)))
    back = from_bytes(data)
    data[:] = bytes(len(data))
    assert back.tolist() == [0, 1, 2, 3]


def test_tuples_and_subclasses_come_back_plain() -> None:
    back = from_bytes(to_bytes((np.float64(0.1), (np.str_("a"), ()), np.int64(3), np.float32(0.5), np.bool_(True))))
    assert same([0.1, ["a", []], 3, 0.5, True], back)


def test_a_whole_number_may_have_any_size() -> None:
    for number in (2**63 - 1, 2**63, -(2**63) - 1, 1 << 20_000, -(1 << 20_000)):
        assert from_bytes(to_bytes([number])) == [number]


HOLDS_ITSELF: list[Any] = []
HOLDS_ITSELF.append(HOLDS_ITSELF)


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"a": [0, {1}]}, "/a/1"),
        ({"a/b": {"c~": object()}}, "/a~1b/c~0"),
        ({"a": {3: 1}}, "/a"),
        ([np.longdouble(3)], "/0"),
        ([np.complex64(3)], "/0"),
        ([b"bytes"], "/0"),
        ([np.array([1j])], "/0"),
        ([np.array([None])], "/0"),
        ([np.array(["text"])], "/0"),
        ([np.zeros(1, np.longdouble)], "/0"),
        ([np.ma.array([1], mask=[True])], "/0"),
        (["\ud800"], "/0"),
        ({"a": {"\udfff": 1}}, "/a"),
        ({"a": HOLDS_ITSELF}, "/a" + 63 * "/0"),
        (1j, "the top"),
    ],
)
def test_what_is_no_tree_is_refused_with_the_path_to_it(tree, where: str) -> None:
    with pytest.raises(TypeError) as caught:
        to_bytes(tree)
    assert str(caught.value).startswith(f"at {where!r}: expected None, a bool")


def test_a_tree_is_64_deep_at_most_in_both_directions() -> None:
    deep: Tree = 7
    for _ in range(64):
        deep = {"in": deep}
    assert from_bytes(to_bytes(deep)) == deep
    with pytest.raises(TypeError, match="more than 64 deep"):
        to_bytes([deep])
    with pytest.raises(CheckpointUnusable, match="more than 64 deep"):
        from_bytes(with_tree("[" * 65 + "]" * 65))


def test_what_is_cut_short_or_too_long_is_refused() -> None:
    for data in (*(WRITTEN[:length] for length in range(len(WRITTEN))), WRITTEN + b"\0"):
        with pytest.raises(CheckpointUnusable):
            from_bytes(data)


def tree_or_refusal(data: bytes) -> None:
    """Any bytes give a tree, which can be kept again, or CheckpointUnusable."""
    try:
        tree = from_bytes(data)
    except CheckpointUnusable:
        return
    assert same(tree, from_bytes(to_bytes(tree)))


def test_a_flip_of_any_bit_gives_a_tree_or_a_refusal() -> None:
    for at in range(8 * len(WRITTEN)):
        flipped = bytearray(WRITTEN)
        flipped[at // 8] ^= 1 << at % 8
        tree_or_refusal(bytes(flipped))


@given(st.binary(), st.integers(0, 2**64 - 1))
def test_any_bytes_give_a_tree_or_a_refusal(data: bytes, claimed: int) -> None:
    tree_or_refusal(data)
    tree_or_refusal(as_file(data))
    tree_or_refusal(claimed.to_bytes(8, "little") + data)


WORDS = ("__metadata__", "format", "tree", "marlflow tree 1", "dtype", "shape", "data_offsets", "BOOL", "F16", "array")
SAID = st.sampled_from(WORDS) | st.text(max_size=2)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SAID,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(SAID, inner, max_size=3),
    max_leaves=8,
)
KINDS = st.sampled_from(["BOOL", "U8", "F16", "F64", "BF16"]) | JSON
SIZES = st.integers(-1, 4) | st.just(2**62) | JSON
ENTRIES = st.fixed_dictionaries(
    {"dtype": KINDS, "shape": st.lists(SIZES, max_size=3) | JSON, "data_offsets": st.lists(SIZES, max_size=3) | JSON}
)
NOTED = st.recursive(
    JSON | st.sampled_from([{"array": "a"}, {"array": "b"}, {"int": "0xf"}, {"int": "f" * 5000}, {"float": "inf"}]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.fixed_dictionaries({"dict": st.dictionaries(SAID, inner, max_size=3)})
    ),
    max_leaves=5,
)


@given(NOTED, st.dictionaries(st.sampled_from(["a", "b"]), ENTRIES | JSON), st.binary(max_size=8))
def test_any_json_in_the_header_gives_a_tree_or_a_refusal(noted, arrays: dict[str, Any], data: bytes) -> None:
    tree_or_refusal(with_tree(json.dumps(noted), data, **arrays))


ONE = {"a": entry("U8", [1], 0, 1)}
HOSTILE = {
    "no_header": as_file(b""),
    "header_beyond_the_end": (2**63).to_bytes(8, "little") + b"{}",
    "not_utf8": as_file(b'{"\xff": 1}'),
    "header_is_a_list": as_file([]),
    "header_nests": as_file(b"[" * 100_000),
    "tree_nests": with_tree("[" * 100_000),
    "tree_nests_whole": with_tree("[" * 400 + "]" * 400),
    "array_names_nest": as_file(b'{"a":' * 50_000),
    "other_format": as_file({"__metadata__": {"format": "marlflow tree 2", "tree": "1"}}),
    "no_tree": as_file({"__metadata__": {"format": "marlflow tree 1"}}),
    "tree_is_no_text": as_file({"__metadata__": {"format": "marlflow tree 1", "tree": [1]}}),
    "long_number": with_tree("1" * 10_000),
    "not_a_number": with_tree("NaN"),
    "words_in_hexadecimal": with_tree('{"int": "0xgg"}'),
    "unknown_float": with_tree('{"float": "1.0"}'),
    "two_things_at_once": with_tree('{"float": "nan", "int": "0x1"}'),
    "nothing_at_all": with_tree("{}"),
    "half_a_pair_in_a_text": with_tree(r'"\ud800"'),
    "half_a_pair_in_a_key": with_tree(r'{"dict": {"\udc00": 1}}'),
    "surrogates": with_tree('{"dict": {"a": "\ud800"}}'),
    "array_is_not_there": with_tree('{"array": "b"}', b"\0", **ONE),
    "array_without_a_place": with_tree("1", b"\0", **ONE),
    "array_in_two_places": with_tree('[{"array": "a"}, {"array": "a"}]', b"\0", **ONE),
    "arrays_overlap": with_tree('[{"array": "a"}, {"array": "b"}]', b"\0", **ONE, b=entry("U8", [1], 0, 1)),
    "a_gap_between": with_tree('[{"array": "a"}, {"array": "b"}]', b"\0\0\0", **ONE, b=entry("U8", [1], 2, 3)),
    "begins_elsewhere": with_tree('{"array": "a"}', b"\0", a=entry("U8", [1], 7, 1)),
    "backwards": with_tree(
        '[{"array": "a"}, {"array": "b"}]', b"\0", a=entry("U8", [0], 0, -1), b=entry("U8", [1], -1, 1)
    ),
    "ends_beyond_the_data": with_tree('{"array": "a"}', b"\0", a=entry("U8", [1], 0, 9)),
    "an_array_and_more": with_tree('{"array": "a", "int": "0x1"}', b"\0", **ONE),
    "more_data_than_arrays": with_tree('{"array": "a"}', b"\0\0", **ONE),
    "huge_shape": with_tree('{"array": "a"}', b"\0", a=entry("U8", [2**40], 0, 1)),
    "huge_shape_and_end": with_tree('{"array": "a"}', b"\0", a=entry("U8", [2**40], 0, 2**40)),
    "shape_that_wraps": with_tree('{"array": "a"}', b"", a=entry("U8", [2**32, 2**32], 0, 0)),
    "empty_but_too_wide": with_tree('{"array": "a"}', b"", a=entry("F64", [0, 2**62], 0, 0)),
    "beyond_all_sizes": with_tree('{"array": "a"}', b"", a=entry("F64", [0, 2**70], 0, 0)),
    "too_many_dimensions": with_tree('{"array": "a"}', b"\0", a=entry("U8", [1] * 65, 0, 1)),
    "a_hundred_thousand_dimensions": with_tree('{"array": "a"}', b"\0", a=entry("U8", [sys.maxsize] * 100_000, 0, 1)),
    "negative": with_tree('{"array": "a"}', b"\0", a=entry("U8", [-1, -1], 0, 1)),
    "negative_end": with_tree('{"array": "a"}', b"\0", a=entry("U8", [0], 0, -1)),
    "fraction": with_tree('{"array": "a"}', b"\0", a=entry("U8", [1.0], 0, 1)),
    "objects": with_tree('{"array": "a"}', bytes(8), a=entry("O", [1], 0, 8)),
    "half_an_item": with_tree('{"array": "a"}', b"\0\0\0", a=entry("F32", [1], 0, 3)),
    "bool_of_2": with_tree('{"array": "a"}', b"\2", a=entry("BOOL", [1], 0, 1)),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_bytes_are_refused_in_little_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointUnusable, match="these bytes are not what marlflow keeps"):
            from_bytes(data)
        assert tracemalloc.get_traced_memory()[1] < 40 * len(data) + 100_000
    finally:
        tracemalloc.stop()
