"""`marlflow train -m`: which job failed, how all of them ended, and where their folders are."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from marlflow.cli import sweep_jobs as command
from marlflow.cli.sweep import Sweep
from marlflow.cli.sweep_records import JobRecord, table, write_csv
from marlflow.driver.train import Result
from tests.cli.conftest import Marlflow
from tests.cli.test_train import FAILING, SHORT

SWEEP = ("train", "-m", *SHORT, "hydra.sweep.dir=several")


def test_a_job_that_is_refused_is_named_and_the_others_run(marlflow: Marlflow, tmp_path: Path) -> None:
    said = marlflow(*SWEEP, "+rollouts.num_workers=2,0,1", "objective=policies.cart.return_mean")
    assert said.code == 2
    errors = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert errors == ["error: job 1 (rollouts.num_workers=0): rollouts.num_workers must be at least 1, not 0"]
    head, *jobs = [line.split() for line in said.out.splitlines() if not line.startswith("[")]
    assert head == ["job", "settings", "objective", "cart", "return", "ended", "by", "folder"]
    assert [job[:2] for job in jobs] == [[str(job), f"rollouts.num_workers={n}"] for job, n in enumerate((2, 0, 1))]
    assert [job[-2:] for job in jobs] == [
        ["stop.env_steps=400", "several/0"],
        ["error", "several/1"],
        ["stop.env_steps=400", "several/2"],
    ]
    assert float(jobs[0][2]) == pytest.approx(float(jobs[0][3]), abs=0.005)
    assert len(jobs[1]) == 4
    assert (tmp_path / "several" / "2" / "metrics.jsonl").is_file()


def test_a_job_that_fails_is_named_behind_its_own_traceback(marlflow: Marlflow) -> None:
    said = marlflow(*SWEEP, FAILING, "seed=1,2", "evaluation.final_episodes=1")
    assert said.code == 1
    lines = said.err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert "Traceback (most recent call last):" in lines[: lines.index(errors[0])]
    assert [line[: len("error: job 0 (seed=1): environment ")] for line in errors] == [
        "error: job 0 (seed=1): environment ",
        "error: job 1 (seed=2): environment ",
    ]


def test_the_last_evaluation_stands_in_the_table(marlflow: Marlflow) -> None:
    said = marlflow(*SWEEP, "seed=1,2", "evaluation.final_episodes=1")
    assert said.code == 0
    assert "job  settings  cart eval  ended by " in said.out


def test_what_hydra_cannot_compose_for_a_later_job_is_one_error(marlflow: Marlflow) -> None:
    said = marlflow(*SWEEP, "env=cartpole_team,simple_tga")
    assert (said.code, said.err) == (2, "error: there is no env 'simple_tga'; did you mean 'simple_tag'?\n")


def test_an_interrupted_job_is_in_the_table_and_the_last(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(result: Result) -> float | None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "outcome", interrupted)
    said = marlflow(*SWEEP, "seed=1,2")
    assert (said.code, said.err) == (130, "interrupted\n")
    head, *jobs = [line.split() for line in said.out.splitlines() if not line.startswith("[")]
    assert head[0] == "job"
    assert [job[0] for job in jobs] == ["0"]


def test_the_table_keeps_small_objectives_apart_and_the_file_says_which_they_are(tmp_path: Path) -> None:
    jobs = [
        JobRecord(number, [f"objective=learners.cart.loss.{name}"], str(tmp_path / name), ended_by="x", objective=value)
        for number, (name, value) in enumerate([("policy", 0.001234), ("value", 0.001235)])
    ]
    assert [line.split()[2] for line in table(jobs).splitlines()[1:]] == ["0.001234", "0.001235"]
    write_csv(jobs, tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["objective of the job"], row["objective"]) for row in rows] == [
        ("learners.cart.loss.policy", "0.001234"),
        ("learners.cart.loss.value", "0.001235"),
    ]


def test_a_job_that_was_refused_leaves_the_row_of_the_one_that_ran_there(tmp_path: Path) -> None:
    ran = JobRecord(1, ["seed=2"], str(tmp_path / "seed_2"), ended_by="stop.env_steps=9", objective=3.5, env_steps=9)
    write_csv([ran], tmp_path)
    again = JobRecord(0, ["seed=2"], str(tmp_path / "seed_2"))
    again.fail("there is a run already", is_refused=True)
    new = JobRecord(1, ["seed=3"], str(tmp_path / "seed_3"))
    new.fail("no such agent", is_refused=True)
    write_csv([again, new], tmp_path)
    with (tmp_path / "sweep.csv").open(newline="") as file:
        rows = {row["folder"]: (row["objective"], row["error"]) for row in csv.DictReader(file)}
    assert rows == {"seed_2": ("3.5", ""), "seed_3": ("", "no such agent")}


@pytest.mark.slow
def test_a_key_given_once_and_then_as_a_list_varies(marlflow: Marlflow, tmp_path: Path) -> None:
    rate = "policies.cart.algorithm.learning_rate"
    said = marlflow(*SWEEP, f"{rate}=5e-4", f"{rate}=1e-3,3e-3", "policy@policies.cart=ppo")
    assert said.code == 0, said.err
    with (tmp_path / "several" / "sweep.csv").open(newline="") as file:
        assert [float(row[rate]) for row in csv.DictReader(file)] == [1e-3, 3e-3]


@pytest.mark.slow
def test_values_of_another_class_may_be_listed(marlflow: Marlflow, tmp_path: Path) -> None:
    key = "policies.cart.algorithm.optimizer"
    kinds = "{_target_: torch.optim.SGD},{_target_: torch.optim.RMSprop}"
    said = marlflow(*SWEEP, f"{key}={kinds}", "policy@policies.cart=ppo")
    assert said.code == 0, said.err
    with (tmp_path / "several" / "sweep.csv").open(newline="") as file:
        found = [row[key].removeprefix("{_target_:torch.optim.") for row in csv.DictReader(file)]
    assert found == ["SGD}", "RMSprop}"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe\x00bad", "several/sweep.csv cannot be read: 'utf-8' codec can't decode byte 0xff"),
        (b"foreign,thing\n1,2\n", "several/sweep.csv is not of a sweep: it has no column 'folder'; move it away, or"),
        (b"my own notes\n", "several/sweep.csv is not of a sweep: it has no column 'folder'"),
        (b"job,folder\n1,x,extra\n", "several/sweep.csv is damaged: a row has more or fewer cells"),
        (b"job,folder,seed\n1,x\n", "several/sweep.csv is damaged: a row has more or fewer cells"),
        (None, "several/sweep.csv cannot be read: [Errno 21] Is a directory"),
    ],
)
def test_a_foreign_or_damaged_table_is_refused_before_any_job(
    content: bytes | None, problem: str, marlflow: Marlflow, tmp_path: Path
) -> None:
    path = tmp_path / "several" / "sweep.csv"
    if content is None:
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.write_bytes(content)
    said = marlflow(*SWEEP, "seed=1,2")
    assert said.code == 2
    assert problem in said.err
    assert [entry.name for entry in path.parent.iterdir()] == ["sweep.csv"]
    assert content is None or path.read_bytes() == content


def test_without_any_objective_no_job_is_said_to_be_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = OmegaConf.create({"objective": "policies.cart.eval_return_mean"})
    jobs = [
        JobRecord(number, ["seed=1"], str(tmp_path), ended_by="stop.env_steps=9", env_steps=9) for number in range(2)
    ]
    Sweep((), (), config, (), tmp_path, "maximize").show(jobs, is_remote=False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "no job is the best: policies.cart.eval_return_mean has a number in none of them"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-m", "seed=1,2", "hydra.run.dir=x"],
            "hydra.run.dir=x is the folder of a single run; with -m write hydra.sweep.dir=x, which has a folder for "
            "each job, by its number or as hydra.sweep.subdir says",
        ),
        (
            ["hydra.sweep.dir=x"],
            "hydra.sweep.dir=x is for several jobs, and there is no -m; write hydra.run.dir=<folder>",
        ),
    ],
)
def test_a_folder_that_hydra_would_pass_over_is_refused(
    marlflow: Marlflow, tmp_path: Path, words: list[str], message: str
) -> None:
    said = marlflow("train", *words)
    assert (said.code, said.err) == (2, f"error: {message}\n")
    assert not list(tmp_path.iterdir())
