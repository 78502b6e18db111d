import errno
import hashlib
import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marlflow.base.errors import CheckpointFailed, CheckpointUnusable
from marlflow.runs.checkpoints import CheckpointStore
from tests.runtime.kept_folders import FILES, NOTES, contents, file_of, flip, numbers_in, read_all, rewrite, written

# -- what was written is there ---------------------------------------------------------------------------------------


def test_the_newest_comes_back_as_it_was_written(folder: Path) -> None:
    written(folder, 0, 100, 2000)
    found = CheckpointStore(folder, 1).load()
    assert (found.path, found.env_steps, found.notes, found.passed_over) == (folder / "2000", 2000, NOTES, ())
    assert read_all(found) == contents(2000)
    assert read_all(CheckpointStore(folder, 1).at(100)) == contents(100)


@given(
    st.dictionaries(st.text(st.characters(), min_size=1), st.binary(max_size=9), max_size=5),
    st.recursive(st.none() | st.integers() | st.text(), lambda i: st.lists(i) | st.dictionaries(st.text(), i)),
)
@settings(max_examples=15)
def test_files_and_notes_of_any_name_come_back_and_stay_in_their_folder(files, notes) -> None:
    odd = {
        "..": b"1",
        ".": b"2",
        "a/../b": b"3",
        "/etc/x": b"4",
        "checkpoint.json": b"5",
        "é" * 100: b"6",
        "é" * 101: b"7",
    }
    with tempfile.TemporaryDirectory() as base:
        CheckpointStore(Path(base) / "all", 1).write(5, files | odd, [], notes, 0.5)
        found = CheckpointStore(Path(base) / "all", 1).load()
        assert read_all(found) == files | odd
        assert (found.notes, found.metric) == (notes, 0.5)
        everything = [path for path in Path(base).rglob("*") if path.is_file()]
        assert {path.parent for path in everything} == {found.path}
        assert len(everything) == len(files | odd) + 1


