import pickle
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given
from hypothesis import strategies as st

from marlflow.base.encoder import Encoder, ObservationOutside
from marlflow.base.errors import ConfigInvalid
from marlflow.base.observations import layout, named
from marlflow.base.spaces import Spaces
from tests.base.nested_spaces import FLOATS, boxes, samples, slow_leaves, slow_row, trees, with_replaced
from tests.sentences import refusals

CAMERA = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (3, 3, 1), np.uint8),
        "gear": spaces.Discrete(4, start=-1),
        "speed": spaces.Box(-1.0, 1.0, (2,), np.float64),
    }
)
SEEDS = st.integers(0, 2**32 - 1)


def refused(space: spaces.Space[Any], *observations: Any) -> ObservationOutside:
    with pytest.raises(ObservationOutside) as caught:
        Encoder(space).stack(observations)
    return caught.value


@given(trees(), st.integers(1, 4), SEEDS)
def test_rows_are_what_a_slow_encoding_makes_of_each_observation(space, count: int, seed: int) -> None:
    encoder, seen = Encoder(space), samples(space, count, seed)
    rows = encoder.stack(seen)
    assert rows.shape == (count, *encoder.layout.shape)
    assert rows.dtype == encoder.layout.dtype
    expected = np.stack([slow_row(encoder.layout, space, one) for one in seen])
    assert rows.tobytes() == expected.astype(rows.dtype).tobytes()
    assert np.array_equal(encoder.stack(seen[-1:])[0], rows[-1])


@given(trees(FLOATS), st.integers(1, 3), SEEDS)
def test_rows_without_bytes_are_gymnasiums_own_flattening(space, count: int, seed: int) -> None:
    assume(not isinstance(space, spaces.Box))
    seen = samples(space, count, seed)
    expected = np.stack([spaces.flatten(space, one) for one in seen]).astype(np.float32)
    assert np.array_equal(Encoder(space).stack(seen), expected)


@given(trees(), st.integers(1, 3), SEEDS)
def test_a_layout_reads_each_leaf_back_and_bytes_bit_by_bit(space, count: int, seed: int) -> None:
    seen = samples(space, count, seed)
    found = layout(space).read(Encoder(space).stack(seen))
    for path, (leaf, _) in slow_leaves(space, seen[0]).items():
        parts = [slow_leaves(space, one)[path][1] for one in seen]
        if isinstance(leaf, spaces.Box | spaces.MultiBinary):
            assert np.array_equal(found[path], np.stack(parts).astype(found[path].dtype))
            if isinstance(leaf, spaces.Box) and leaf.dtype == np.uint8:
                assert found[path].dtype == np.uint8
        else:
            expected = np.stack([spaces.flatten(leaf, part) for part in parts])
            assert np.array_equal(found[path], expected)


def out_of_space(leaf: spaces.Space[Any], good: Any) -> list[Any]:
    wrong: list[Any] = [None, "north", np.expand_dims(good, 0), [good, good]]
    if isinstance(leaf, spaces.Discrete):
        return [*wrong, leaf.start - 1, leaf.start + leaf.n, float(good) + 0.5, np.nan]
    if isinstance(leaf, spaces.MultiDiscrete):
        return [*wrong, leaf.start - 1, leaf.start + leaf.nvec, good + 0.25]
    if isinstance(leaf, spaces.MultiBinary):
        return [*wrong, good + 2, good - 2, good.astype(float) * 0.0 + 0.5]
    values = np.asarray(good, np.float64)
    wrong.append(np.full(values.shape, np.nan))
    if leaf.dtype.kind != "f":
        wrong += [values * 0.0 + 0.5, values * 0.0 + np.inf]
    if np.isfinite(leaf.high).all():
        wrong.append(leaf.high.astype(np.float64) * (1.0 + 1e-6) + 1.0)
    if np.isfinite(leaf.low).all():
        wrong.append(leaf.low.astype(np.float64) - abs(leaf.low.astype(np.float64)) * 1e-6 - 1.0)
    return wrong


@given(trees(), st.integers(1, 4), SEEDS, st.data())
def test_what_is_not_of_its_space_is_noticed_and_the_first_is_named(space, count: int, seed: int, data) -> None:
    seen = samples(space, count, seed)
    path = data.draw(st.sampled_from(sorted(slow_leaves(space, seen[0]), key=str)))
    first = data.draw(st.integers(0, count - 1))
    for index in {first, count - 1}:
        leaf, good = slow_leaves(space, seen[index])[path]
        wrong = data.draw(st.sampled_from(range(len(out_of_space(leaf, good)))))
        seen[index] = with_replaced(seen[index], path, out_of_space(leaf, good)[wrong])
    found = refused(space, *seen)
    assert found.index == first
    assert found.reason.startswith(named(path))


