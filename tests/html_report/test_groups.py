"""Runs that differ only in their seed are one group; groups of one environment are compared."""

from pathlib import Path
from typing import Any

import pytest

from marlflow.html_report.differences import KeyDifference, differences, short_names
from marlflow.html_report.groups import Task, tasks_of
from marlflow.html_report.runs import read_runs
from tests.html_report.written import config, evaluated, write_run, write_seeds


def grouped(*folders: Path) -> list[Task]:
    return tasks_of(read_runs(list(folders))[0])


def shape(tasks: list[Task]) -> dict[str, dict[str, list[int]]]:
    return {task.name: {group.name: group.seeds for group in task.groups} for task in tasks}


def with_rate(rate: float, **values: Any) -> dict[str, Any]:
    return {"policies": {"prey": {"algorithm": {"_target_": "marlflow.PPO", "learning_rate": rate}}}, **values}


def test_seeds_are_one_group_and_a_setting_makes_two(tmp_path: Path) -> None:
    slow = write_seeds(tmp_path / "slow", [[1.0]] * 3, **with_rate(1e-4))
    fast = write_seeds(tmp_path / "fast", [[1.0]] * 2, **with_rate(1e-3))
    assert shape(grouped(fast, slow)) == {
        "cartpole_team": {"learning_rate=0.001": [0, 1], "learning_rate=0.0001": [0, 1, 2]}
    }


def test_how_a_run_was_logged_and_saved_does_not_matter(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", evaluated([1.0]), config(0, log={"console": "none"}, checkpoint={"keep": 2}))
    b = write_run(tmp_path / "b", evaluated([1.0]), config(1, log={"console": "live"}, checkpoint={"keep": 9}))
    assert shape(grouped(a, b)) == {"cartpole_team": {"tag": [0, 1]}}


def test_environments_are_apart_but_for_the_number_of_them(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", evaluated([1.0]), config(env={"num_envs": 16}))
    b = write_run(tmp_path / "b", evaluated([1.0]), config(env={"num_envs": 32}))
    c = write_run(tmp_path / "c", evaluated([1.0]), config(env={"num_agents": 5}))
    d = write_run(tmp_path / "d", evaluated([1.0]), config(env={"_target_": "pettingzoo.classic.connect_four_v3.env"}))
    assert shape(grouped(a, b, c, d)) == {
        "cartpole_team, num_agents=2": {"num_envs=16": [0], "num_envs=32": [0]},
        "cartpole_team, num_agents=5": {"tag": [0]},
        "connect_four_v3": {"tag": [0]},
    }


def test_groups_of_many_differences_have_the_names_of_runs_or_folders(tmp_path: Path) -> None:
    many = {f"key_{number}": number for number in range(5)}
    a = write_seeds(tmp_path / "first", [[1.0]] * 2)
    b = write_seeds(tmp_path / "second", [[1.0]] * 2, extra=1, **many)
    assert list(shape(grouped(a, b))["cartpole_team"]) == ["first", "second"]
    c = write_seeds(tmp_path / "third", [[1.0]] * 2, **{**many, "key_3": "x", "name": "own"})
    assert list(shape(grouped(a, c))["cartpole_team"]) == ["tag", "own"]


def test_a_run_of_unknown_configuration_is_a_group_of_its_own(tmp_path: Path) -> None:
    a, b = (write_run(tmp_path / name, evaluated([1.0])) for name in "ab")
    assert shape(grouped(a, b)) == {"environment not recorded": {"a": [], "b": []}}


def test_runs_of_a_group_are_in_the_order_of_their_seeds(tmp_path: Path) -> None:
    runs = [write_run(tmp_path / str(seed), evaluated([1.0]), config(seed)) for seed in (10, 2, 7)]
    assert shape(grouped(*runs)) == {"cartpole_team": {"tag": [2, 7, 10]}}


def test_differences_are_by_key_and_of_other_classes_by_class() -> None:
    first = {"a": {"_target_": "marlflow.algorithms.ppo.PPO", "model": {}}, "b": [1, {"c": 2}], "d": 1, "seed": 1}
    second = {"a": {"_target_": "marlflow.algorithms.dqn.DQN", "double": True}, "b": [1, {"c": 3}], "seed": 2}
    assert differences([first, second], ["seed"]) == [
        KeyDifference("a", ("PPO", "DQN")),
        KeyDifference("b", ('[1, {"c": 2}]', '[1, {"c": 3}]')),
        KeyDifference("d", ("1", "–")),
    ]
    assert differences([first, first]) == []
    assert differences([{"a": 1}, {"a": True}]) == [KeyDifference("a", ("1", "true"))]
    assert differences([{"a": 1}, {"a": 1.0}]) == []


def test_names_use_as_much_of_a_key_as_tells_it_apart() -> None:
    configs = [{"x": {"rate": 1, "n": 0}, "y": {"rate": y, "n": 0}} for y in (1, 2)]
    assert short_names(configs) == ["rate=1", "rate=2"]
    configs = [{"x": {"rate": x}, "y": {"rate": y}} for x, y in ((1, 1), (2, 3))]
    assert short_names(configs) == ["x.rate=1, y.rate=1", "x.rate=2, y.rate=3"]


@pytest.mark.parametrize("long", ["v" * 60, {"_target_": f"module.{'V' * 60}"}])
def test_long_names_are_left_out(long: object) -> None:
    assert short_names([{"a": long}, {"a": 1}]) == ["", ""]
