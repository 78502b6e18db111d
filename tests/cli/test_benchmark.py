"""`marlflow benchmark`: what it runs, resumes and refuses, and what it reports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml
from filelock import FileLock

import marlflow as mf
from marlflow.cli.benchmark_jobs import BenchmarkJob, BenchmarkJobs, Scoring
from marlflow.cli.benchmark_runs import BenchmarkPlan, BenchmarkRun, BenchmarkScores, read_suite, scaled_schedules
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.league.comparison import mean_estimate
from marlflow.observe.sinks import read_metrics
from marlflow.runs.run_state import LOCK, run_state
from tests.architecture.sources import REPOSITORY
from tests.cli.conftest import Marlflow, content, table
from tests.runtime.small_runs import small_run

EPSILON = "policies.cart.algorithm.epsilon={_target_: marlflow.Linear, start: 1.0, end: 0.1, agent_steps: 4000}"
COMMON = ["env=cartpole_team", "env.num_agents=2", "env.num_envs=2", "rollouts.num_workers=1", "evaluation.episodes=0"]
SHORT = ["rollouts.fragment_env_steps=50", "stop.env_steps=20000", "checkpoint.every_env_steps=50"]
SHORTER = ["env=cartpole_team", "env.num_agents=2", "env.max_cycles=30"]
SUITE: dict[str, Any] = {
    "policies": ["cart"],
    "tasks": {
        "easy": {"overrides": ["env.max_cycles=20"], "low": 20, "high": 40},
        "Hard task": {
            "overrides": ["env.max_cycles=40"],
            "low": 40,
            "high": 80,
            "score_env": SHORTER,
        },
    },
    "algorithms": {
        "a2c": {"overrides": [*COMMON, *SHORT, "policy@policies.cart=a2c"]},
        "dqn": {"overrides": [*COMMON, *SHORT, "policy@policies.cart=dqn", EPSILON]},
    },
}
WORDS = ("suite=own", "config_dir=own_conf", "seeds=2", "budget=0.05", "episodes=4")


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """The file of a suite of one's own."""
    file = tmp_path / "own_conf" / "suite" / "own.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(SUITE))
    return file


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "marlflow", "benchmark", *words]
    # Tests that run in the background of a script ignore Ctrl-C, and a benchmark whose parent does so ignores it too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    finally:
        signal.signal(signal.SIGINT, before)


def runs_of(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob("*/*/*/metrics.jsonl"))


def assert_shows(report: Path, rows: list[dict[str, str]]) -> None:
    """The report has the mean of each task and algorithm, with its interval."""
    page = report.read_text(encoding="utf-8")
    for task, algorithm in {(row["task"], row["algorithm"]) for row in rows}:
        scores = [float(row["score"]) for row in rows if (row["task"], row["algorithm"]) == (task, algorithm)]
        (shown,) = re.findall(rf'<tr data-task="{task}" data-algorithm="{algorithm}">(.*?)</tr>', page, re.DOTALL)
        expected = mean_estimate(scores)
        values = {name: float(value) for name, value in re.findall(r'data-column="(\w+)" value="([^"]*)"', shown)}
        assert [values["value"], values["low"], values["high"]] == [expected.value, expected.low, expected.high]