@given(trees(), st.integers(1, 3), SEEDS, st.data())
def test_a_missing_part_is_noticed(space, count: int, seed: int, data) -> None:
    assume(isinstance(space, spaces.Dict | spaces.Tuple))
    seen = samples(space, count, seed)
    index = data.draw(st.integers(0, count - 1))
    path = data.draw(st.sampled_from(sorted({path[:-1] for path in slow_leaves(space, seen[0])}, key=str)))
    whole = seen[index]
    for key in path:
        whole = whole[key]
    less = dict(list(whole.items())[1:]) if isinstance(whole, dict) else whole[:-1]
    for wrong in (less, None, 3.5, np.zeros(len(whole) + 1)):
        changed = [*seen[:index], with_replaced(seen[index], path, wrong), *seen[index + 1 :]]
        found = refused(space, *changed)
        assert found.index == index
        assert found.reason.startswith(named(path))


@given(boxes(), st.integers(1, 3), SEEDS)
def test_other_dtypes_are_taken_where_they_hold_the_same_numbers(space, count: int, seed: int) -> None:
    seen = samples(space, count, seed)
    rows = Encoder(space).stack(seen)
    for other in (np.float64, np.longdouble, np.int64, np.uint64):
        with np.errstate(all="ignore"):
            cast = [one.astype(other) for one in seen]
        # Between Python's numbers, which compare exactly.
        if all(one.tolist() == same.tolist() for one, same in zip(cast, seen, strict=True)):
            assert np.array_equal(Encoder(space).stack(cast), rows)
    assert np.array_equal(Encoder(space).stack([one.tolist() for one in seen]), rows)


@pytest.mark.parametrize(
    ("space", "value", "reason"),
    [
        (spaces.Box(-1.0, 1.0, (2,)), [0.0, 3.2], "observation has 3.2 at [1], above its bound 1.0"),
        (spaces.Box(-1.0, 1.0, (1, 2)), [[-2.5, 0.0]], "observation has -2.5 at [0, 0], below its bound -1.0"),
        (spaces.Box(-np.inf, np.inf, (2,)), [0.0, np.nan], "observation has a NaN at [1]"),
        (spaces.Box(0.0, np.inf, ()), np.nan, "observation is a NaN"),
        (
            spaces.Box(0, 255, (2,), np.uint8),
            [300, -1],
            "observation has 300 at [0], above its bound 255; wrappers=clip_observations clips it, ",
        ),
        (spaces.Box(0, 255, (2,), np.uint8), [0, -1], "observation has -1 at [1], below its bound 0"),
        (spaces.Box(0, 9, (2,), np.int8), [0.5, 1], "observation has 0.5 at [0], not a whole number as int8 needs"),
        (
            spaces.Box(-np.inf, np.inf, (1,), np.float64),
            [1e300],
            "observation has 1e+300 at [0], too large for float32",
        ),
        (spaces.Box(-1.0, 1.0, (2,)), [0.0, 0.0, 0.0], "observation has shape (3,), not (2,)"),
        (spaces.Box(-1.0, 1.0, (2,)), None, "observation is None, not an array of shape (2,)"),
        (spaces.Box(-1.0, 1.0, (2,)), ["a", "b"], "observation is not made of numbers: array(['a', 'b'], dtype='<U1')"),
        (spaces.Box(-1.0, 1.0, (2,)), [[1.0], [1.0, 2.0]], "is not an array of shape (2,): [[1.0], [1.0, 2.0]]"),
        (spaces.Discrete(6), 7, "observation is 7, above its bound 5"),
        (spaces.Dict(a=spaces.Tuple([spaces.Discrete(2)])), {"a": (3,)}, "observation['a'][0] is 3, above its bound 1"),
        (spaces.Dict(a=spaces.Discrete(2)), {"b": 1}, "observation has no 'a'"),
        (spaces.Dict(a=spaces.Discrete(2)), np.zeros(3), "observation is array([0., 0., 0.]), not a dict"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), (1,), "observation has 1 entries, not 2"),
        (spaces.Tuple([spaces.Discrete(2)] * 2), 1, "observation is 1, not a tuple"),
    ],
)
def test_a_reason_says_what_came_and_what_was_expected(space, value, reason: str) -> None:
    found = refused(space, value)
    assert reason in found.reason
    assert pickle.loads(pickle.dumps(found)).reason == found.reason  # noqa: S301


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_no_whole_number_wraps_around(dtype) -> None:
    for own in (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32):
        first, last = int(np.iinfo(own).min), int(np.iinfo(own).max)
        space = spaces.Box(first, last, (1,), own)
        assert Encoder(space).stack([np.array([last]).astype(dtype)])[0, 0] == last
        assert refused(space, np.array([last + 1]).astype(dtype)).index == 0
        if dtype != np.uint64:
            assert refused(space, np.array([0], dtype), np.array([first - 1]).astype(dtype)).index == 1


def test_whole_numbers_beyond_the_largest_are_not_rounded_into_place() -> None:
    space = spaces.Box(-(2**63), 2**63 - 1, (1,), np.int64)
    assert refused(space, np.array([2.0**63])).index == 0
    assert refused(space, np.array([2**63], np.uint64)).index == 0
    exact = [np.array([2**60 + 1], np.uint64), np.array([-1], np.int64)]
    assert Encoder(space).stack(exact).tolist() == [[2**60 + 1], [-1]]


