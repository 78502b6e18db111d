"""`marlflow tune scheduler=pbt`: the worst trials continue from checkpoints of the best."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from marlflow.base.serialization import from_bytes
from marlflow.checks.commands import check
from marlflow.checks.validation import from_config
from marlflow.cli.arguments import Words
from marlflow.cli.job import prepared
from marlflow.cli.options import parse
from marlflow.cli.sweep_records import JobRecord, read_records
from marlflow.cli.tune import COMMAND, _evaluates_pauses, _generations, _jobs, _population, jobs_of
from marlflow.cli.tune_population import TrialPopulation, _near, fixed_problems, sweeps_of
from marlflow.cli.tune_trial import PAUSED, TuneTrial
from marlflow.config.compose import composing
from marlflow.observe.sinks import read_metrics
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.saved_runs import newest
from tests.cli.conftest import Marlflow
from tests.cli.test_tune import OBJECTIVE, TUNE

RATE = "policies.cart.algorithm.learning_rate=tag(log,interval(1e-5,1e-2))"
SMALL = "policies.cart.algorithm.minibatch_agent_steps=50"
EPOCHS = "policies.cart.algorithm.epochs=2,4,8"
WORDS = ("runtime=inline", *TUNE, OBJECTIVE, "policies.cart.algorithm.batch_agent_steps=100", SMALL, RATE, EPOCHS)


def population(samples: int = 4, quantile: float = 0.25) -> TrialPopulation:
    with composing():
        jobs = jobs_of(WORDS, samples, 0)
    return TrialPopulation(jobs, sweeps_of(WORDS), 200, 500, quantile, "maximize", 0)


def vector(run_dir: Path) -> np.ndarray:
    checkpoint = newest(run_dir)
    found: np.ndarray = from_bytes(checkpoint.read("learner.cart"))["vector"]
    return found


@pytest.mark.slow
def test_a_copy_has_what_its_source_learned_with_settings_near_its_own(tmp_path: Path) -> None:
    records, folder = tmp_path / "records", tmp_path / "runs"
    records.mkdir()
    of = population()
    first, ran = [list(job) for job in of.jobs], []
    for jobs, until, is_resumed in of.generations(folder, records):
        ran.append((until, is_resumed))
        words = tuple((*job, "stop.env_steps=500") for job in jobs)
        fixed = frozenset(word.partition("=")[0] for word in WORDS[:-2])
        pauses_at = None if until == 500 else until
        objective, cwd = "policies.cart.return_mean", str(Path.cwd())
        trial = TuneTrial(words, fixed, (), folder, records, cwd, objective, is_resumed, pauses_at)
        if until == 400:
            (line,) = [json.loads(line) for line in (folder / "population.jsonl").read_text().splitlines()]
            copy, source = folder / str(line["trial"]), folder / str(line["source"])
            np.testing.assert_array_equal(vector(copy), vector(source))
            assert notes_of(newest(copy)).run != notes_of(newest(source)).run
            assert line["settings"] == first[line["trial"]][-2:]
            old, new = (float(job[-2].partition("=")[2]) for job in (first[line["source"]], of.jobs[line["trial"]]))
            assert new in [min(max(old * factor, 1e-5), 1e-2) for factor in (0.8, 1.2)]
            assert new != old
            assert line["score"] < line["source_score"]
        for number in range(len(jobs)):
            trial(number, lambda *_: True)
        assert {record.ended_by for record in read_records(records)} == {PAUSED if pauses_at else "stop.env_steps=500"}
        assert {newest(folder / str(number)).env_steps for number in range(len(jobs))} == {until}
    assert ran == [(200, False), (400, True), (500, True)]
    for number in range(4):
        steps = [report["env_steps"] for report in read_metrics(folder / str(number) / "metrics.jsonl")]
        assert steps == sorted(steps)
        assert steps[-1] >= 500
        assert newest(folder / str(number)).env_steps >= 500


def records_of(*objectives: float | None) -> list[JobRecord]:
    ended = [JobRecord(number, [], "", 0, PAUSED) for number in range(len(objectives))]
    for record, objective in zip(ended, objectives, strict=True):
        record.objective = objective
    return ended


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
def test_who_copies_whom(direction: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[tuple[str, str]] = []
    monkeypatch.setattr(
        "marlflow.cli.tune_population.copy_checkpoint",
        lambda *folders: copied.append((folders[0].name, folders[1].name)),
    )
    of = population(quantile=0.5)
    of.direction = direction  # type: ignore[assignment]
    # One without an objective is the worst, and one that failed, or has ended by itself, takes no part.
    records = records_of(None, 3.0, 1.0, 2.0, 9.0, 0.5, 9.0)
    records[4].fail("it broke", is_refused=False)
    records[5].ended_by = records[6].ended_by = "callbacks.mine: enough"
    of._copy(1, 200, tmp_path, records)
    best = {"maximize": {"1", "3"}, "minimize": {"2", "3"}}[direction]
    written = (tmp_path / "population.jsonl").read_text().splitlines()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in written]
    assert {line["trial"]: line["score"] for line in lines}[0] is None
    assert {source for source, _ in copied} <= best
    assert {target for _, target in copied} == {"0", "2" if direction == "maximize" else "1"}
    copied.clear()
    of._copy(2, 400, tmp_path, records_of(1.0, 1.0, 1.0, 1.0))
    of._copy(3, 600, tmp_path, records_of(1.0))
    assert copied == []


@pytest.mark.parametrize(
    ("sweep", "value", "near"),
    [
        ("int(interval(1,8))", "1", {"2"}),
        ("int(interval(1,8))", "2", {"1", "3"}),
        ("int(interval(1,8))", "7", {"6", "8"}),
        ("int(interval(1,8))", "8", {"6"}),
        ("int(interval(0,3))", "0", {"1"}),
        ("interval(0.1,0.5)", "0.5", {"0.4"}),
        ("choice(3)", "3", {"3"}),  # beside another key with several values
        ("2,4,8", "8", {"4"}),
        ("2,4,8", "4", {"2", "8"}),
        ("2,4,4,8", "4", {"2", "8"}),
    ],
)
def test_a_value_near_another_is_another(sweep: str, value: str, near: set[str]) -> None:
    (override,) = sweeps_of([f"k={sweep}"])
    generator = np.random.default_rng(0)
    assert {_near(override, f"k={value}", generator) for _ in range(40)} == {f"k={each}" for each in near}


def test_a_trial_that_would_repeat_its_source_does_not_copy_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "marlflow.cli.tune_population.copy_checkpoint", lambda *_: pytest.fail("it was to copy nothing")
    )
    jobs = [["k=0.5"], ["k=0.0"]]
    TrialPopulation(jobs, sweeps_of(["k=interval(0.0,1.0)"]), 1, 2, 0.5, "maximize", 0)._copy(
        1, 1, tmp_path, records_of(1.0, 2.0)
    )
    assert jobs == [["k=0.5"], ["k=0.0"]]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Ray Tune
def test_the_command_runs_all_generations_and_names_the_best(marlflow: Marlflow, tmp_path: Path) -> None:
    words = (*WORDS[1:], "log.every_env_steps=100", "stop.env_steps=400", "every_env_steps=200", "samples=3")
    evaluated = "evaluation.final_episodes=2"
    said = marlflow("tune", *words, evaluated, "scheduler=pbt", "parallel=2", "hydra.sweep.dir=several")
    assert said.code == 0, said.err
    assert "3 trials, 2 at a time; the worse ones copy the better ones every 200 env steps" in said.out
    assert said.out.count(" paused at 200 env steps, objective ") == 3
    assert said.out.count(" ended by stop.env_steps=400 at 400 env steps, objective ") == 3
    assert said.out.count(", objective ") == 6
    assert "; what it learned is in several/" in said.out.splitlines()[-1]
    for number in range(3):
        assert newest(tmp_path / "several" / str(number)).env_steps == 400
        reports = read_metrics(tmp_path / "several" / str(number) / "metrics.jsonl")
        assert {report["policies"]["cart"]["eval_env_steps"] for report in reports} == {None, 400}


@pytest.mark.parametrize(
    ("every", "most", "a_round", "ends"),
    [
        (200, 500, 100, [200, 400, 500]),
        (200, 400, 100, [200, 400]),
        (250, 900, 100, [250, 500, 750, 900]),
        # Rounds end at 300 and 600, and a trial that pauses at 500 has played all.
        (250, 600, 300, [250, 600]),
    ],
)
def test_no_generation_has_nothing_to_play(
    every: int, most: int, a_round: int, ends: list[int], tmp_path: Path
) -> None:
    of = TrialPopulation([], [], every, most, 0.25, "maximize", 0, a_round)
    assert [until for _, until, _ in of.generations(tmp_path, tmp_path)] == ends


def test_rounds_of_other_lengths_are_refused(tmp_path: Path) -> None:
    words = ("runtime=inline", *TUNE, OBJECTIVE, "rollouts.fragment_env_steps=50,100")
    with composing():
        jobs = jobs_of(words, None, 0)
    ready = prepared(Words(overrides=jobs[0], config_dirs=[]))
    (problem,) = fixed_problems(check(from_config(ready.config, ready.problems)), jobs, sweeps_of(words), [])
    assert problem == (
        "scheduler=pbt compares trials at the same env steps, and rollouts.fragment_env_steps changes their rounds; "
        "give it one value, or use scheduler=asha"
    )


def test_what_no_trial_has_drawn_yet_is_tried_too() -> None:
    words = ("runtime=inline", *TUNE, OBJECTIVE, "policies.cart.model.hidden_sizes=[8],[8],[16]")
    jobs = [[*words[:-1], "policies.cart.model.hidden_sizes=[8]"]] * 2
    ready = prepared(Words(overrides=jobs[0], config_dirs=[]))
    problems = list(fixed_problems(check(from_config(ready.config, ready.problems)), jobs, sweeps_of(words), []))
    assert ["hidden_sizes cannot change over a resume" in problem for problem in problems] == [True]


@pytest.mark.slow
def test_a_trial_that_ended_by_itself_is_not_resumed(tmp_path: Path) -> None:
    records, folder = tmp_path / "records", tmp_path / "runs"
    records.mkdir()
    words = ("runtime=inline", *TUNE, OBJECTIVE, "stop.env_steps=100", "evaluation.final_episodes=2")
    fixed = frozenset(word.partition("=")[0] for word in words)
    first = TuneTrial((words,), fixed, (), folder, records, str(Path.cwd()), "policies.cart.return_mean", False, 200)
    first(0, lambda *_: True)
    again = replace(first, is_resumed=True, pauses_at=400)
    again(0, lambda *_: pytest.fail("it was to run no more"))
    (record,) = read_records(records)
    assert record.ended_by == "stop.env_steps=100"


@pytest.mark.slow
def test_a_pause_without_an_evaluation_leaves_the_trials_own_settings(tmp_path: Path) -> None:
    records, folder = tmp_path / "records", tmp_path / "runs"
    records.mkdir()
    words = ("runtime=inline", *TUNE, OBJECTIVE, "stop.env_steps=400", "evaluation.final_episodes=2")
    fixed = frozenset(word.partition("=")[0] for word in words)
    cwd, objective = str(Path.cwd()), "policies.cart.return_mean"
    trial = TuneTrial((words,), fixed, (), folder, records, cwd, objective, False, 200, evaluates_pauses=False)
    trial(0, lambda *_: True)
    last = read_metrics(folder / "0" / "metrics.jsonl")[-1]
    assert last["policies"]["cart"]["eval_return_mean"] is None
    assert "final_episodes=0" not in (folder / "0" / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")


PBT = ("scheduler=pbt", "policies.cart.algorithm.epochs=2,4")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["every_env_steps=99"],
            "every_env_steps=99 is less than a round, the least that a trial trains: 100 env steps",
        ),
        (["every_env_steps=99"], "; set every_env_steps=100, or lower rollouts.fragment_env_steps"),
        (["every_env_steps=301"], "at 301 env steps (every_env_steps), at the end of a round of 100, and stop.env_"),
        (["stop.env_steps=100"], "stop.env_steps=100; raise stop.env_steps"),
        (["stop.env_steps=400,800"], "stop.env_steps has several values; give it one value, or use scheduler=asha"),
    ],
)
def test_an_interval_without_a_round_or_a_comparison_is_refused(
    marlflow: Marlflow, tmp_path: Path, words: list[str], message: str
) -> None:
    said = marlflow("tune", *TUNE, OBJECTIVE, *PBT, *words)
    assert said.code == 2
    assert message in said.err
    assert not list(tmp_path.iterdir())


def generations_of(tmp_path: Path, *words: str) -> tuple[TrialPopulation, list[int | None], bool]:
    """Return the population of a command, each generation's pause, and whether pauses have evaluations."""
    asked = parse(COMMAND, [*TUNE, "objective=policies.cart.return_mean", *PBT, *words])
    ready = prepared(Words(overrides=["runtime=inline", *asked.overrides], hydra_flags=["-m"]))
    jobs = _jobs(ready, asked)
    checked = check(from_config(ready.config, ready.problems))
    of = _population(checked, ready, jobs, asked)
    assert of is not None
    trial = TuneTrial((), frozenset(), (), tmp_path, tmp_path, "", "")
    generations = _generations(trial, of, lambda: None)
    return of, [each.pauses_at for each in generations], _evaluates_pauses(checked.experiment)


