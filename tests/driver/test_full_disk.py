"""A disk that takes no more, by the limit that the system sets on the size of a file: what is lost, and what not."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

import marlflow as mf
from marlflow.driver import train as train_module
from marlflow.driver.run import Run
from marlflow.offline.dataset import find_dataset
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.saved_runs import newest
from tests.driver.watching import reports
from tests.runtime.small_runs import policies, small_run

ROUND, ROUNDS = 80, 30
LARGEST = 24 * 1024  # bytes: of checkpoints every file is smaller, and metrics.jsonl becomes larger


def run(**changes: object) -> mf.Experiment:
    made = small_run(
        env_steps=ROUND * ROUNDS,
        policies=policies(team=mf.PPO(batch_agent_steps=200, epochs=1, minibatch_agent_steps=100)),
        mapping=[mf.Rule("*", "team")],
        checkpoint=mf.CheckpointConfig(every_env_steps=10 * ROUND),
        log=mf.Log(every_env_steps=ROUND, console="plain", tensorboard=False),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


@contextmanager
def no_file_beyond(size: int) -> Iterator[Callable[[], None]]:
    """Writing beyond it raises OSError, in this process, from the start of a run until what this gives is called."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    write_configuration = train_module._write

    def begin(files: Mapping[str, str], run_dir: Path) -> None:
        write_configuration(files, run_dir)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))

    def lift() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    train_module._write = begin
    try:
        yield lift
    finally:
        lift()
        train_module._write = write_configuration


def test_a_run_that_cannot_write_does_not_start(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        with pytest.raises(
            mf.ConfigInvalid, match=r"the run's directory: .* cannot be made or written to: File too large"
        ):
            mf.train(run(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_a_run_that_cannot_write_its_configuration_does_not_start(tmp_path: Path) -> None:
    (tmp_path / "experiment.json").mkdir()
    with pytest.raises(mf.ConfigInvalid, match=r"experiment.json cannot be written: .*Is a directory"):
        mf.train(run(), tmp_path)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    """The env steps of all reports."""
    where = tmp_path_factory.mktemp("whole")
    mf.train(run(), where)
    assert os.path.getsize(where / "metrics.jsonl") > LARGEST
    sizes = [path.stat().st_size for path in newest(where).path.iterdir()]
    assert max(sizes) < LARGEST
    return [report["env_steps"] for report in reports(where)]


def test_reports_that_cannot_be_written_are_faults_and_the_run_is_done(
    whole: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with no_file_beyond(LARGEST):
        result = mf.train(run(faults=mf.Faults(reports_failed=100)), tmp_path)
    found = [report["env_steps"] for report in reports(tmp_path)]
    assert result.stopped_by == f"stop.env_steps={ROUND * ROUNDS}"
    assert 0 < result.metrics["faults"]["reports_failed"] < ROUNDS
    assert found == whole[: len(found)]
    assert newest(tmp_path).env_steps == ROUND * ROUNDS
    assert notes_of(newest(tmp_path)).reports == len(found)
    assert "metrics.jsonl: it could not be written; reports_failed 1" in capsys.readouterr().out


def test_beyond_the_budget_the_run_ends_with_a_checkpoint_from_which_it_resumes(
    whole: list[int], tmp_path: Path
) -> None:
    with no_file_beyond(LARGEST), pytest.raises(mf.BudgetExceeded, match=r"metrics.jsonl: File too large; free space"):
        mf.train(run(faults=mf.Faults(reports_failed=2)), tmp_path)
    kept, written = newest(tmp_path), len(reports(tmp_path))
    assert kept.env_steps < ROUND * ROUNDS
    mf.resume(run(), tmp_path)
    found = [report["env_steps"] for report in reports(tmp_path)]
    assert found == [*whole[:written], *(steps for steps in whole if steps > kept.env_steps)]


def test_space_that_is_freed_in_time_costs_nothing(
    whole: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Run.report
    with no_file_beyond(LARGEST // 8) as lift:

        def report(run: Run) -> None:
            if run.budget.spent["reports_failed"] == 3:
                lift()
            real(run)

        monkeypatch.setattr(Run, "report", report)
        mf.train(run(checkpoint=mf.CheckpointConfig(every_env_steps=None)), tmp_path)
    assert [report["env_steps"] for report in reports(tmp_path)] == whole


@pytest.mark.usefixtures("drawn_curves")
def test_tensorboard_and_drawings_end_nothing(tmp_path: Path) -> None:
    made = run(
        log=mf.Log(every_env_steps=5 * ROUND, console="none", tensorboard=True, trace=True),
        stop=replace(run().stop, env_steps=10 * ROUND),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
        faults=mf.Faults(reports_failed=100, checkpoints_failed=100),
    )
    with no_file_beyond(100), pytest.raises(mf.CheckpointFailed):
        mf.train(made, tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".part", ".png"))]
    events = next(tmp_path.glob("events.out.tfevents.*"))
    assert events.stat().st_size == 0


def test_recorded_rows_wait_for_room_and_no_checkpoint_counts_on_them_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = run(record=mf.Record(), log=mf.Log(every_env_steps=ROUND, console="none", tensorboard=False, jsonl=False))
    made = replace(
        made, checkpoint=mf.CheckpointConfig(every_env_steps=4 * ROUND), faults=mf.Faults(records_failed=100)
    )
    mf.train(made, tmp_path / "whole")
    real, freed = Run.report, list[bool]()
    with no_file_beyond(4_000) as lift:

        def report(run: Run) -> None:
            if run.budget.spent["checkpoints_failed"] == 2 and not freed:
                freed.append(True)
                assert not list((tmp_path / "full" / "checkpoints").glob("[0-9]*"))
                lift()
            real(run)

        monkeypatch.setattr(Run, "report", report)
        result = mf.train(made, tmp_path / "full")
    faults = result.metrics["faults"]
    assert (faults["checkpoints_failed"], faults["records_failed"] > 0) == (2, True)
    rows = [
        sorted(reward for part in records.fragments for reward in records.read(part).columns["reward"].tolist())
        for records in (find_dataset(tmp_path / where / "record", "team") for where in ("whole", "full"))
    ]
    assert rows[0] == rows[1]