@pytest.mark.slow
@pytest.mark.usefixtures("suite")
def test_a_benchmark_that_was_killed_and_interrupted_is_completed_and_reported_once(
    marlflow: Marlflow, tmp_path: Path
) -> None:
    folder = tmp_path / "runs" / "benchmark" / "own_budget_0.05"
    killed = started(tmp_path, *WORDS, "jobs=2")
    assert killed.stdout is not None
    seen = [killed.stdout.readline()]
    assert "own: 2 tasks, 2 algorithms, 2 seeds: 8 runs, 8,000 env steps, 0.05 times what the suite gives" in seen[0]
    while not seen[-1].endswith("(1 of 8)\n"):
        seen.append(killed.stdout.readline())
    killed.kill()
    killed.communicate()
    while any(run_state(run).name == "running" for run in folder.glob("*/*/*/")):
        pass  # until the jobs have noticed that they are alone
    first = table(folder / "scores.csv")
    assert len(first) >= 1

    interrupted = started(tmp_path, *WORDS, "jobs=1")
    assert interrupted.stdout is not None
    assert re.search(r"[1-7] (are|is) complete", interrupted.stdout.readline())
    assert interrupted.stdout.readline().endswith(")\n")
    interrupted.send_signal(signal.SIGINT)
    said, _ = interrupted.communicate()
    assert interrupted.returncode == 130
    assert re.search(r"[1-7] of 8 runs are not complete; the same command continues them", said)

    done = marlflow("benchmark", *WORDS)
    assert done.code == 0, done.err
    rows = table(folder / "scores.csv")
    assert len(rows) == len(runs_of(folder)) == 8
    assert rows[: len(first)] == first, "what has a score is not scored again"
    assert {read_metrics(run / "metrics.jsonl")[-1]["env_steps"] for run in runs_of(folder)} == {1000}
    assert "budget was cut: runs had 0.05 of their env steps" in done.out
    # Episodes of the hard task end after 30 env steps where they are scored.
    assert max(float(row["score"]) for row in rows if row["task"] == "Hard task") <= 60

    assert_shows(folder / "report.html", rows)

    before = {path: what for path, what in content(folder).items() if path.count("/") > 0}
    again = marlflow("benchmark", *WORDS)
    assert again.code == 0
    assert "8 are complete, with scores" in again.out
    assert before == {path: what for path, what in content(folder).items() if path.count("/") > 0}

    marlflow("benchmark", *WORDS[:3], "budget=0.06", f"dir={folder}").assert_refused(
        "dqn on easy: ",
        "/easy/dqn/0 has a run with other settings: ",
        " is 1000 there, and 1200 now; choose another dir",
    )


@pytest.mark.slow
def test_a_run_that_fails_stops_no_other_and_is_named(
    marlflow: Marlflow, suite: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))  # for the processes of the runs
    breaks = ["env=python", "env._target_=tests.cli.broken_environments.WheelComesOff", "env.max_cycles=20"]
    values = yaml.safe_load(yaml.safe_dump(SUITE))
    values["tasks"]["Hard task"] = {"overrides": breaks, "low": 40, "high": 80}
    values["algorithms"] = {"a2c": values["algorithms"]["a2c"]}
    suite.write_text(yaml.safe_dump(values))
    said = marlflow("benchmark", *WORDS[:2], "seeds=1", "budget=0.05", "episodes=4")
    assert said.code == 1
    assert "a2c on Hard task, seed 0 failed: environment " in said.err
    assert "step() raised RuntimeError: the wheel came off; " in said.err
    assert "0.txt has all that it printed" in said.err
    assert "note: 1 run failed, and left out: a2c on Hard task, seed 0." in said.out
    assert [row["task"] for row in table(Path("runs/benchmark/own_budget_0.05/scores.csv"))] == ["easy"]


