"""Returns of runs and what is computed from them, against naive loops over the reports."""

import math
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.html_report.groups import tasks_of
from marlflow.html_report.measures import Measure, ReturnSeries, aligned, measures_of, series
from marlflow.html_report.results import comparisons_of
from marlflow.html_report.runs import ReportedRun, read_runs
from marlflow.html_report.statistics import iqm_interval
from tests.html_report.written import config, evaluated, policy, report, write_run, write_seeds

PREY = Measure("policies.prey.eval_return_mean", "policy prey", "return per agent and episode")
TRAINED = Measure("policies.prey.return_mean", "policy prey", "return per agent and episode")


def run_of(*reports: dict[str, Any]) -> ReportedRun:
    return ReportedRun(Path("run"), config(), reports)


def points(run: ReportedRun, measure: Measure) -> list[tuple[float, float, float]]:
    one = series(run, measure)
    return list(zip(one.env_steps.tolist(), one.values.tolist(), one.times_s.tolist(), strict=True))


def test_an_evaluation_is_at_its_own_env_steps_and_the_last_one_there_counts() -> None:
    run = run_of(
        report(1000, {"prey": policy(1.0, at=900, trained=5.0)}),
        report(2000, {"prey": policy(None, None, trained=None)}),
        report(3000, {"prey": policy(2.0, at=3000, trained=6.0)}),
        report(3000, {"prey": policy(4.0, at=3000, trained=math.nan)}),
        report(4000, {"hunter": policy(9.0, at=4000)}),
    )
    assert points(run, PREY) == [(900.0, 1.0, 10.0), (3000.0, 4.0, 30.0)]
    assert points(run, TRAINED) == [(1000.0, 5.0, 10.0), (3000.0, 6.0, 30.0)]


def test_a_policy_may_have_dots_in_its_name() -> None:
    run = run_of(report(1000, {"prey.fast": policy(1.0, at=900)}))
    (measure,) = measures_of([run])
    assert measure.key == "policies.prey.fast.eval_return_mean"
    assert points(run, measure) == [(900.0, 1.0, 10.0)]


@pytest.mark.parametrize("value", [True, "1.0", None, [1.0], math.inf, math.nan, -1e308, 10**400, {"a": 1.0}])
def test_what_is_no_number_is_unknown(value: Any) -> None:
    assert measures_of([run_of(report(1000, {"prey": policy(value, at=900)}))]) == []


def test_returns_of_training_count_only_where_nothing_was_evaluated() -> None:
    both = run_of(report(1000, {"prey": policy(1.0, 1000, trained=2.0), "hunter": policy(trained=3.0)}))
    trained = run_of(report(1000, {"prey": policy(trained=2.0), "hunter": policy(trained=3.0)}))
    assert [measure.key for measure in measures_of([trained, both])] == ["policies.prey.eval_return_mean"]
    keys = [measure.key for measure in measures_of([trained])]
    assert keys == ["policies.prey.return_mean", "policies.hunter.return_mean"]


def test_joint_learners_and_all_agents_have_returns_of_their_own() -> None:
    policies = {"prey": policy(1.0, 1000), "hunter": policy(2.0, 1000)}
    learners = {"prey": {"updates": 1}, "pack": {"eval_team_return_mean": 4.0}}
    run = run_of(report(1500, policies, learners=learners, eval_team_return_mean=5.0))
    *_, pack, everybody = measures_of([run])
    assert (pack.key, everybody.key) == ("learners.pack.eval_team_return_mean", "eval_team_return_mean")
    assert points(run, pack) == [(1000.0, 4.0, 15.0)]
    assert points(run, everybody) == [(1000.0, 5.0, 15.0)]


def test_returns_of_policies_may_be_sums_over_their_agents() -> None:
    """A learner of one policy has the same, and is not shown again."""
    policies = {name: {**policy(2.0, 1000), "eval_team_return_mean": 6.0} for name in ("prey", "hunter")}
    learners = {"pack": {"eval_team_return_mean": 6.0}, "herd": {"eval_team_return_mean": 12.0}}
    run = run_of(report(1500, policies, learners=learners, eval_team_return_mean=12.0))
    found = measures_of([run], "sum")
    assert [(one.key, one.unit) for one in found] == [
        (f"{name}.eval_team_return_mean", "sum over its agents, per episode")
        for name in ("policies.prey", "policies.hunter", "learners.herd")
    ]
    assert points(run, found[0]) == [(1000.0, 6.0, 15.0)]


@pytest.mark.parametrize("team", [0.0, 4.0])
def test_the_return_of_all_is_left_out_where_it_says_nothing_new(team: float) -> None:
    """In a game of zero sum, and where one learner has all agents."""
    policies = {"prey": policy(1.0, 1000), "hunter": policy(2.0, 1000)}
    learners = {"pack": {"eval_team_return_mean": 4.0}}
    run = run_of(report(1500, policies, learners=learners, eval_team_return_mean=team))
    assert [measure.title for measure in measures_of([run])] == ["policy prey", "policy hunter", "learner pack"]


@given(st.lists(st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True), min_size=1, max_size=4))
def test_aligned_values_are_those_of_each_run_or_between_its_neighbors(several: list[list[int]]) -> None:
    runs = []
    for number, steps in enumerate(several):
        at = np.array(sorted(steps), float)
        runs.append(ReturnSeries(at, np.sin(at + number), at))
    steps, values = aligned(runs)
    assert values.shape == (len(runs), len(steps))
    expected = [
        step
        for step in sorted({step for one in several for step in one})
        if all(min(one) <= step <= max(one) for one in several)
    ]
    assert steps.tolist() == expected
    for number, (one, row) in enumerate(zip(runs, values, strict=True)):
        for step, value in zip(steps, row, strict=True):
            before = max(at for at in one.env_steps if at <= step)
            after = min(at for at in one.env_steps if at >= step)
            share = 0.0 if before == after else (step - before) / (after - before)
            assert value == pytest.approx((1 - share) * np.sin(before + number) + share * np.sin(after + number))


