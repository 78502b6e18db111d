"""`marlflow tune`: trials in actors, judged by their reports, and each an ordinary run."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path

import pytest

from marlflow.cli.sweep_records import read_records
from marlflow.cli.tune_trial import TuneTrial
from marlflow.observe.sinks import read_metrics
from marlflow.runs.saved_runs import newest
from tests.cli.conftest import Marlflow
from tests.cli.test_train import SHORT

pytestmark = pytest.mark.slow

TUNE = (*SHORT[1:2], *SHORT[4:], "policy@policies.cart=ppo", "rollouts.fragment_env_steps=50")
OBJECTIVE = "objective=policies.cart.return_mean"
LONG = ("stop.env_steps=900", "log.every_env_steps=100", "policies.cart.algorithm.batch_agent_steps=200")


def trial(tmp_path: Path, *words: str) -> TuneTrial:
    overrides = ("runtime=inline", *TUNE, *words)
    fixed = frozenset(word.partition("=")[0] for word in overrides)
    jobs = ((*overrides, "seed=1"), (*overrides, "seed=2", "policies.cart.algorithm.epochs=0"))
    return TuneTrial(jobs, fixed, (), tmp_path / "runs", tmp_path, str(Path.cwd()), "policies.cart.return_mean")


def test_a_trial_that_is_told_to_stops_in_order(tmp_path: Path) -> None:
    seen: list[tuple[int, float | None]] = []

    def reported(env_steps: int, objective: float | None) -> bool:
        seen.append((env_steps, objective))
        return len(seen) < 3

    trial(tmp_path, *LONG, OBJECTIVE)(0, reported)
    (record,) = read_records(tmp_path)
    assert record.settings == ["seed=1"]
    assert record.ended_by == "callbacks.tune: others are better"
    assert record.error is None
    assert 300 <= seen[2][0] <= (record.env_steps or 0) < 900
    assert seen[2:] == [(record.env_steps, record.objective)] * len(seen[2:])
    assert newest(tmp_path / "runs" / "0").env_steps == record.env_steps
    assert (tmp_path / "runs" / "0" / ".hydra" / "overrides.yaml").is_file()


def test_a_trial_that_a_signal_ends_does_not_say_that_others_are_better(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran = trial(tmp_path, *LONG, OBJECTIVE)

    def reported(env_steps: int, objective: float | None) -> bool:
        ran.end_soon(signal.SIGTERM)
        return False

    ran(0, reported)
    (record,) = read_records(tmp_path)
    assert record.ended_by == "terminated"
    assert 0 < (record.env_steps or 0) < 900
    assert "interrupt again to stop at once" in capsys.readouterr().err
    assert "callbacks.tune: terminated" in (tmp_path / "runs" / "0" / "run.log").read_text(encoding="utf-8")
    state = json.loads((tmp_path / "runs" / "0" / "state.json").read_text(encoding="utf-8"))
    assert (state["state"], state["reason"]) == ("interrupted", "terminated")


def test_a_report_before_the_first_update_decides_nothing(tmp_path: Path) -> None:
    seen: dict[int, float | None] = {}

    def reported(env_steps: int, objective: float | None) -> bool:
        seen.setdefault(env_steps, objective)
        return True

    trial(tmp_path, *LONG[:2], "policies.cart.algorithm.batch_agent_steps=1000", OBJECTIVE)(0, reported)
    updates = {
        report["env_steps"]: report["learners"]["cart"]["updates"]
        for report in read_metrics(tmp_path / "runs/0/metrics.jsonl")
    }
    assert 0 in updates.values()
    assert {env_steps: objective is not None for env_steps, objective in seen.items()} == {
        env_steps: count > 0 for env_steps, count in updates.items()
    }
    assert any(updates.values())


def test_a_refused_trial_has_its_error_in_its_record(tmp_path: Path) -> None:
    trial(tmp_path)(1, lambda *_: True)
    (record,) = read_records(tmp_path)
    assert record.is_refused
    assert record.error is not None
    assert "policies.cart.algorithm.epochs must be at least 1, not 0" in record.error


@pytest.mark.filterwarnings("ignore")  # of Ray Tune
def test_all_trials_are_in_the_table_and_the_best_is_named(marlflow: Marlflow, tmp_path: Path) -> None:
    # 73 env steps would come before the first round, of 100.
    asha = ("parallel=1", "reduction_factor=3.5")
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    words = (*TUNE, *LONG, OBJECTIVE, "seed=1,2,3", "hydra.sweep.dir=several", "config_dir=own", *asha)
    said = marlflow("tune", *words)
    assert said.code == 0, said.err
    assert "3 trials, 1 at a time; asha ends the worse ones from 100 env steps on" in said.out
    with (tmp_path / "several" / "sweep.csv").open(encoding="utf-8", newline="") as file:
        done = list(csv.DictReader(file))
    assert [row["seed"] for row in done] == ["1", "2", "3"]
    ends = {row["ended_by"] for row in done}
    assert ends <= {"stop.env_steps=900", "callbacks.tune: others are better"}
    # The first trial has nothing to be compared with; of three, not all are among the best third.
    assert done[0]["ended_by"] == "stop.env_steps=900"
    best = max(done, key=lambda row: float(row["objective"]))
    assert f"best: job {best['job']}, policies.cart.return_mean " in said.out
    again = said.out.splitlines()[-1]
    assert again.startswith("  marlflow train --config-dir own ")
    assert again.endswith(f" seed={best['seed']}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([OBJECTIVE], "tune needs several values to choose from: list them"),
        ([OBJECTIVE, "samples=4", "scheduler=asha"], "tune needs several values to choose from: list them"),
        ([OBJECTIVE, "samples=4", "scheduler=pbt"], "tune needs several values to choose from: list them"),
        ([OBJECTIVE, "samples=4", "scheduler=none"], "tune needs several values to choose from: list them"),
        ([OBJECTIVE, "samples=4", "seed=choice(3)"], "tune needs several values to choose from: list them"),
        (["seed=1,2"], "marlflow tune goes by a figure of each job, and objective is null; set objective="),
        (
            [OBJECTIVE, "seed=1,2", "runtime=ray"],
            "each trial runs in one process, with runtime=inline; leave runtime out",
        ),
        (
            [OBJECTIVE, "policies.cart.algorithm.clip_range=interval(0.1,0.3)"],
            "any number of values; say how many trials: ",
        ),
        (
            [OBJECTIVE, "seed=1,2", "log.every_env_steps=10000"],
            "at 100 env steps (grace_env_steps), and reports come every 10,000; set log.every_env_steps=100",
        ),
        (
            [OBJECTIVE, "seed=1,2", "log.every_env_steps=10000", "grace_env_steps=250"],
            "at 250 env steps (grace_env_steps), and reports come every 10,000; set log.every_env_steps=200",
        ),
        (
            [OBJECTIVE, "seed=1,2", "stop.env_steps=null", "stop.time_s=9"],
            "scheduler=asha needs the end of a trial in env",
        ),
        ([OBJECTIVE, "seed=1,2", "scheduler=hyperband"], "scheduler must be one of asha, pbt, none, not 'hyperband'"),
        (
            [
                "objective=policies.cart.eval_return_mean",
                "seed=1,2",
                "evaluation.episodes=0",
                "evaluation.final_episodes=2",
                "evaluation.every_env_steps=100",
            ],
            "asha compares evaluations during a trial, and evaluation.episodes=0 plays none",
        ),
        (
            [OBJECTIVE, "seed=1,2", "grace_env_steps=400"],
            "asha first compares trials at 400 env steps (grace_env_steps), and one has stop.env_steps=400",
        ),
        (
            [OBJECTIVE, "stop.env_steps=400,100", "grace_env_steps=200"],
            "at 200 env steps (grace_env_steps), and one has stop.env_steps=100",
        ),
        (
            [OBJECTIVE, "seed=1,2", "quantile=0.1"],
            "quantile is of scheduler=pbt, and this is scheduler=asha; leave it out",
        ),
        (
            [OBJECTIVE, "seed=1,2", "scheduler=none", "grace_env_steps=100"],
            "grace_env_steps is of scheduler=asha, and this is scheduler=none; leave it out",
        ),
        (
            [OBJECTIVE, "seed=1,2", "hydra.sweep.dir=x", "hydra.sweep.subdir=seed_${seed}"],
            "hydra.sweep.subdir=seed_${seed} is not used by tune, which runs its trials itself, in hydra",
        ),
        ([OBJECTIVE, "seed=1,2", "hydra.run.dir=x"], "hydra.run.dir=x is not used"),
        ([OBJECTIVE, "seed=1,2", "hydra/launcher=joblib"], "hydra/launcher=joblib is not used"),
    ],
)
def test_what_cannot_be_tuned_is_refused_at_once(
    marlflow: Marlflow, tmp_path: Path, words: list[str], message: str
) -> None:
    said = marlflow("tune", *TUNE, *words)
    assert said.code == 2
    assert message in said.err
    assert not list(tmp_path.iterdir())
