import errno
import functools
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from marlflow.base.errors import CheckpointFailed
from marlflow.runs.checkpoints import CheckpointStore
from tests.runtime.kept_folders import FILES, NOTES, contents, file_of, numbers_in, read_all, written

# -- a crash, or a full disk, at any moment ----------------------------------------------------------------------------

DISK_CALLS = ("fsync", "rename", "link", "mkdir", "rmdir", "unlink")


class Died(BaseException):
    """An exception that nothing catches, like the kill of a process."""


class Disk:
    """Stands before every call that changes the disk, and calls `before` with how many there were."""

    def __init__(self, before: Callable[[int], None]) -> None:
        self.calls, self._before = 0, before

    @contextmanager
    def watched(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in DISK_CALLS:
                patch.setattr(os, name, functools.partial(self._call, getattr(os, name)))
            yield

    def _call(self, real: Callable[..., None], *args: Any, **named: Any) -> None:
        self.calls += 1
        self._before(self.calls - 1)
        real(*args, **named)


def resumed(folder: Path) -> CheckpointStore:
    checkpoints = CheckpointStore(folder, keep=2)
    checkpoints.continue_from(checkpoints.load())
    return checkpoints


def write_more(checkpoints: CheckpointStore, number: int) -> None:
    """Some files are shared, some are new."""
    shared = ["rows.a/b.0-10", "workers"]
    files = {name: data for name, data in contents(number).items() if name not in shared}
    checkpoints.write(number, {**files, "again": b"."}, shared, NOTES, None)


def one_more(folder: Path, number: int) -> None:
    """The results of a run that is resumed and stops at `number`."""
    write_more(resumed(folder), number)


def assert_old_or_new(folder: Path, number: int) -> None:
    found = CheckpointStore(folder, 1).load()
    assert found.passed_over == ()
    if "again" in found.names:
        assert (found.env_steps, read_all(found)) == (number, {**contents(number), "again": b"."})
    else:
        assert (found.env_steps, read_all(found)) == (200, contents(200))


def test_everything_is_synced_before_it_gets_its_name_and_the_name_after(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, 100)
    done: list[tuple[Path, ...]] = []
    rename = os.rename

    def noted_rename(source: Path, target: Path) -> None:
        rename(source, target)
        done.append((source, target))

    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append((Path(f"/proc/self/fd/{descriptor}").readlink(),)))
    monkeypatch.setattr(os, "rename", noted_rename)
    one_more(folder, 200)
    partial = folder / ".partial-200"
    *before, renamed, after = done
    assert (renamed, after) == ((partial, folder / "200"), (folder,))
    assert before[-1] == (partial,)
    linked = {file_of(folder, 200, start).name for start in ("rows", "workers")}
    assert {path.name for (path,) in before[:-1]} == {path.name for path in (folder / "200").iterdir()} - linked


@pytest.mark.parametrize("number", [200, 300])
def test_at_every_moment_of_a_write_the_newest_is_whole(folder: Path, number: int) -> None:
    written(folder, 100, 200)
    disk = Disk(lambda _: assert_old_or_new(folder, number))
    with disk.watched():
        one_more(folder, number)
    assert disk.calls > 15
    assert "again" in CheckpointStore(folder, 1).load().names
    assert numbers_in(folder) == ([100, 200] if number == 200 else [200, 300])


def calls_of(folder: Path, number: int) -> int:
    disk = Disk(lambda _: None)
    with disk.watched():
        one_more(folder, number)
    shutil.rmtree(folder)
    return disk.calls


@pytest.mark.parametrize("number", [200, 300])
def test_a_run_that_dies_twice_goes_on_and_leaves_nothing_behind(folder: Path, number: int) -> None:
    written(folder, 100, 200)
    for first in range(calls_of(folder, number)):
        written(folder, 100, 200)
        for at in (first, first // 2):
            with Disk(functools.partial(dies, at)).watched(), pytest.raises(Died):
                one_more(folder, number)
            assert_old_or_new(folder, number)
        one_more(folder, number)
        assert "again" in CheckpointStore(folder, 1).load().names
        assert numbers_in(folder) == ([100, 200] if number == 200 else [200, 300])
        shutil.rmtree(folder)


def dies(at: int, call: int) -> None:
    if call == at:
        raise Died


def fails(at: int, for_good: bool, call: int) -> None:
    if call == at or (for_good and call > at):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("for_good", [False, True])
@pytest.mark.parametrize("number", [200, 300])
def test_a_write_that_fails_anywhere_leaves_what_was_there(folder: Path, number: int, for_good: bool) -> None:
    written(folder, 100, 200)
    for at in range(calls_of(folder, number)):
        written(folder, 100, 200)
        checkpoints, said = resumed(folder), ""
        try:
            with Disk(functools.partial(fails, at, for_good)).watched():
                write_more(checkpoints, number)
        except CheckpointFailed as failure:
            said = str(failure)
        assert_old_or_new(folder, number)
        found = CheckpointStore(folder, 1).load()
        if said:
            assert "No space left on device" in said
            assert f"last whole one is {folder / str(found.env_steps)}." in said
            # If nothing can be undone any more, the new one may stay although it may not survive a power cut.
            assert for_good or ("again" not in found.names and numbers_in(folder) == [100, 200])
        else:
            assert "again" in found.names
        write_more(checkpoints, 400)
        assert numbers_in(folder) == [found.env_steps, 400]
        assert read_all(CheckpointStore(folder, 1).load()) == {**contents(400), "again": b"."}
        shutil.rmtree(folder)


def test_a_disk_that_is_full_is_said_and_the_rest_stays(folder: Path) -> None:
    checkpoints = written(folder, 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(
            CheckpointFailed, match=r"of 200 env steps could not be written to .*; the last whole one is"
        ):
            checkpoints.write(200, {"small": b".", "large": bytes(200_000)}, [], NOTES, None)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert numbers_in(folder) == [100]
    assert read_all(checkpoints.load()) == contents(100)
    checkpoints.write(200, {"large": bytes(200_000)}, ["workers"], NOTES, None)
    assert CheckpointStore(folder, 1).load().env_steps == 200


def test_where_no_folder_can_be_made_it_is_said(folder: Path) -> None:
    folder.parent.write_text("a file where the run's folder should be")
    with pytest.raises(CheckpointFailed, match=r"Not a directory.*; it would be the first"):
        CheckpointStore(folder, 1).write(100, FILES, [], NOTES, None)