def test_bounds_hold_after_rounding_to_float32() -> None:
    space = spaces.Box(np.array([0.1, -np.inf]), np.array([0.1, np.inf]), dtype=np.float64)
    assert Encoder(space).stack([np.array([0.1, np.inf])]).tolist() == [[np.float32(0.1), np.inf]]
    single = spaces.Box(np.float32(0.1), np.float32(0.2), (1,))
    for bound in (0.1, 0.2):
        assert Encoder(single).stack([np.array([bound])])[0, 0] == np.float32(bound)
    assert "above its bound 0.1;" in refused(space, np.array([0.1 + 1e-6, 0.0])).reason
    assert refused(spaces.Box(-1e300, 1e300, (1,), np.float64), np.array([np.inf])).index == 0


def test_infinity_is_inside_open_bounds_only() -> None:
    seen = [np.array([np.inf, -np.inf], np.float32)]
    assert np.array_equal(Encoder(spaces.Box(-np.inf, np.inf, (2,))).stack(seen), seen)
    assert refused(spaces.Box(0.0, np.inf, (2,)), *seen).reason.startswith("observation has -inf at [1]")


def test_shapes_that_only_add_up_are_noticed() -> None:
    space = spaces.Box(-1.0, 1.0, (3,))
    assert refused(space, np.zeros(3), np.zeros(2), np.zeros(4)).index == 1
    assert refused(spaces.Box(-1.0, 1.0, (2, 4)), np.zeros((2, 4)), np.zeros((4, 2))).index == 1


def test_rows_are_copies() -> None:
    for space in (spaces.Box(-1.0, 1.0, (3,)), CAMERA):
        (seen,) = samples(space, 1, 0)
        rows = Encoder(space).stack([seen])
        before = rows.copy()
        for array in [seen] if isinstance(seen, np.ndarray) else [seen["camera"], seen["speed"]]:
            array[...] = 1 - array
        assert np.array_equal(rows, before)


def test_no_observations_are_no_rows() -> None:
    for space in (spaces.Box(0, 1, (3, 2), np.int8), spaces.Discrete(3), CAMERA):
        encoder = Encoder(space)
        rows = encoder.stack([])
        assert (rows.shape, rows.dtype) == ((0, *encoder.layout.shape), encoder.layout.dtype)


def test_further_keys_are_ignored() -> None:
    (seen,) = samples(CAMERA, 1, 0)
    assert np.array_equal(Encoder(CAMERA).stack([{**seen, "debug": object()}]), Encoder(CAMERA).stack([seen]))


def test_a_box_keeps_its_shape_and_its_dtype_but_for_floats() -> None:
    for dtype, kept in ((np.uint8, np.uint8), (np.int8, np.int8), (bool, bool), (np.float64, np.float32)):
        seen = Spaces(spaces.Box(0, 1, (2, 3), dtype), spaces.Discrete(2))
        assert (seen.obs_shape, seen.obs_dtype) == ((2, 3), kept)
    packed = Spaces(CAMERA, spaces.Discrete(2))
    assert (packed.obs_shape, packed.obs_dtype) == ((9 + 4 + 2 * 4,), np.uint8)


@pytest.mark.parametrize(
    ("space", "where"),
    [
        (spaces.Text(5), "observation is a Text"),
        (spaces.Dict(chat=spaces.Text(5)), "observation['chat'] is a Text"),
        (spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]), "observation[0] is a Sequence"),
        (spaces.Dict(g=spaces.Graph(spaces.Discrete(2), None)), "observation['g'] is a Graph"),
        (spaces.OneOf([spaces.Discrete(2), spaces.Discrete(3)]), "observation is a OneOf"),
        (spaces.Discrete(10**9), "observation is Discrete(1000000000): one-hot, these are 1000000000 numbers"),
        (spaces.Dict({}), "has nothing to see"),
        (spaces.Box(0.0, 1.0, (0,)), "has nothing to see"),
    ],
)
def test_what_no_policy_can_see_is_refused_by_name(space, where: str) -> None:
    seen = Spaces(space, spaces.Discrete(2))
    (problem,) = seen.problems()
    assert where in problem
    for ask in (seen.encoder, seen.layout, lambda: seen.obs_shape, lambda: seen.obs_dtype):
        assert refusals(ConfigInvalid, ask) == [problem]


def test_all_that_cannot_be_seen_is_named_at_once() -> None:
    space = spaces.Dict(a=spaces.Text(3), b=spaces.Discrete(2), c=spaces.Tuple([spaces.Sequence(spaces.Discrete(2))]))
    problems = Spaces(space, spaces.Box(-1.0, 1.0, (2,)), masked=True).problems()
    assert [problem.split(" ")[0] for problem in problems[:2]] == ["observation['a']", "observation['c'][0]"]
    assert "masks are for Discrete" in problems[2]
    assert Spaces(CAMERA, spaces.MultiDiscrete([2, 2])).problems() == []


def test_spaces_compare_and_travel() -> None:
    one = Spaces(CAMERA, spaces.Discrete(2))
    other = pickle.loads(pickle.dumps(one))  # noqa: S301
    assert other == one
    seen = samples(CAMERA, 3, 0)
    assert np.array_equal(other.encoder().stack(seen), one.encoder().stack(seen))
