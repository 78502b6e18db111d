"""`marlflow train -m hydra/sweeper=optuna`: the best of all jobs is found, and a job that fails ends nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from marlflow.cli import sweep
from tests.cli.conftest import Marlflow, table
from tests.cli.test_train import FAILING, SHORT

# Optuna 2 uses what newer packages have deprecated.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
OPTUNA = (
    "train",
    "-m",
    *SHORT,
    "policy@policies.cart=ppo",
    "hydra/sweeper=optuna",
    "hydra.sweep.dir=several",
    "objective=policies.cart.return_mean",
)
SMALL = ("policies.cart.algorithm.batch_agent_steps=300", "rollouts.fragment_env_steps=100")


def objectives(folder: Path) -> dict[str, float]:
    """The last mean return of each run in a sweep's folder, by the run's name."""
    lines = {path.parent.name: path.read_text(encoding="utf-8").splitlines() for path in folder.glob("*/metrics.jsonl")}
    return {name: json.loads(said[-1])["policies"]["cart"]["return_mean"] for name, said in lines.items()}


def test_the_best_of_all_jobs_is_named_and_a_refused_one_ends_nothing(marlflow: Marlflow, tmp_path: Path) -> None:
    grid = ("hydra/sweeper/sampler=grid", "policies.cart.algorithm.epochs=1,0,2", "seed=3,4")
    said = marlflow(*OPTUNA, *SMALL, *grid)
    assert said.code == 2
    refused = [line for line in said.err.splitlines() if line.startswith("error: job ")]
    assert len(refused) == 2
    assert all("policies.cart.algorithm.epochs must be at least 1, not 0" in line for line in refused)
    several = tmp_path / "several"
    found = objectives(several)
    assert len(found) == 4
    best = max(found, key=lambda name: (found[name], -int(name)))
    result = yaml.safe_load((several / "optimization_results.yaml").read_text(encoding="utf-8"))
    assert result["best_value"] == found[best]
    rows = {row["job"]: row for row in table(several / "sweep.csv")}
    assert sorted(rows) == ["0", "1", "2", "3", "4", "5"]
    assert {name: float(row["objective"]) for name, row in rows.items() if row["objective"]} == found
    for key, value in result["best_params"].items():
        assert rows[best][key] == str(value)
    *_, head, words = said.out.splitlines()
    assert head.startswith(f"best: job {best}, policies.cart.return_mean ")
    for text in (f"seed={rows[best]['seed']}", f"epochs={rows[best]['policies.cart.algorithm.epochs']}"):
        assert text in words
    assert "hydra" not in words


def test_when_all_jobs_fail_each_says_why_and_optuna_nothing(marlflow: Marlflow) -> None:
    said = marlflow(*OPTUNA, FAILING, "hydra.sweeper.n_trials=2", "seed=1,2")
    assert said.code == 1
    assert sum(line.startswith("error: job ") for line in said.err.splitlines()) == 2
    assert "No trials are completed" not in said.err
    assert "best:" not in said.out


def test_a_job_without_an_objective_fails(marlflow: Marlflow) -> None:
    short = ("stop.env_steps=4", "rollouts.fragment_env_steps=4", "log.every_env_steps=4")
    said = marlflow(*OPTUNA, *short, "hydra.sweeper.n_trials=1", "seed=1,2")
    assert said.code == 1
    assert "the objective is None at the end of the run, so the sweeper cannot use this job" in said.err


def test_parameters_of_a_file_are_completed_as_on_the_command_line(marlflow: Marlflow, tmp_path: Path) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "rates.yaml").write_text(
        "# @package _global_\n"
        "hydra:\n"
        "  sweeper:\n"
        "    params:\n"
        "      policy@policies.cart: ppo\n"
        "      policies.cart.algorithm.epochs: 1,2\n"
        "      seed: 7,8\n",
        encoding="utf-8",
    )
    words = ("train", "-m", *SHORT, *SMALL, "--config-dir", "conf", "experiment=rates", "hydra.sweep.dir=several")
    said = marlflow(*words, "seed=3")
    assert said.code == 0, said.err
    assert [row["policies.cart.algorithm.epochs"] for row in table(tmp_path / "several" / "sweep.csv")] == ["1", "2"]


def test_a_value_of_another_class_replaces_the_old_one_in_each_job(marlflow: Marlflow, tmp_path: Path) -> None:
    schedule = (
        "policies.team.algorithm.learning_rate={_target_: marlflow.CosineDecay, start: 1e-3, end: 0, agent_steps: 9}"
    )
    words = ("experiment=cartpole_team_dqn", "stop.env_steps=100", "evaluation.final_episodes=0", schedule)
    said = marlflow("train", "-m", *SHORT[:5], *words, "seed=1,2", "hydra.sweep.dir=several")
    assert said.code == 0, said.err
    config = yaml.safe_load((tmp_path / "several" / "1" / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    assert config["policies"]["team"]["algorithm"]["learning_rate"]["_target_"] == "marlflow.CosineDecay"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["-m", "seed=interval(1,5)"],
            "seed=interval(1,5) has no values to run one by one; list some, or have values ",
        ),
        (
            ["-m", *OPTUNA[-3:], "hydra.sweeper.direction=[maximize,minimize]"],
            "hydra.sweeper.direction must be maximize or ",
        ),
        (
            ["-m", *OPTUNA[-3:], "policies.cart.algorithm.learning_rate=interval(1e-3,1e-4)"],
            "policies.cart.algorithm.learning_rate: the ends of interval(0.001, 0.0001) must be finite and increasing",
        ),
        (
            ["-m", *OPTUNA[-3:], "hydra/sweeper/sampler=grid", "policies.cart.algorithm.discount=interval(0.9,0.99)"],
            "discount=interval(0.9,0.99) has any number of values, and the sampler grid runs all; list some",
        ),
        (
            ["-m", "seed=1,2", "hydra/launcher=joblib", "hydra.launcher.n_jobs=0"],
            "hydra.launcher.n_jobs must be the number of jobs at a time, or -1 for one for each CPU, not 0",
        ),
        (["-m", *OPTUNA[-3:], "hydra.sweeper.n_trials=0"], "hydra.sweeper.n_trials must be at least 1, not 0"),
        (
            ["-m", *OPTUNA[-3:], "hydra.sweeper.max_failure_rate=2"],
            "hydra.sweeper.max_failure_rate must be from 0 to 1, ",
        ),
        (
            ["-m", *OPTUNA[-3:-1], "objective=policies.cart.eval_return_mean", "evaluation.episodes=0"],
            "objective=policies.cart.eval_return_mean is of evaluations, and there are none; set evaluation.final_",
        ),
    ],
)
def test_a_sweep_that_cannot_work_is_refused_at_its_start(
    marlflow: Marlflow, tmp_path: Path, words: list[str], message: str
) -> None:
    marlflow("train", *words, "policy@policies.cart=ppo", "runtime=inline").assert_refused(message)
    assert not list(tmp_path.iterdir())


def test_a_database_that_optuna_cannot_write_is_refused(marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"SQLAlchemy": "2.1.9", "alembic": "1.13.3"}
    monkeypatch.setattr(sweep, "_version", found.get)
    said = marlflow(*OPTUNA, "hydra.sweeper.storage=sqlite:///study.db")
    assert said.code == 2
    assert "cannot write a database with SQLAlchemy 2.1.9; pip install 'sqlalchemy<2' 'alembic<1.14'" in said.err


@pytest.mark.parametrize(
    ("choice", "extra"),
    [
        ("hydra/sweeper=optuna", "optuna"),
        ("hydra/launcher=joblib", "joblib"),
        ("hydra/launcher=submitit_slurm", "submitit"),
    ],
)
def test_a_plugin_that_is_not_installed_is_named_with_its_extra(
    marlflow: Marlflow, monkeypatch: pytest.MonkeyPatch, choice: str, extra: str
) -> None:
    monkeypatch.setattr(sweep, "is_installed", lambda _: False)
    said = marlflow("train", "-m", choice, "seed=1,2")
    assert said.code == 2
    assert said.err.startswith(f"error: {choice} needs hydra-")
    assert said.err.endswith(f"which is not installed: pip install 'marlflow[{extra}]'\n")


@pytest.mark.parametrize("sampler", ["tpe", "random", "nsgaii"])
def test_a_sweep_that_is_repeated_has_the_same_trials(sampler: str, marlflow: Marlflow, tmp_path: Path) -> None:
    rate = "policies.cart.algorithm.learning_rate"
    drawn = []
    for folder in ("first", "again"):
        words = (f"hydra/sweeper/sampler={sampler}", f"{rate}=tag(log,interval(1e-5,1e-2))", "hydra.sweeper.n_trials=3")
        said = marlflow(*OPTUNA[:-2], f"hydra.sweep.dir={folder}", OPTUNA[-1], *SMALL, *words)
        assert said.code == 0, said.err
        drawn.append([row[rate] for row in table(tmp_path / folder / "sweep.csv")])
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 3
