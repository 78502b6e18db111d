import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.errors import CheckpointUnusable
from marlflow.runs.checkpoints import CheckpointStore
from tests.runtime.kept_folders import contents, file_of, flip, read_all, rewrite, written
from tests.sentences import refusals

# -- what is not whole is passed over ----------------------------------------------------------------------------------


def assert_passed_over(folder: Path, why: str = "") -> None:
    """The one before 200 is used, and it is said why."""
    found = CheckpointStore(folder, 1).load()
    assert (found.env_steps, read_all(found)) == (100, contents(100))
    ((path, said),) = found.passed_over
    assert path == folder / "200"
    assert why in said
    with pytest.raises(CheckpointUnusable, match=r"checkpoint 200 in .* cannot be used: .*; others: 100"):
        CheckpointStore(folder, 1).at(200)


@contextmanager
def pair() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as base:
        written(Path(base), 100, 200)
        yield Path(base)


@given(st.data())
def test_one_that_was_cut_short_anywhere_is_passed_over(data: st.DataObject) -> None:
    with pair() as folder:
        path = data.draw(st.sampled_from(sorted(p for p in (folder / "200").iterdir() if p.stat().st_size)))
        os.truncate(path, data.draw(st.integers(0, path.stat().st_size - 1)))
        assert_passed_over(folder)


@given(st.data())
def test_one_with_a_bit_flipped_anywhere_is_passed_over(data: st.DataObject) -> None:
    with pair() as folder:
        path = data.draw(st.sampled_from(sorted(p for p in (folder / "200").iterdir() if p.stat().st_size)))
        flip(path, data.draw(st.integers(0, path.stat().st_size - 1)), data.draw(st.integers(0, 7)))
        assert_passed_over(folder)


@pytest.mark.parametrize("start", ["learner", "rows", "workers", "driver", "empty", "checkpoint.json"])
def test_one_with_a_file_missing_is_passed_over(folder: Path, start: str) -> None:
    written(folder, 100, 200)
    file_of(folder, 200, start).unlink()
    assert_passed_over(folder, "missing")


def test_one_that_grew_is_passed_over(folder: Path) -> None:
    written(folder, 100, 200)
    with open(file_of(folder, 200, "workers"), "ab") as file:
        file.write(b"more")
    assert_passed_over(folder, "has 304 bytes, not 300")


def test_an_older_one_that_is_not_whole_is_not_spoken_of(folder: Path) -> None:
    written(folder, 100, 200)
    file_of(folder, 100, "checkpoint.json").write_bytes(b"{")
    assert CheckpointStore(folder, 1).load().passed_over == ()


def test_if_nothing_is_whole_each_is_listed_with_its_reason(folder: Path) -> None:
    written(folder, 100, 200)
    flip(file_of(folder, 100, "workers"))
    file_of(folder, 200, "checkpoint.json").write_bytes(b"{")
    damaged, no_json, advice = refusals(CheckpointUnusable, CheckpointStore(folder, 1).load)
    assert str(folder / "100") in damaged
    assert "'workers' is damaged" in damaged
    assert str(folder / "200") in no_json
    assert "checkpoint.json is damaged" in no_json
    assert "start a new run" in advice


def test_where_there_is_none_it_is_said(folder: Path) -> None:
    with pytest.raises(CheckpointUnusable, match=r"there is no checkpoint in .*: start a new run"):
        CheckpointStore(folder, 1).load()
    with pytest.raises(CheckpointUnusable, match=r"checkpoint 5 in .* cannot be used: missing; others: none"):
        CheckpointStore(folder, 1).at(5)


def test_a_file_that_changed_since_it_was_opened_is_refused(folder: Path) -> None:
    found = written(folder, 100).load()
    flip(file_of(folder, 100, "workers"))
    with pytest.raises(CheckpointUnusable, match=r"has changed while it was read: .*'workers' is damaged"):
        found.read("workers")
    with pytest.raises(CheckpointUnusable, match="has no file 'other'"):
        found.read("other")