def test_the_default_interval_is_a_tenth_in_whole_rounds(tmp_path: Path) -> None:
    assert generations_of(tmp_path, "stop.env_steps=400")[0].every_env_steps == 100
    assert generations_of(tmp_path, "stop.env_steps=1200")[0].every_env_steps == 200


@pytest.mark.parametrize(
    ("words", "is_evaluated"),
    [
        ([], False),
        (["evaluation.final_episodes=4"], False),
        (["evaluation.final_episodes=4", "objective=policies.cart.eval_return_mean"], True),
        (["callback=early_stop", "callbacks.early_stop.metric=policies.cart.return_mean"], True),
    ],
)
def test_a_pause_has_no_last_evaluation_unless_one_is_needed(
    tmp_path: Path, words: list[str], is_evaluated: bool
) -> None:
    _, pauses, evaluates = generations_of(tmp_path, "every_env_steps=200", *words)
    assert pauses == [200, None]
    assert evaluates == is_evaluated


@pytest.mark.slow
@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("seed=1,2", "seed"),
        ("policies.cart.algorithm.optimizer={_target_:marlflow.Adam},{_target_:torch.optim.SGD}", None),
        ("model@policies.cart.model=mlp,gru", None),
        ("policies.cart.model.hidden_sizes=[8],[16]", "policies.cart.model.hidden_sizes"),
        (
            "policies.cart.algorithm.parts.values=null,{_target_:marlflow.PopArt}",
            "policies.cart.algorithm.parts.values",
        ),
    ],
)
def test_what_cannot_change_over_a_resume_is_refused(
    marlflow: Marlflow, tmp_path: Path, word: str, named: str | None
) -> None:
    said = marlflow("tune", *TUNE, OBJECTIVE, word, "scheduler=pbt")
    assert said.code == 2
    assert named is None or f"{named} cannot change over a resume; give it one value, or use scheduler=asha" in said.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "is_refused"),
    [
        (["replay_agent_steps=2000,4000"], True),
        (["prioritized=false,true"], True),
        (["n_step=1,3"], True),
        (["atoms=11", "value_max=10,100"], True),
        (["target_every_updates=10,20"], False),
        # One of three, which the first two do not tell of.
        (["n_step=1,1,3"], True),
        (["epsilon=0.1,0.2,{_target_:marlflow.Linear,start:1.0,end:0.1,agent_steps:10}"], False),
    ],
)
def test_what_a_learner_or_a_replay_keeps_cannot_change(words: list[str], is_refused: bool) -> None:
    usual = (word.replace("cart=ppo", "cart=dqn") for word in ("runtime=inline", *TUNE))
    all_words = (*usual, OBJECTIVE, *(f"policies.cart.algorithm.{word}" for word in words))
    with composing():
        jobs = jobs_of(all_words, None, 0)
    ready = prepared(Words(overrides=jobs[0], config_dirs=[]))
    problems = list(fixed_problems(check(from_config(ready.config, ready.problems)), jobs, sweeps_of(all_words), []))
    named = f"policies.cart.algorithm.{words[-1].partition('=')[0]} cannot change over a resume"
    assert [named in problem for problem in problems] == [True] * is_refused
