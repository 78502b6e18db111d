"""Runs that make films of their evaluated policies: which, by whom, and that nothing else of the run depends on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.base.files import description_of
from marlflow.env.games import cliff
from marlflow.observe.report import ResumePoint
from marlflow.watch import film_maker, run_films
from marlflow.watch.films import newest_film
from tests.driver.kept_runs import assert_equal, kept, without_times
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL_PPO, policies, small_run

av = pytest.importorskip("av")

EVERY = 400


def run(films: mf.RunFilms | None = None, **changes: Any) -> mf.Experiment:
    """A run with an evaluation after its first round, at each EVERY env steps, and at its end, beside checkpoints."""
    sinks = {} if films is None else {"films": films}
    return small_run(
        evaluation=mf.Evaluation(EVERY, episodes=2),
        checkpoint=mf.CheckpointConfig(EVERY, keep=9),
        log=mf.Log(EVERY, console="none", tensorboard=False, sinks=sinks),
        **{"env_steps": 2 * EVERY, **changes},
    )


def warnings_in(folder: Path) -> list[str]:
    lines = (folder / "run.log").read_text(encoding="utf-8").splitlines()
    return [line.partition(" WARNING ")[2] for line in lines if " WARNING " in line]


def test_a_run_with_films_has_the_numbers_of_one_without_and_a_film_of_its_last_evaluation(tmp_path: Path) -> None:
    with_films = mf.train(run(mf.RunFilms(frames=12, longest_side=64)), tmp_path / "with")
    without = mf.train(run(), tmp_path / "without")
    assert_equal(without_times(reports(without.run_dir)), without_times(reports(with_films.run_dir)), "reports")
    assert_equal(kept(without.run_dir), kept(with_films.run_dir))
    film = newest_film(with_films.run_dir)
    assert film is not None
    assert (film.path, film.env_steps) == (with_films.run_dir / "films" / "800.webp", 800)
    described = json.loads(description_of(film.path).read_text(encoding="utf-8"))
    assert (described["frames"], max(described["size"]), described["mode"]) == (12, 64, "as_learned")
    assert not warnings_in(with_films.run_dir)


def test_a_resumed_run_with_films_is_the_same_bit_for_bit(tmp_path: Path, makers: list[Maker]) -> None:
    resumes_exactly(run(mf.RunFilms()), tmp_path, at=EVERY)
    assert makers


def test_an_environment_that_cannot_be_drawn_ends_no_run_and_is_told_once(tmp_path: Path) -> None:
    cliffs = {"env": mf.Env(cliff.parallel_env, num_envs=2), "policies": policies(walker=SMALL_PPO), "mapping": None}
    result = mf.train(run(mf.RunFilms(share=1.0), **cliffs), tmp_path)
    assert result.metrics["faults"]["callbacks_failed"] == 0
    (warning,) = warnings_in(tmp_path)
    assert "no film of this run: environment" in warning
    assert "cannot be drawn" in warning
    assert newest_film(tmp_path) is None


def test_the_newest_films_are_kept_and_unfinished_ones_removed(tmp_path: Path) -> None:
    mf.train(run(), tmp_path)
    folder = tmp_path / "films"
    folder.mkdir()
    for number, name in enumerate(["100.webp", "200.gif", "300.webp.part", "mine.webp"]):
        (folder / name).write_bytes(b"")
        os.utime(folder / name, ns=(number, number))
    (folder / "100.webp.json").write_text("{}", encoding="utf-8")
    settings = {**asdict(mf.RunFilms(format="gif", frames=3, longest_side=32, keep=2)), "mode": "greedy"}
    film = film_maker.make_film(tmp_path, settings)
    assert film == folder / "800.gif"
    assert sorted(path.name for path in folder.iterdir()) == ["200.gif", "800.gif", "800.gif.json", "mine.webp"]


class Maker:
    """A process that makes a film: alive until it is waited for, or ended."""

    def __init__(self, *_: object, **__: object) -> None:
        self.code: int | None = None
        self.was_killed = False

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.was_killed, self.code = True, -signal.SIGKILL

    def wait(self, timeout: float | None = None) -> int:
        self.code = self.code or 0
        return self.code


@pytest.fixture
def makers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Maker]]:
    """The processes that were begun, in order, none of which makes anything."""
    begun: list[Maker] = []

    def begin(*_: object, **__: object) -> Maker:
        begun.append(Maker())
        return begun[-1]

    monkeypatch.setattr(run_films.subprocess, "Popen", begin)
    return begun


def films(tmp_path: Path, share: float = 1.0) -> mf.RunFilms:
    made = mf.RunFilms(share=share)
    made.began(mf.RunInfo("a run", tmp_path, {}, "inline"))
    return made


def evaluation(env_steps: int) -> mf.EvaluationEvent:
    return mf.EvaluationEvent(env_steps, {}, 0.0, 1.0)


def end(error: str | None = None, stopped_by: str = "") -> mf.RunEnd:
    return mf.RunEnd(stopped_by, {}, error)  # type: ignore[typeddict-item]


def test_a_film_begins_with_the_first_checkpoint_after_an_evaluation(tmp_path: Path, makers: list[Maker]) -> None:
    made = films(tmp_path)
    made.saved(tmp_path / "100")
    assert not makers
    made.evaluated(evaluation(200))
    assert not makers
    made.saved(tmp_path / "200")
    made.saved(tmp_path / "300")
    assert len(makers) == 1
    made.evaluated(evaluation(400))
    made.saved(tmp_path / "400")  # while the first is being made
    assert len(makers) == 1
    makers[0].code = 0
    made.saved(tmp_path / "500")
    assert len(makers) == 2


def test_films_take_no_more_than_their_share_of_the_time_but_the_last_is_made(
    tmp_path: Path, makers: list[Maker], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(run_films.time, "monotonic", lambda: now[0])
    made = films(tmp_path, share=0.1)
    counts = []
    for seconds in (0.0, 10.0, 80.0, 11.0):  # the first takes 10 seconds, so the next begins 90 seconds after its end
        now[0] += seconds
        made.evaluated(evaluation(int(now[0])))
        made.saved(tmp_path / str(int(now[0])))
        counts.append(len(makers))
        makers[-1].code = 0
    assert counts == [1, 1, 1, 2]
    now[0] += 10.0  # the second takes as long
    made.evaluated(evaluation(500))
    made.saved(tmp_path / "500")
    assert len(makers) == 2
    made.ended(end())
    assert len(makers) == 3
    assert makers[-1].code == 0


def test_a_film_takes_the_time_until_it_is_finished_not_until_the_next_checkpoint(
    tmp_path: Path, makers: list[Maker], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr(run_films.time, "monotonic", lambda: now[0])
    made = films(tmp_path, share=0.1)
    for number in range(4):
        made.evaluated(evaluation(number))
        made.saved(tmp_path / str(number))
        now[0] += 5.0
        makers[-1].code = 0
        made.reported({})  # type: ignore[typeddict-item]
        now[0] += 295.0
    assert len(makers) == 4


def test_a_process_that_cannot_end_itself_is_ended(
    tmp_path: Path, makers: list[Maker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = [0.0]
    monkeypatch.setattr(run_films.time, "monotonic", lambda: now[0])
    made = films(tmp_path)
    made.evaluated(evaluation(1))
    made.saved(tmp_path / "1")
    now[0] = 140.0
    made.reported({})  # type: ignore[typeddict-item]
    assert not makers[0].was_killed
    now[0] = 151.0
    made.reported({})  # type: ignore[typeddict-item]
    assert makers[0].was_killed
    assert "it took more than limit_s=120 seconds" in caplog.text


def test_a_process_that_is_killed_at_once_was_not_too_slow(
    tmp_path: Path, makers: list[Maker], caplog: pytest.LogCaptureFixture
) -> None:
    made = films(tmp_path)
    made.evaluated(evaluation(1))
    made.saved(tmp_path / "1")
    makers[0].code = -signal.SIGKILL
    made.reported({})  # type: ignore[typeddict-item]
    assert "no film of this run: its process ended with -9" in caplog.text


def test_a_run_that_is_resumed_at_its_end_gets_its_last_film(tmp_path: Path, makers: list[Maker]) -> None:
    made = mf.RunFilms()
    made.began(mf.RunInfo("a run", tmp_path, {}, "inline", resumed=ResumePoint(800, 2)))
    made.evaluated(evaluation(800))
    made.ended(end())
    assert [maker.code for maker in makers] == [0]


def test_what_is_not_finished_is_ended_with_a_run_that_fails_or_is_interrupted(
    tmp_path: Path, makers: list[Maker]
) -> None:
    for stopped_by, error, evaluated_at in (
        ("", "it broke", 100),
        ("interrupted", None, 100),
        ("stop.time_s=1", None, 50),
    ):
        made = films(tmp_path)
        made.evaluated(evaluation(evaluated_at))
        made.saved(tmp_path / "100")
        made.ended(end(error, stopped_by))
    assert [maker.was_killed for maker in makers] == [True, True, True]


def test_the_film_of_an_evaluation_before_the_last_checkpoint_is_waited_for(
    tmp_path: Path, makers: list[Maker]
) -> None:
    made = films(tmp_path)
    made.evaluated(evaluation(100))
    made.saved(tmp_path / "100")
    made.ended(end())
    assert [(maker.was_killed, maker.code) for maker in makers] == [(False, 0)]


def test_after_three_failures_no_film_is_tried_and_only_the_first_is_told(
    tmp_path: Path, makers: list[Maker], caplog: pytest.LogCaptureFixture
) -> None:
    made = films(tmp_path)
    for number in range(6):
        made.evaluated(evaluation(number))
        made.saved(tmp_path / str(number))
        makers[-1].code = -signal.SIGALRM
    assert len(makers) == 3
    assert [record.message for record in caplog.records] == [
        "no film of this run: it took more than limit_s=120 seconds"
    ]


def test_only_films_in_the_folder_itself_are_found(tmp_path: Path) -> None:
    mine, others = tmp_path / "mine", tmp_path / "others"
    for folder in (mine / "films", others):
        folder.mkdir(parents=True)
        (folder / "100.webp").write_bytes(b"")
        (folder / "100.webp.json").write_text('{"video": "100.webp", "checkpoint": 100}', encoding="utf-8")
    found = newest_film(mine)
    assert found is not None
    assert found.path == mine / "films" / "100.webp"
    shutil.rmtree(mine / "films")
    (mine / "films").symlink_to(others)
    assert newest_film(mine) is None
