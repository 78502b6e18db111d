"""The files beside the page."""

import csv
import io
import json
import re
from pathlib import Path

import pytest

from marlflow.html_report.files import (
    columns,
    decimals,
    improvement_columns,
    marl_eval,
    rows_csv,
    table_tex,
    tex_escaped,
)
from marlflow.html_report.groups import tasks_of
from marlflow.html_report.results import comparisons_of
from marlflow.html_report.runs import read_runs
from tests.html_report.written import config, policy, report, write_run, write_seeds


def test_table_csv_has_every_result(tmp_path: Path) -> None:
    a = write_seeds(tmp_path / "a", [[1.0, 3.0], [2.0, 5.0]])
    b = write_seeds(tmp_path / "b", [[1.0, 2.0]], x='a "name", with = signs')
    (task,) = tasks_of(read_runs([a, b])[0])
    comparisons = comparisons_of(task, [4.0])
    first, second = csv.DictReader(io.StringIO(rows_csv([columns(comparisons[0], row) for row in comparisons[0].rows])))
    row = comparisons[0].rows[0]
    assert first["measure"] == "policies.prey.eval_return_mean"
    assert float(first["final_iqm"]) == row.final.value == 4.0
    assert float(first["final_low"]) == row.final.low
    assert float(first["best_high"]) == row.best.high
    assert (first["level_1"], first["level_1_runs"], first["level_1_env_steps"]) == ("4.0", "1", "")
    assert second["group"] == 'x=a "name", with = signs'
    assert (second["runs"], second["final_low"], second["final_std"]) == ("1", "", "")
    assert (first["statistic"], first["interval"]) == ("mean", "range")
    assert (second["statistic"], second["interval"]) == ("value", "")
    assert improvement_columns(comparisons) == []


def test_table_tex_is_a_table_whatever_names_are(tmp_path: Path) -> None:
    name = r"50%_of $x & #y {z}~^\<|>"
    (task,) = tasks_of(read_runs([write_seeds(tmp_path / "a", [[1.0], [-2.0]], name=name)])[0])
    table = table_tex(comparisons_of(task))
    note, row = [line for line in table.splitlines() if "prey" in line]
    assert note == "% policy prey: return per agent and episode, evaluation (mode not recorded)"
    assert len(re.findall(r"(?<!\\)&", row)) == 5
    assert row.endswith(r"\\")
    assert tex_escaped(name) in row
    assert "$-0.500$ [$-2.000$, $1.000$]" in row
    assert table.count(r"\begin{tabular}{lllrrr}") == table.count(r"\end{tabular}") == 1


@pytest.mark.parametrize("sign", "&%$#_{}~^\\")
def test_each_special_sign_of_tex_is_escaped(sign: str) -> None:
    escaped = tex_escaped(f"a{sign}b")
    assert escaped.startswith("a\\")
    assert escaped.endswith("b")
    assert tex_escaped("a\nb") == "a b", "an empty line would end the table"


@pytest.mark.parametrize(("value", "digits"), [(12345.0, 0), (200.0, 1), (-28.7, 2), (0.5, 3), (0.0, 3)])
def test_returns_have_four_digits(tmp_path: Path, value: float, digits: int) -> None:
    (task,) = tasks_of(read_runs([write_seeds(tmp_path / "a", [[value]])])[0])
    assert decimals(comparisons_of(task)[0]) == digits


def test_marl_eval_has_the_form_that_its_documentation_gives(tmp_path: Path) -> None:
    """Environment, task, algorithm, run, step; all steps of a run have all metrics, and absolute metrics are last."""
    for seed in range(2):
        reports = [
            report(1000, {"a": policy(1.0 + seed, 900), "b": policy(2.0, 900)}, eval_team_return_mean=7.0),
            report(2000, {"a": policy(), "b": policy()}),
            report(3000, {"a": policy(3.0, 3000), "b": policy(4.0, 3000)}, eval_team_return_mean=5.0),
        ]
        write_run(tmp_path / "runs" / str(seed), reports, config(seed))
    data = json.loads(marl_eval(tasks_of(read_runs([tmp_path / "runs"])[0])))
    (tasks,) = data.values()
    assert list(tasks) == ["cartpole_team"]
    assert list(tasks["cartpole_team"]["tag"]) == ["run_1", "run_2"]
    assert tasks["cartpole_team"]["tag"]["run_2"] == {
        "step_0": {
            "step_count": 900,
            "return": [7.0],
            "policy_a_return": [2.0],
            "policy_b_return": [2.0],
            "all_agents_return": [7.0],
        },
        "step_1": {
            "step_count": 3000,
            "return": [5.0],
            "policy_a_return": [3.0],
            "policy_b_return": [4.0],
            "all_agents_return": [5.0],
        },
        "absolute_metrics": {
            "return": [7.0],
            "policy_a_return": [2.0],
            "policy_b_return": [2.0],
            "all_agents_return": [7.0],
        },
    }


def test_marl_eval_keeps_groups_apart_whose_names_are_alike(tmp_path: Path) -> None:
    a = write_seeds(tmp_path / "a", [[1.0]], x="A")
    b = write_seeds(tmp_path / "b", [[2.0]], x="a")
    c = write_seeds(tmp_path / "c", [[3.0]], x="a 1")
    ((algorithms,),) = (of.values() for of in json.loads(marl_eval(tasks_of(read_runs([a, b, c])[0]))).values())
    assert [of["run_1"]["step_0"]["return"] for of in algorithms.values()] == [[1.0], [2.0], [3.0]]


def test_marl_eval_keeps_policies_apart_whose_names_are_alike(tmp_path: Path) -> None:
    values = {name: policy(evaluated=value, at=1000) for name, value in (("Prey", 1.0), ("prey", 2.0), ("狐", 3.0))}
    run = write_run(tmp_path / "run", [report(1000, values)], config())
    ((algorithms,),) = (of.values() for of in json.loads(marl_eval(tasks_of(read_runs([run])[0]))).values())
    (group,) = algorithms.values()
    of_policies = {name: value for name, (value,) in group["run_1"]["absolute_metrics"].items() if name != "return"}
    assert sorted(of_policies.values()) == [1.0, 2.0, 3.0]


def test_marl_eval_has_evaluations_only(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [report(1000, {"a": policy(trained=1.0)})], config())
    assert json.loads(marl_eval(tasks_of(read_runs([run])[0]))) == {"marlflow": {}}
