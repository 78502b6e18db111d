"""Batches of any columns, for tests of what is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch
from marlflow.offline.dataset_writer import DatasetTarget

DTYPES = ("float32", "float64", "float16", "int64", "int32", "uint8", "bool")


def _arrays(rows: int, shape: tuple[int, ...], dtype: str) -> st.SearchStrategy[Array]:
    # Any bits at all, so that NaNs, infinities and negative zeros are among them.
    if dtype == "bool":
        return hnp.arrays(np.bool_, (rows, *shape))
    width = np.dtype(dtype).itemsize
    return hnp.arrays(np.uint8, (rows, *shape, width)).map(lambda bits: bits.view(dtype).reshape(rows, *shape))


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """A few batches of the same columns, of several segments each: pixels, masks, memory, odd shapes."""
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    kinds = st.tuples(shapes, st.sampled_from(DTYPES))
    columns = draw(
        st.dictionaries(st.sampled_from(["obs", "action", "action_mask", "state", "x y"]), kinds, min_size=1)
    )
    segments = draw(st.dictionaries(st.sampled_from(["bootstrap_obs", "bootstrap_mask", "memory", "agent"]), kinds))
    made = []
    for _ in range(draw(st.integers(1, 4))):
        lengths = np.array(draw(st.lists(st.integers(1, 5), max_size=3)), np.int64)
        rows = int(lengths.sum())
        made.append(
            Batch(
                {
                    **{name: draw(_arrays(rows, *kind)) for name, kind in columns.items()},
                    "reward": draw(_arrays(rows, (), "float64")),
                },
                {"length": lengths, **{name: draw(_arrays(len(lengths), *kind)) for name, kind in segments.items()}},
            )
        )
    return made


def rows(count: int, first: int = 0, **columns: Array) -> Batch:
    """One segment of `count` rows with rewards `first`, `first` + 1, ..., and the columns that the rest goes by."""
    given: Mapping[str, Array] = {
        "obs": np.arange(first, first + count, dtype=np.float32)[:, None],
        "reward": np.arange(first, first + count, dtype=np.float64),
        "version": np.full(count, 7),
        **columns,
    }
    return Batch(given, {"length": np.array([count]), "carried": np.zeros(1, bool)})


def assert_same(one: Batch, other: Batch) -> None:
    """The same names in the same order, and the same bits."""
    for left, right in ((one.columns, other.columns), (one.segments, other.segments)):
        assert list(left) == list(right)
        for name in left:
            assert (left[name].dtype, left[name].shape) == (right[name].dtype, right[name].shape), name
            assert left[name].tobytes() == right[name].tobytes(), name


def recording(folder: Path | str, run: str = "ab12") -> DatasetTarget:
    """Records policy `team` of a run in `folder`."""
    return DatasetTarget(str(folder), ["team"], run, "record")