def test_the_manifest_is_plain_json_with_the_hash_of_each_file(folder: Path) -> None:
    written(folder, 7)
    manifest = json.loads((folder / "7" / "checkpoint.json").read_text())
    assert (manifest["format"], manifest["env_steps"], manifest["notes"]) == (5, 7, NOTES)
    for name, data in contents(7).items():
        assert manifest["files"][name] == {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def test_notes_come_back_as_json_has_them(folder: Path) -> None:
    CheckpointStore(folder, 1).write(7, {}, [], {10: (1, 2), 9: None}, None)
    assert CheckpointStore(folder, 1).load().notes == {"10": [1, 2], "9": None}


@pytest.mark.parametrize("figure", [float("nan"), float("inf"), float("-inf")])
def test_a_figure_that_is_not_finite_counts_as_none(folder: Path, figure: float) -> None:
    CheckpointStore(folder, 1).write(7, FILES, [], NOTES, figure)
    assert CheckpointStore(folder, 1).load().metric is None


def test_looking_changes_nothing_on_disk(folder: Path) -> None:
    written(folder, 100)
    (folder / ".partial-200").mkdir()
    (folder / "100").rename(folder / ".replaced-100")
    assert read_all(CheckpointStore(folder, 1).load()) == contents(100)
    assert {path.name for path in folder.iterdir()} == {".partial-200", ".replaced-100"}


def test_what_cannot_be_asked_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointStore(folder, 0)
    checkpoints = CheckpointStore(folder, 1)
    with pytest.raises(ValueError, match=r"\['workers'\] cannot be shared: nothing was written"):
        checkpoints.write(100, {}, ["workers"], None, None)
    checkpoints.write(100, FILES, [], None, None)
    with pytest.raises(ValueError, match=r"\['rows'\] cannot be shared: .*100 does not have them"):
        checkpoints.write(200, {}, ["workers", "rows"], None, None)
    with pytest.raises(ValueError, match=r"\['workers'\] are given, and shared"):
        checkpoints.write(200, FILES, ["workers"], None, None)
    assert numbers_in(folder) == [100]


# -- rows are shared -------------------------------------------------------------------------------------------------


def test_shared_files_are_links_with_the_hash_that_is_known(folder: Path) -> None:
    checkpoints = written(folder, 100)
    rows = file_of(folder, 100, "rows")
    # Were they read again, their hash would now be another.
    flip(rows)
    checkpoints.write(200, {"new": b"rows"}, ["rows.a/b.0-10"], NOTES, None)
    checkpoints.write(300, {}, ["rows.a/b.0-10", "new"], NOTES, None)
    for number in (200, 300):
        assert file_of(folder, number, "rows").stat().st_ino == rows.stat().st_ino
        manifest = json.loads((folder / str(number) / "checkpoint.json").read_text())
        assert manifest["files"]["rows.a/b.0-10"]["sha256"] == hashlib.sha256(bytes(range(256))).hexdigest()
    flip(rows)
    assert read_all(CheckpointStore(folder, 1).load()) == {"rows.a/b.0-10": bytes(range(256)), "new": b"rows"}


def test_shared_files_outlive_the_checkpoint_that_wrote_them(folder: Path) -> None:
    checkpoints = written(folder, 100, keep=1)
    for number in (200, 300, 400):
        checkpoints.write(number, {}, ["rows.a/b.0-10"], NOTES, None)
    assert numbers_in(folder) == [400]
    assert read_all(CheckpointStore(folder, 1).load()) == {"rows.a/b.0-10": bytes(range(256))}


def test_where_links_are_refused_files_are_copied(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(source))

    checkpoints = written(folder, 100)
    monkeypatch.setattr(os, "link", refuse)
    checkpoints.write(200, {}, ["rows.a/b.0-10"], NOTES, None)
    assert file_of(folder, 200, "rows").stat().st_ino != file_of(folder, 100, "rows").stat().st_ino
    assert read_all(CheckpointStore(folder, 1).load()) == {"rows.a/b.0-10": bytes(range(256))}


def test_a_shared_file_that_was_cut_short_is_not_handed_on(folder: Path) -> None:
    checkpoints = written(folder, 100)
    os.truncate(file_of(folder, 100, "rows"), 10)
    with pytest.raises(CheckpointFailed, match="has 10 bytes, but 256 were written"):
        checkpoints.write(200, {}, ["rows.a/b.0-10"], NOTES, None)
    assert numbers_in(folder) == [100]


def test_going_on_shares_from_the_one_that_was_gone_on_from(folder: Path) -> None:
    checkpoints = written(folder, 100)
    checkpoints.write(200, {"rows": b"other line"}, [], NOTES, None)
    again = CheckpointStore(folder, 5)
    again.continue_from(again.at(100))
    again.write(150, {}, ["rows.a/b.0-10"], NOTES, None)
    newest = CheckpointStore(folder, 5).load()
    assert (newest.env_steps, read_all(newest)) == (150, {"rows.a/b.0-10": bytes(range(256))})


# -- which are kept --------------------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(-3, 3), min_size=1, max_size=7), st.integers(1, 4))
def test_the_newest_and_the_best_are_kept(figures: list[int | None], keep: int) -> None:
    with tempfile.TemporaryDirectory() as base:
        for number, figure in enumerate(figures):
            CheckpointStore(Path(base), keep).write(number, {"driver": b"."}, [], None, figure)
            best = None
            for other, rated in enumerate(figures[: number + 1]):
                if rated is not None and (best is None or rated >= figures[best]):
                    best = other
            newest = range(max(0, number + 1 - keep), number + 1)
            assert numbers_in(Path(base)) == sorted({*newest} | ({best} if best is not None else set()))


def test_one_that_was_passed_over_neither_counts_nor_stays(folder: Path) -> None:
    written(folder, 100, 200, 300)
    flip(file_of(folder, 300, "workers"))
    checkpoints = CheckpointStore(folder, keep=2)
    found = checkpoints.load()
    assert [path for path, _ in found.passed_over] == [folder / "300"]
    checkpoints.continue_from(found)
    checkpoints.write(250, FILES, [], NOTES, None)
    assert numbers_in(folder) == [200, 250]


def test_one_that_was_passed_over_counts_once_it_is_written_anew(folder: Path) -> None:
    written(folder, 100, 200, 300)
    flip(file_of(folder, 300, "workers"))
    checkpoints = CheckpointStore(folder, keep=2)
    checkpoints.continue_from(checkpoints.load())
    for number in (300, 400):
        checkpoints.write(number, contents(number), [], NOTES, None)
    assert numbers_in(folder) == [300, 400]


def test_one_of_another_format_is_left_alone(folder: Path) -> None:
    written(folder, 100)
    rewrite(folder / "100", format=9, marlflow="9.9")
    written(folder, 200, 300, keep=1)
    assert numbers_in(folder) == [100, 300]
    with pytest.raises(CheckpointUnusable, match=r"format is 9, written by marlflow 9\.9; .*reads format 5"):
        CheckpointStore(folder, 1).at(100)