@pytest.mark.parametrize(
    ("words", "messages"),
    [
        ([], ["benchmark needs a suite: marlflow benchmark suite=<name>"]),
        (["suite=lfb"], ["there is no suite 'lfb'; did you mean 'lbf'?"]),
        (["suite=cartpoles", "algorithms=pp,sac"], ["no algorithm 'pp'; did you mean 'ppo'?", "no algorithm 'sac'"]),
        (["suite=cartpoles", "tasks=three"], ["suite cartpoles has no task 'three'; there are two_carts, four_carts"]),
        (["suite=cartpoles", "algorithm=ppo"], ["has no option 'algorithm'; did you mean 'algorithms'?"]),
        (["suite=cartpoles", "budget=0"], ["budget must be a number from 1e-09 to 1,000"]),
        (["suite=mine", "config_dir=nowhere"], ["nowhere does not exist"]),
    ],
)
def test_a_benchmark_that_is_not_there_is_refused(marlflow: Marlflow, words: list[str], messages: list[str]) -> None:
    marlflow("benchmark", *words).assert_refused(*messages)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("policies", [], "suite own: policies must be a list of the ids of policies"),
        ("policies", ["crat"], "a2c on easy: its policies are cart, and the suite scores crat"),
        ("task", {}, "suite own: there is no task; did you mean 'tasks'?"),
        ("tasks", {}, "suite own: tasks must have at least one entry"),
        ("tasks.easy.low", 40, "suite own: tasks.easy.low must be below tasks.easy.high, not 40 and 40"),
        ("tasks.easy.high", "1o", "suite own: tasks.easy.low and tasks.easy.high must be numbers"),
        (
            "tasks.easy.score_env",
            ["env.max_cyles=9"],
            "a2c on easy: with score_env, there is no env.max_cyles",
        ),
        ("tasks.easy.score_env", ["env=cartpol_team"], "a2c on easy: with score_env, there is no environment"),
        ("tasks.easy.score_env", {"max_cycles": 9}, "score_env must be a list as for marlflow evaluate"),
        ("tasks.easy.score_env", ["seed=1"], "score_env must be a list as for marlflow evaluate"),
        ("tasks.easy.overrides", ["env.max_cycle=9"], "dqn on easy: "),
        ("tasks.easy.algorithms", {"dqm": ["seed=1"]}, "there is no tasks.easy.algorithms.dqm; did you mean"),
        (
            "tasks.easy.algorithms",
            {"dqn": "seed=1"},
            "tasks.easy.algorithms must have lists of overrides by",
        ),
        ("tasks.easy.algorithms", {"dqn": ["policies.cart.algorithm.lambd=1"]}, "dqn on easy: "),
        ("algorithms.dqn.overrides", "experiment=x", "algorithms.dqn.overrides must be a list of overrides"),
        ("algorithms.dqn.overrides", ["experiment=x"], "dqn on Hard task: there is no experiment 'x'"),
        ("algorithms.dqn.overrides", [*COMMON, "stop.env_steps=null"], "needs an end in env steps"),
        ("algorithms.dqn.overrides", [*COMMON, *SHORT, "policy@policies.cart=dqn", "league=pfsp"], "chooses who plays"),
    ],
)
def test_what_is_wrong_in_a_suite_is_said_before_anything_runs(
    marlflow: Marlflow, suite: Path, path: str, value: Any, message: str
) -> None:
    values = yaml.safe_load(yaml.safe_dump(SUITE))
    *outer, last = path.split(".")
    place = values
    for key in outer:
        place = place[key]
    place[last] = value
    suite.write_text(yaml.safe_dump(values))
    marlflow("benchmark", *WORDS).assert_refused(message)
    assert not Path("runs").exists()


def test_overrides_of_an_algorithm_on_one_task_come_last_and_only_there(suite: Path, tmp_path: Path) -> None:
    values = yaml.safe_load(yaml.safe_dump(SUITE))
    values["tasks"]["easy"]["algorithms"] = {"dqn": ["env.max_cycles=25"]}
    suite.write_text(yaml.safe_dump(values))
    config_dirs = [str(suite.parent.parent)]
    plan = BenchmarkPlan(
        read_suite("own", config_dirs), list(SUITE["tasks"]), ["a2c", "dqn"], [0], 1.0, config_dirs, tmp_path / "runs"
    )
    cycles = {
        (run.task, run.algorithm): [word for word in run.words if word.startswith("env.max_cycles=")][-1]
        for run in plan.runs()
    }
    assert cycles == {
        ("easy", "a2c"): "env.max_cycles=20",
        ("easy", "dqn"): "env.max_cycles=25",
        ("Hard task", "a2c"): "env.max_cycles=40",
        ("Hard task", "dqn"): "env.max_cycles=40",
    }