# -- hostile folders -------------------------------------------------------------------------------------------------


def entry(data: bytes) -> dict[str, Any]:
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


@pytest.mark.parametrize("name", ["../secret", "../../secret", "..", "/etc/hostname", "secret\0", "\ud800", "x" * 9999])
def test_a_name_in_the_manifest_leads_nowhere(folder: Path, name: str) -> None:
    written(folder, 100, 200)
    for secret in (folder / "secret", folder.parent / "secret"):
        secret.write_bytes(b"secret")
    rewrite(folder / "200", files={name: entry(b"secret")})
    assert_passed_over(folder, "is missing")


def test_a_link_out_of_the_folder_is_not_followed(folder: Path) -> None:
    written(folder, 100, 200)
    outside = folder.parent / "outside"
    path = file_of(folder, 200, "workers").rename(outside)
    file_of(folder, 200, "driver").with_name("workers.safetensors").symlink_to(path)
    assert_passed_over(folder, "is a symbolic link")


def test_a_linked_manifest_is_not_followed(folder: Path) -> None:
    written(folder, 100, 200)
    path = file_of(folder, 200, "checkpoint.json").rename(folder.parent / "outside")
    (folder / "200" / "checkpoint.json").symlink_to(path)
    assert_passed_over(folder, "is a symbolic link")


def test_a_linked_checkpoint_is_not_followed(folder: Path) -> None:
    written(folder, 100, 200)
    (folder / "200").rename(folder.parent / "outside")
    (folder / "200").symlink_to(folder.parent / "outside")
    assert_passed_over(folder, "is a symbolic link")


@pytest.mark.parametrize("start", ["workers", "checkpoint.json"])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_not_waited_for(folder: Path, start: str, make: Callable[[Path], None]) -> None:
    written(folder, 100, 200)
    path = file_of(folder, 200, start)
    path.unlink()
    make(path)
    assert_passed_over(folder, "is no regular file")


def test_a_checkpoint_under_another_number_is_passed_over(folder: Path) -> None:
    written(folder, 100)
    shutil.copytree(folder / "100", folder / "200")
    assert_passed_over(folder, "does not describe a checkpoint of 200 env steps")


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format":' * 50_000,
        b'{"format": NaN}',
        b'{"format": 1}',
        b"1" * 9999,
        b"null",
    ],
    ids=range(9),
)
def test_a_manifest_of_anything_is_passed_over(folder: Path, text: bytes) -> None:
    written(folder, 100, 200)
    (folder / "200" / "checkpoint.json").write_bytes(text)
    assert_passed_over(folder)


@pytest.mark.parametrize(
    "changed",
    [
        {"env_steps": "200"},
        {"order": None},
        {"metric": "best"},
        {"files": []},
        {"files": {"a": {}}},
        {"files": {"a": {"bytes": -1, "sha256": ""}}},
        {"files": {"a": {"bytes": "1", "sha256": ""}}},
        {"files": {"a": {"bytes": 1, "sha256": 1}}},
        {"files": {"driver": {"bytes": 2**62, "sha256": ""}}},
        {"format": "1"},
        {"format": None},
    ],
    ids=str,
)
def test_a_manifest_of_other_types_is_passed_over(folder: Path, changed: Mapping[str, Any]) -> None:
    written(folder, 100, 200)
    rewrite(folder / "200", **changed)
    assert_passed_over(folder)


def test_what_is_no_checkpoint_is_not_looked_at(folder: Path) -> None:
    written(folder, 100)
    for name in ("0200", "-300", "４００", "5e2", "600.old", ".partial-700", "9" * 30):
        shutil.copytree(folder / "100", folder / name)
    found = CheckpointStore(folder, 1).load()
    assert (found.env_steps, found.passed_over) == (100, ())
