"""What is written comes back bit for bit; what is not whole is not looked at; what is damaged is named."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

import marlflow as mf
from marlflow.offline import dataset_writer
from marlflow.offline.dataset import find_dataset
from marlflow.offline.dataset_writer import DatasetWriter, discard_after
from tests.offline.batches import assert_same, batches, recording, rows


@settings(max_examples=25)
@given(made=batches())
def test_whatever_is_recorded_comes_back_bit_for_bit(made: list[mf.Batch]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = DatasetWriter(recording(folder), worker=3)
        for batch in made:
            writer.write({"team": batch}, env_steps=5)
        writer.finish()
        kept = [batch for batch in made if batch.rows]
        if not kept:
            with pytest.raises(mf.ConfigInvalid, match="no files of rows"):
                find_dataset(folder, "team")
            return
        records = find_dataset(folder, "team")
        for fragment, batch in zip(records.fragments, kept, strict=True):
            assert_same(records.read(fragment), batch)
        nothing = records.nothing()
        assert (nothing.rows, list(nothing.columns)) == (0, list(kept[0].columns))
        assert_same(mf.Batch.concat([nothing, kept[0]]), kept[0])


def test_env_steps_of_fragments_without_rows_count_with_the_next(tmp_path: Path) -> None:
    writer = DatasetWriter(recording(tmp_path), worker=0)
    for count, env_steps in ((0, 10), (0, 20), (4, 3), (2, 7), (0, 50)):
        writer.write({"team": rows(count)}, env_steps)
    writer.finish()
    assert [fragment.env_steps for fragment in find_dataset(tmp_path, "team").fragments] == [33, 7]


def test_files_are_whole_or_not_there_and_none_is_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_writer, "_FRAGMENTS", 2)
    for first in (0, 100):  # the second as if the first had been killed: it never finished its last file
        writer = DatasetWriter(recording(tmp_path), worker=0)
        for number in range(5):
            writer.write_full()
            writer.write({"team": rows(1, first + number)}, 1)
    assert rewards(tmp_path) == [0, 1, 2, 3, 100, 101, 102, 103]


def rewards(folder: Path) -> list[float]:
    """Those of all rows that are recorded, one in each fragment."""
    records = find_dataset(folder, "team")
    return [records.read(fragment).columns["reward"].item() for fragment in records.fragments]


def test_a_file_holds_only_rows_of_collects_that_ended_before_another_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collect may die before the driver has its receipt; its successor then makes the same rows again."""
    monkeypatch.setattr(dataset_writer, "_FRAGMENTS", 1)
    writer = DatasetWriter(recording(tmp_path), worker=0)
    writer.write_full()
    writer.write({"team": rows(1)}, 1)
    assert not list((tmp_path / "team").iterdir())
    writer.write_full()
    assert rewards(tmp_path) == [0]


def test_what_a_run_recorded_after_its_checkpoint_is_forgotten_of_that_run_alone(tmp_path: Path) -> None:
    """Also of workers, and of policies, that the checkpoint knows nothing of."""
    for run in ("ab12", "cd34"):
        for worker in range(12):
            writer = DatasetWriter(recording(tmp_path, run), worker)
            for number in range(3):
                writer.write({"team": rows(1, 10 * worker + number)}, 1)
                writer.finish()
    (tmp_path / "other").mkdir()
    for name in ("ab12-0000-000000.rows.parquet", "ab12-0000-000000.segments.parquet"):
        (tmp_path / "other" / name).touch()
    (tmp_path / "team" / "ab12-0000-000001.rows.parquet.part").touch()
    discard_after(tmp_path, "ab12", {"team": {"0": 2, "10": 1, "4": 0}, "nobody": {"0": 9}})
    kept = [0, 1, 100]
    others = [10 * worker + number for worker in range(12) for number in range(3)]
    assert rewards(tmp_path) == [*kept, *others]
    assert not list((tmp_path / "other").iterdir())
    assert not list((tmp_path / "team").glob("*.part"))
    assert DatasetWriter(recording(tmp_path), 0).finished == {"team": {"0": 2}}


def test_a_disk_that_takes_no_more_loses_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_writer, "_FRAGMENTS", 1)
    writer = DatasetWriter(recording(tmp_path), worker=0)
    folder = tmp_path / "team"
    for number in range(4):
        writer.write({"team": rows(1, number)}, 1)
        folder.rename(tmp_path / "away")  # as good as full: nothing can be written to it
        with pytest.raises(OSError, match="No such file"):
            writer.write_full()
        (tmp_path / "away").rename(folder)
        assert not [path for path in folder.iterdir() if path.name.endswith(".part")]
        if number == 1:
            writer.finish()
    writer.finish()
    assert rewards(tmp_path) == [0, 1, 2, 3]
    assert writer.finished == {"team": {"0": 4}}


def _recorded(folder: Path) -> Path:
    writer = DatasetWriter(recording(folder), worker=0)
    for number in range(3):
        writer.write({"team": rows(500, 500 * number)}, 1)
    writer.finish()
    return folder / "team" / "ab12-0000-000000.rows.parquet"


def test_a_file_that_was_cut_short_is_named_before_anything_starts(tmp_path: Path) -> None:
    path = _recorded(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(mf.ConfigInvalid, match=r"ab12-0000-000000\.rows\.parquet is damaged: ArrowInvalid"):
        find_dataset(tmp_path, "team")


def test_a_file_of_rows_without_its_segments_is_named(tmp_path: Path) -> None:
    _recorded(tmp_path).with_name("ab12-0000-000000.segments.parquet").unlink()
    with pytest.raises(mf.ConfigInvalid, match=r"rows\.parquet is damaged: FileNotFoundError"):
        find_dataset(tmp_path, "team")


def test_another_parquet_file_is_no_file_of_rows(tmp_path: Path) -> None:
    path = _recorded(tmp_path)
    path.write_bytes(path.with_name("ab12-0000-000000.segments.parquet").read_bytes())
    with pytest.raises(mf.ConfigInvalid, match="damaged: KeyError"):
        find_dataset(tmp_path, "team")


def test_rows_that_changed_on_the_disk_are_never_read_as_others(tmp_path: Path) -> None:
    """A changed byte is an error that names the file, or it was one that says nothing: all rows come out the same."""
    path = _recorded(tmp_path)
    records, data = find_dataset(tmp_path, "team"), path.read_bytes()
    before = [records.read(fragment) for fragment in records.fragments]
    noticed, pages = 0, len(data) - int.from_bytes(data[-8:-4], "little") - 8
    for place in range(5, pages, pages // 60):
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        path.write_bytes(damaged)
        try:
            after = [records.read(fragment) for fragment in records.fragments]
        except mf.RecordsDamaged as error:
            noticed += "ab12-0000-000000.rows.parquet, fragment " in str(error)
        else:
            for one, other in zip(before, after, strict=True):
                assert_same(one, other)
    assert noticed > 40
