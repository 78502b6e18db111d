"""Weights of frozen entries in memory and in files, against a dict that has them all in memory."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import SnapshotLost
from marlflow.batches.items import Weights
from marlflow.driver.stored_members import StoredMembers
from marlflow.runs.checkpoint_format import tensors_file
from marlflow.runs.checkpoints import CheckpointStore
from marlflow.runs.saved_policies import frozen_file
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.population import StoredEntries
from marlflow.sampling.protocol import FrozenPolicy

SIZE = 100
BYTES_OF_FOUR = 4 * 700


def frozen(number: int) -> FrozenPolicy:
    flat = np.random.default_rng(number).standard_normal(SIZE).astype(np.float32)
    return FrozenPolicy("main", Weights(number, flat), {"epsilon": number / 100})


def assert_same(one: FrozenPolicy, other: FrozenPolicy) -> None:
    assert (one.policy, one.weights.version, one.scheduled) == (other.policy, other.weights.version, other.scheduled)
    np.testing.assert_array_equal(one.weights.flat, other.weights.flat)


class Objects:
    """An object store whose references are lost with their machine."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.puts = 0

    def put(self, value: Any) -> int:
        self.puts += 1
        self.held[self.puts] = value
        return self.puts

    @property
    def place(self) -> InlinePlace:
        return InlinePlace(fetch=self.held.__getitem__, put=self.put)


what = st.sampled_from(["add", "read", "deal", "remove", "reload"])


@given(st.lists(st.tuples(what, st.integers(0, 9)), max_size=40))
def test_every_entry_is_found_and_memory_is_bounded(tmp_path_factory: pytest.TempPathFactory, drawn: Any) -> None:
    store = StoredMembers(tmp_path_factory.mktemp("run"), InlinePlace(), BYTES_OF_FOUR)
    expected: dict[str, FrozenPolicy] = {}
    for step, number in drawn:
        name = f"main@{number}"
        if step == "add" and name not in expected:
            store.add(name, frozen(number))
            expected[name] = frozen(number)
        elif name in expected and step == "remove":
            store.remove(name)
            del expected[name]
            assert not store.file(name).exists()
        elif name in expected:
            store.mark_dealt([name] if step == "deal" else [])
            assert_same(store[name] if step != "reload" else store.reload(name), expected[name])
        assert set(store) == set(expected)
        assert store.bytes_in_memory <= BYTES_OF_FOUR
    for name, entry in expected.items():
        assert_same(store[name], entry)


def test_the_least_recently_dealt_leave_memory_first(tmp_path: Path) -> None:
    objects = Objects()
    store = StoredMembers(tmp_path, objects.place, BYTES_OF_FOUR)
    for number in range(3):
        store.add(f"main@{number}", FrozenPolicy("main", Weights(number, objects.put(frozen(number).weights.flat))))
    assert objects.puts == 3
    store.mark_dealt(["main@0"])
    for number in range(3, 5):
        store.add(f"main@{number}", FrozenPolicy("main", Weights(number, objects.put(frozen(number).weights.flat))))
    before = objects.puts
    _ = store["main@0"], store["main@4"]
    assert objects.puts == before, "these were dealt or added last"
    _ = store["main@1"]
    assert objects.puts == before + 1


def test_weights_that_are_lost_are_put_again_from_disk(tmp_path: Path) -> None:
    objects = Objects()
    store = StoredMembers(tmp_path, objects.place, 10**9)
    store.add("main@1", FrozenPolicy("main", Weights(1, objects.put(frozen(1).weights.flat))))
    lost = store["main@1"].weights.flat
    objects.held.clear()
    found = StoredEntries(store, ["main@1"]).reload("main@1").weights.flat
    assert found != lost
    np.testing.assert_array_equal(objects.held[found], frozen(1).weights.flat)
    assert store["main@1"].weights.flat == found, "whoever asks next gets it, too"


def test_a_checkpoint_shares_the_files_and_a_resumed_store_reads_none_before_it_is_dealt(tmp_path: Path) -> None:
    objects = Objects()
    store = StoredMembers(tmp_path, InlinePlace(), 10**9)
    checkpoints = CheckpointStore(tmp_path / "checkpoints", keep=1)
    for number in range(3):
        store.add(f"main@{number}", frozen(number))
    path = checkpoints.write(1, store.contents(), [], {}, None)
    for name in store:
        assert (path / tensors_file(frozen_file(name))).stat().st_ino == store.file(name).stat().st_ino
    # Entries from after the checkpoint belong to no run any more, although their ids are used again.
    store.add("main@3", frozen(3))
    resumed = StoredMembers(tmp_path, objects.place, 10**9)
    resumed.restore(checkpoints.load())
    assert list(resumed) == ["main@0", "main@1", "main@2"]
    assert not resumed.file("main@3").exists()
    assert (objects.puts, resumed.bytes_in_memory) == (0, 0)
    np.testing.assert_array_equal(objects.held[resumed["main@2"].weights.flat], frozen(2).weights.flat)
    resumed.add("main@3", FrozenPolicy("main", Weights(9, objects.put(frozen(9).weights.flat))))
    assert checkpoints.load().read(frozen_file("main@2")), "the checkpoint is as it was"


def test_without_room_on_the_disk_weights_stay_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "league").write_text("a file, where a folder was to be")
    store = StoredMembers(tmp_path, InlinePlace(), 0)
    with caplog.at_level(logging.WARNING, "marlflow"):
        for number in range(3):
            store.add(f"main@{number}", frozen(number))
    assert len([one for one in caplog.records if "stay in memory" in one.getMessage()]) == 1
    for number in range(3):
        assert_same(store[f"main@{number}"], frozen(number))
    assert all(isinstance(content, bytes) for content in store.contents().values())


def test_a_file_that_was_deleted_is_named_unless_its_weights_are_in_memory(tmp_path: Path) -> None:
    store = StoredMembers(tmp_path, InlinePlace(), BYTES_OF_FOUR)
    for number in range(6):
        store.add(f"main@{number}", frozen(number))
    for number in (0, 5):
        store.file(f"main@{number}").unlink()
    assert_same(store["main@5"], frozen(5))
    for read in (store.contents, lambda: store["main@0"]):
        with pytest.raises(SnapshotLost, match=r"main@0 cannot be read: .*main%400\.safetensors'; .* marlflow resume"):
            read()
    store.remove("main@0")
    contents = store.contents()
    assert isinstance(contents[frozen_file("main@5")], bytes)
    assert contents[frozen_file("main@4")] == store.file("main@4")