def test_a_row_has_final_and_best_returns_of_its_runs(tmp_path: Path) -> None:
    curves = [[0.0, 8.0, 4.0], [1.0, 2.0, 9.0], [2.0, None, 5.0], [3.0, 7.0]]
    (task,) = tasks_of(read_runs([write_seeds(tmp_path / "sweep", curves)])[0])
    ((row,),) = (comparison.rows for comparison in comparisons_of(task))
    assert row.finals == [4.0, 9.0, 5.0, 7.0]
    assert row.final == iqm_interval([4.0, 9.0, 5.0, 7.0])
    assert row.best == iqm_interval([8.0, 9.0, 5.0, 7.0])
    assert row.env_steps == (2000, 3000)
    assert row.mean == pytest.approx(6.25)
    assert row.std == pytest.approx(statistics.stdev([4.0, 9.0, 5.0, 7.0]))


def test_time_to_a_return_is_the_median_over_all_runs(tmp_path: Path) -> None:
    curves = [[0.0, 5.0, 9.0], [1.0, 2.0, 4.0], [6.0, 2.0, 2.0]]
    (task,) = tasks_of(read_runs([write_seeds(tmp_path / "sweep", curves)])[0])
    ((row,),) = (comparison.rows for comparison in comparisons_of(task, [5.0, 9.0, 100.0]))
    found = [(one.level, one.share, one.runs, one.env_steps, one.time_s) for one in row.reached]
    assert found == [(5.0, None, 2, 2000.0, 20.0), (9.0, None, 1, None, None), (100.0, None, 0, None, None)]


@pytest.mark.parametrize(("runs", "expected"), [(2, 1500.0), (1, 1000.0)])
def test_of_an_even_number_of_runs_the_median_is_between_two(tmp_path: Path, runs: int, expected: float) -> None:
    sweep = write_seeds(tmp_path / "sweep", [[5.0, 5.0], [0.0, 5.0]][:runs])
    (task,) = tasks_of(read_runs([sweep])[0])
    ((row,),) = (comparison.rows for comparison in comparisons_of(task, [5.0]))
    assert row.reached[0].env_steps == expected


def test_default_levels_are_between_the_first_and_the_best_final_return(tmp_path: Path) -> None:
    a = write_seeds(tmp_path / "a", [[-10.0, -8.0]] * 2)
    b = write_seeds(tmp_path / "b", [[-10.0, 10.0]] * 2, queue=3)
    (comparison,) = comparisons_of(tasks_of(read_runs([a, b])[0])[0])
    assert [one.level for one in comparison.rows[0].reached] == [0.0, 8.0]
    assert [row.reached[1].runs for row in comparison.rows] == [0, 2]
    (fallen,) = comparisons_of(tasks_of(read_runs([write_seeds(tmp_path / "c", [[5.0, 1.0]])])[0])[0])
    assert fallen.rows[0].reached == (), "nothing was gained, so there is nothing to reach"


def test_groups_are_compared_in_pairs_and_mirrored(tmp_path: Path) -> None:
    folders = [
        write_seeds(tmp_path / name, [[value + seed] for seed in range(4)], x=name)
        for name, value in (("a", 0.0), ("b", 1.5), ("c", 9.0))
    ]
    single = write_seeds(tmp_path / "d", [[99.0]], x="d")
    (comparison,) = comparisons_of(tasks_of(read_runs([*folders, single])[0])[0])
    found = comparison.improvements()
    names = ["x=a", "x=b", "x=c"]
    assert set(found) == {(one, other) for one in names for other in names if one != other}
    for (one, other), better in found.items():
        assert better.value + found[other, one].value == pytest.approx(1.0)
        assert better.low is not None
        assert found[other, one].high is not None
        assert better.low + found[other, one].high == pytest.approx(1.0)
    assert found["x=c", "x=a"].value == 1.0


def test_of_many_groups_each_is_compared_with_the_best(tmp_path: Path) -> None:
    folders = [write_seeds(tmp_path / str(n), [[float(n % 7)], [float(n)]], x=n) for n in range(12)]
    (comparison,) = comparisons_of(tasks_of(read_runs(folders)[0])[0])
    assert len(comparison.improvements()) == 2 * 11
    assert all(comparison.leader.group.name in pair for pair in comparison.improvements())


def test_a_leader_of_one_run_is_compared_with_nobody(tmp_path: Path) -> None:
    folders = [write_seeds(tmp_path / str(n), [[float(n % 7)], [float(n)]], x=n) for n in range(12)]
    single = write_seeds(tmp_path / "single", [[99.0]], x=99)
    (comparison,) = comparisons_of(tasks_of(read_runs([*folders, single])[0])[0])
    assert comparison.leader.group.name == "x=11"
    assert len(comparison.improvements()) == 2 * 11


def test_a_group_without_a_policy_is_absent_from_its_returns(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", evaluated([1.0]), config())
    b = write_run(tmp_path / "b", [report(1000, {"hunter": policy(2.0, 1000)})], config(extra=1))
    prey, hunter = comparisons_of(tasks_of(read_runs([a, b])[0])[0])
    assert [group.name for group in prey.absent] == ["extra=1"]
    assert [group.name for group in hunter.absent] == ["extra=–"]