@pytest.mark.usefixtures("suite")
@pytest.mark.parametrize("there", ["1/thesis.tex", "1"])
def test_a_folder_with_something_else_is_refused(marlflow: Marlflow, tmp_path: Path, there: str) -> None:
    path = tmp_path / "kept" / "easy" / "dqn" / there
    path.parent.mkdir(parents=True)
    path.touch()
    marlflow("benchmark", *WORDS, "dir=kept", "tasks=easy").assert_refused("easy/dqn/1 has something else than a run")


@pytest.mark.usefixtures("suite")
def test_a_folder_is_of_one_command_at_a_time(marlflow: Marlflow, tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    with FileLock(tmp_path / "shared" / LOCK):
        marlflow("benchmark", *WORDS, "dir=shared").assert_refused(
            "another marlflow benchmark runs in shared; wait for"
        )
    assert [path.name for path in (tmp_path / "shared").iterdir()] == [LOCK]


SHIPPED = {
    "cartpoles": ("marlflow", 6),
    "lbf": ("lbforaging", 20),
    "mpe": ("jaxmarl mpe2", 16),
    "overcooked": ("jaxmarl", 2),
    "rware": ("rware", 4),
    "smax": ("jaxmarl", 12),
}
"""Suites: the packages of their environments, and the runs with one seed."""


def test_the_suites_above_are_all() -> None:
    assert set(SHIPPED) == {path.stem for path in (REPOSITORY / "conf" / "suite").glob("*.yaml")}


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_suites_can_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packages, runs = SHIPPED[name]
    for package in packages.split():
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    suite = read_suite(name)
    plan = BenchmarkPlan(suite, list(suite.tasks), list(suite.algorithms), [0], 1.0, [], tmp_path)
    assert [run.state for run in plan.runs()] == ["new"] * runs


def test_the_suite_of_the_page_can_run(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "benchmark.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "suite").mkdir()
    (tmp_path / "suite" / "mine.yaml").write_text(block)
    suite = read_suite("mine", [str(tmp_path)])
    (run,) = BenchmarkPlan(suite, ["short"], ["ppo"], [3], 0.5, [str(tmp_path)], tmp_path / "runs").runs()
    assert (run.name, run.env_steps, run.state) == ("ppo on short, seed 3", 15_000, "new")


class WarmUp:
    """A schedule of a user's own."""

    def at(self, agent_steps: int) -> float:
        return float(agent_steps)


def test_schedules_are_shortened_wherever_they_are() -> None:
    linear = {"_target_": "marlflow.base.schedules.Linear", "start": 1, "end": 0, "agent_steps": 1000}
    constant = {"_target_": "marlflow.PiecewiseConstant", "values": [3, 2, 1], "at_agent_steps": [1000, 1010]}
    own = {"_target_": "tests.cli.test_benchmark.WarmUp", "agent_steps": 100}
    other = {"_target_": "collections.Counter", "agent_steps": 100}
    config = {
        "policies": {"a": {"algorithm": {"epsilon": linear, "learning_rate": 0.1, "agent_steps": 7}}},
        "x": constant,
        "y": own,
        "z": other,
    }
    assert list(scaled_schedules(config, 0.05)) == [
        "policies.a.algorithm.epsilon.agent_steps=50",
        "x.at_agent_steps=[50,51]",  # they have to grow
        "y.agent_steps=5",
    ]


@dataclass(frozen=True)
class Greedier(mf.DQN):
    """DQN with a schedule of its own by default."""

    name: ClassVar[str] = "greedier"
    epsilon: mf.ScheduledFloat = mf.Linear(1.0, 0.1, 4_000)  # noqa: RUF009  frozen


def test_schedules_of_a_class_are_shortened_too(suite: Path) -> None:
    values = yaml.safe_load(yaml.safe_dump(SUITE))
    own = "policies.cart.algorithm={_target_: tests.cli.test_benchmark.Greedier}"
    values["algorithms"] = {"own": {"overrides": [*COMMON, *SHORT, "policy@policies.cart=dqn", own]}}
    suite.write_text(yaml.safe_dump(values))
    folders = [str(suite.parent.parent)]
    plan = BenchmarkPlan(read_suite("own", folders), ["easy"], ["own"], [1], 0.05, folders, suite.parent / "runs")
    shorter = "{_target_: marlflow.base.schedules.Linear, start: 1.0, end: 0.1, agent_steps: 200}"
    (run,) = plan.runs()
    assert f"+policies.cart.algorithm.epsilon={shorter}" in run.words


def test_a_larger_budget_has_more_env_steps_and_longer_schedules(suite: Path) -> None:
    folders = [str(suite.parent.parent)]
    (run,) = BenchmarkPlan(read_suite("lbf", folders), ["10x10-3p-3f"], ["ppo"], [1], 2.0, folders, suite.parent).runs()
    assert run.env_steps == 20_000_000
    assert "stop.env_steps=20000000" in run.words
    assert "policies.agent.algorithm.learning_rate.agent_steps=60000000" in run.words


def test_scores_of_all_runs_are_normalized_by_the_limits_of_now(suite: Path, tmp_path: Path) -> None:
    def plan(seeds: list[int], high: float) -> BenchmarkPlan:
        values = yaml.safe_load(yaml.safe_dump(SUITE))
        values["tasks"]["easy"]["high"] = high
        suite.write_text(yaml.safe_dump(values))
        folders = [str(suite.parent.parent)]
        return BenchmarkPlan(read_suite("own", folders), ["easy"], ["a2c"], seeds, 1.0, folders, tmp_path)

    before = plan([0, 1], 40)
    scores = BenchmarkScores(before, before.runs(), 4)
    for run in before.runs():
        scores.add(run, 30.0)
    now = plan([2], 60)
    BenchmarkScores(now, now.runs(), 4).write()
    assert [row["normalized"] for row in table(tmp_path / "scores.csv")] == ["0.25", "0.25"]


def test_a_suite_is_no_part_of_a_run(marlflow: Marlflow) -> None:
    marlflow("train", "suite=lbf").assert_refused("marlflow benchmark suite=lbf runs the tasks of a suite")


def test_a_score_is_of_the_last_checkpoint_and_of_no_earlier_one(tmp_path: Path) -> None:
    mf.train(small_run(checkpoint=mf.CheckpointConfig(400)), tmp_path)
    job = BenchmarkJob((), str(tmp_path), ["hunters"], [], 2)
    assert job._score() > 0.0
    newest = max((tmp_path / "checkpoints").iterdir(), key=lambda folder: int(folder.name))
    (newest / "learner.prey.safetensors").write_bytes(b"damaged")
    with pytest.raises(mf.MarlflowError, match=r"is not whole.*; remove .*, and the same command trains it again"):
        job._score()


class Breaking(CartPoleTeam):
    """Breaks in the fifth env step of episodes of odd seeds."""

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.left = 5 if (seed or 0) % 2 else -1
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            raise RuntimeError("the pole snapped")
        return super().step(actions)


def test_a_score_of_fewer_episodes_than_asked_for_is_none(tmp_path: Path) -> None:
    experiment = small_run(env=mf.Env(Breaking, num_envs=2), faults=mf.Faults(env_errors=10**6))
    mf.train(experiment, tmp_path)
    job = BenchmarkJob((), str(tmp_path), ["hunters"], [], 20)
    with pytest.raises(
        mf.ConfigInvalid, match=r"of 20 scored episodes broke \(step\(\) raised RuntimeError: the pole sn"
    ):
        job._score()


def test_two_signals_at_once_end_the_jobs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = threading.Event()

    def slow(self: BenchmarkJobs, run: BenchmarkRun) -> float | None:
        began.set()
        time.sleep(0.5)
        return None

    def send() -> None:
        began.wait()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM):
            os.kill(os.getpid(), number)

    monkeypatch.setattr(BenchmarkJobs, "_run", slow)
    jobs = BenchmarkJobs(Scoring((), {}, 1), 2)
    some: Any = [object(), object(), object()]
    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        list(jobs.run(some))
    sender.join()
