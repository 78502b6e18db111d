"""Runs that differ only in their seed are one group; groups of one environment are compared."""

from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import yaml

from marlflow.base.errors import ConfigInvalid
from marlflow.env.games.cartpole_team import parallel_env
from marlflow.html_report.differences import KeyDifference, differences, short_names
from marlflow.html_report.groups import ADDS_STATE, Grouping, Task, tasks_of
from marlflow.html_report.runs import read_runs
from tests.html_report.written import config, evaluated, policy, report, write_run, write_seeds


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
    assert differences([[first], [second]], ["seed"]) == [
        KeyDifference("a", ("PPO", "DQN")),
        KeyDifference("b", ("[1, {c: 2}]", "[1, {c: 3}]")),
        KeyDifference("d", ("1", "–")),
    ]
    assert differences([[first], [first]]) == []
    assert differences([[{"a": 1}], [{"a": True}]]) == [KeyDifference("a", ("1", "true"))]
    assert differences([[{"a": 1}], [{"a": 1.0}]]) == []


def test_names_use_as_much_of_a_key_as_tells_it_apart() -> None:
    configs = [{"x": {"rate": 1, "n": 0}, "y": {"rate": y, "n": 0}} for y in (1, 2)]
    assert short_names(configs) == ["rate=1", "rate=2"]
    configs = [{"x": {"rate": x}, "y": {"rate": y}} for x, y in ((1, 1), (2, 3))]
    assert short_names(configs) == ["x.rate=1, y.rate=1", "x.rate=2, y.rate=3"]


@pytest.mark.parametrize("long", ["v" * 60, {"_target_": f"module.{'V' * 60}"}])
def test_long_names_are_left_out(long: object) -> None:
    assert short_names([{"a": long}, {"a": 1}]) == ["", ""]


STATE = {"_target_": "marlflow.env.wrappers.shipped.joint_state"}
PADDING = {"_target_": "marlflow.env.wrappers.shipped.pad_observations"}


def of(algorithm: str, rate: float = 1e-3, **values: Any) -> dict[str, Any]:
    settings = {
        "_target_": f"marlflow.algorithms.{algorithm.lower()}.{algorithm}",
        "learning_rate": rate,
        "a": 1,
        "b": 2,
        "c": 3,
    }
    return {"policies": {"prey": {"algorithm": settings}}, **values}


def test_what_only_adds_a_state_makes_no_other_environment(tmp_path: Path) -> None:
    """QMIX and MAPPO need it where an environment has none, and VDN does not."""
    wrappers: list[Any] = [[STATE], [STATE], [], None, {"joint_state": STATE}]
    names = ["QMIX", "MAPPO", "VDN", "PPO", "DQN"]
    folders = [
        write_seeds(tmp_path / name, [[1.0]] * 2, env={"wrappers": wrapped}, **of(name))
        for name, wrapped in zip(names, wrappers, strict=True)
    ]
    assert shape(grouped(*folders)) == {"cartpole_team": {name: [0, 1] for name in names}}


def test_a_wrapper_that_changes_the_environment_makes_another_one(tmp_path: Path) -> None:
    folders = [
        write_seeds(tmp_path / str(at), [[1.0]], env={"wrappers": wrappers}, **of("PPO"))
        for at, wrappers in enumerate([[], [STATE, PADDING], [PADDING], [PADDING, "unknown", 7]])
    ]
    found = shape(grouped(*folders))
    assert sorted(map(len, found.values())) == [1, 1, 2]
    assert not any("_target_" in name or '"' in name for name in found)
    assert "cartpole_team, wrappers=[shipped.pad_observations]" in found


@pytest.mark.parametrize("name", ADDS_STATE)
def test_the_wrappers_that_only_add_a_state_do_only_that(name: str) -> None:
    plain, wrapped = parallel_env(num_agents=2), resolve_name(name)(parallel_env(num_agents=2))
    assert isinstance(wrapped.state(), np.ndarray)
    for agent in plain.possible_agents:
        assert wrapped.observation_space(agent) == plain.observation_space(agent)
        assert wrapped.action_space(agent) == plain.action_space(agent)
    (first, _), (second, _) = plain.reset(seed=3), wrapped.reset(seed=3)
    while plain.agents:
        actions = dict.fromkeys(plain.agents, 1)
        for one, other in zip(plain.step(actions), wrapped.step(actions), strict=True):
            assert repr(one) == repr(other)
        assert plain.agents == wrapped.agents
    assert repr(first) == repr(second)


RATES = [("PPO", 1e-3, 4), ("PPO", 1e-2, 4), ("DQN", 1e-3, 4), ("DQN", 1e-2, 8)]
BY: dict[str, tuple[list[str], dict[str, int]]] = {
    "class": (["algorithm"], {"PPO": 2, "DQN": 2}),
    "end": (["learning_rate"], {"learning_rate=0.001": 2, "learning_rate=0.01": 2}),
    "whole": (["policies.prey.algorithm.learning_rate"], {"learning_rate=0.001": 2, "learning_rate=0.01": 2}),
    "two": (["algorithm", "learning_rate"], {f"{name}, learning_rate={rate}": 1 for name, rate, _ in RATES}),
    "seed": (["seed"], {"seed=0": 4}),
    "some have it": (["x"], {"x=–": 3, "x=8": 1}),
    "name": (["name"], {"name=tag": 4}),
    "section": (["env"], {"env=cartpole_team.parallel_env(2, 16)": 4}),
}


@pytest.mark.parametrize(("keys", "expected"), BY.values(), ids=BY)
def test_groups_are_runs_with_equal_values_of_the_chosen_keys(
    tmp_path: Path, keys: list[str], expected: dict[str, int]
) -> None:
    for at, (name, rate, x) in enumerate(RATES):
        write_seeds(tmp_path / str(at), [[1.0]], **of(name, rate, **({"x": x} if x == 8 else {})))
    (task,) = tasks_of(read_runs([tmp_path])[0], Grouping(tuple(keys)))
    assert {group.name: len(group.runs) for group in task.groups} == expected


def test_a_default_policy_says_nothing_about_policies_of_their_own(tmp_path: Path) -> None:
    default = {"algorithm": {"_target_": "marlflow.algorithms.ppo.PPO", "learning_rate": 1.0}}
    other = {"algorithm": {"_target_": "marlflow.algorithms.dqn.DQN", "learning_rate": 2.0}}
    write_seeds(tmp_path / "a", [[1.0]], default_policy=default, **of("QMIX"))
    write_seeds(tmp_path / "b", [[1.0]], default_policy=other, **of("QMIX"))
    write_seeds(tmp_path / "c", [[1.0]], policies={}, default_policy=other)
    (task,) = tasks_of(read_runs([tmp_path])[0], Grouping(("algorithm",)))
    assert {group.name: len(group.runs) for group in task.groups} == {"QMIX": 2, "DQN": 1}


def test_policies_that_differ_are_named_in_groups(tmp_path: Path) -> None:
    for name in ("PPO", "DQN"):
        policies = {"prey": of("PPO")["policies"]["prey"], "hunter": of(name)["policies"]["prey"]}
        write_seeds(tmp_path / name, [[1.0]], policies=policies)
    (task,) = tasks_of(read_runs([tmp_path])[0], Grouping(("algorithm",)))
    assert [group.name for group in task.groups] == ["prey=PPO, hunter=DQN", "PPO"]


def test_environments_that_differ_only_in_merged_keys_are_compared(tmp_path: Path) -> None:
    for agents in (2, 5):
        for cycles in (100, 200):
            env = {"num_agents": agents, "max_cycles": cycles}
            write_seeds(tmp_path / f"{agents}_{cycles}", [[1.0]], env=env)
    runs = read_runs([tmp_path])[0]
    assert len(tasks_of(runs)) == 4
    by_agents = tasks_of(runs, Grouping(merge=("max_cycles",)))
    assert [task.name for task in by_agents] == ["cartpole_team, num_agents=2", "cartpole_team, num_agents=5"]
    assert [group.name for group in by_agents[0].groups] == ["max_cycles=100", "max_cycles=200"]
    for everything in (("env",), ("max_cycles", "env.num_agents")):
        (task,) = tasks_of(runs, Grouping(merge=everything))
        assert (task.name, len(task.groups)) == ("cartpole_team", 4)
    (task,) = tasks_of(runs, Grouping(("num_agents",), ("env",)))
    assert [group.name for group in task.groups] == ["num_agents=2", "num_agents=5"]


def test_runs_may_be_grouped_by_what_never_tells_them_apart_otherwise(tmp_path: Path) -> None:
    write_seeds(tmp_path / "slow", [[1.0], [2.0]], **with_rate(1e-4))
    write_seeds(tmp_path / "fast", [[3.0], [4.0]], **with_rate(1e-3))
    runs = read_runs([tmp_path])[0]
    by_seed = tasks_of(runs, Grouping(("seed",)))
    assert shape(by_seed) == {"cartpole_team": {"seed=0": [0, 0], "seed=1": [1, 1]}}
    (task,) = tasks_of(runs, Grouping(("learning_rate", "seed")))
    assert len(task.groups) == 4


@pytest.mark.parametrize(
    ("grouping", "sentence"),
    [
        (Grouping(("learning_rat",)), "group_by: no run has a key 'learning_rat' in its configuration; did you mean"),
        (Grouping(("rate",)), "group_by: no run has a key 'rate'"),
        (Grouping(("nothing of this kind",)), "; there are "),
        (Grouping(merge=("max_cycle",)), "merge: 'max_cycle' is a key of no run's env; did you mean 'max_cycles'"),
        (Grouping(merge=("learning_rate",)), "merge: 'learning_rate' is not a key of env; there are env, env._target_"),
        (
            Grouping(merge=("env",)),
            r"merge: .*b \(other: policies.hunter.eval_return_mean\) and .*a.0 \(cartpole_team: ",
        ),
    ],
)
def test_a_grouping_that_does_not_fit_is_refused(tmp_path: Path, grouping: Grouping, sentence: str) -> None:
    write_seeds(tmp_path / "a", [[1.0]], env={"max_cycles": 5}, **of("PPO"))
    write_run(tmp_path / "b", [report(1000, {"hunter": policy(2.0, 1000)})], config(env={"_target_": "other.env"}))
    with pytest.raises(ConfigInvalid, match=sentence) as found:
        tasks_of(read_runs([tmp_path])[0], grouping)
    assert len(str(found.value)) < 2000


def test_runs_of_unknown_configuration_stay_apart_whatever_is_chosen(tmp_path: Path) -> None:
    write_seeds(tmp_path / "a", [[1.0]], **of("PPO"))
    for name in "bc":
        write_run(tmp_path / name, evaluated([1.0]))
    tasks = tasks_of(read_runs([tmp_path])[0], Grouping(("algorithm",), ("env",)))
    assert [len(task.groups) for task in tasks] == [3]


def test_a_run_without_a_whole_configuration_does_not_spoil_the_names_of_others(tmp_path: Path) -> None:
    for name in ("PPO", "DQN"):
        write_seeds(tmp_path / name, [[1.0]] * 2, **of(name))
    damaged = write_run(tmp_path / "damaged", evaluated([1.0]), config(0))
    (damaged / "experiment.json").write_text("{", encoding="utf-8")
    (damaged / ".hydra").mkdir()
    (damaged / ".hydra" / "config.yaml").write_text(yaml.safe_dump(config(0, name="old")), encoding="utf-8")
    for grouping in (Grouping(), Grouping(("algorithm", "a"))):
        (task,) = tasks_of(read_runs([tmp_path])[0], grouping)
        names = [group.name for group in task.groups]
        assert names[0] == "old (damaged)"
        assert [name.partition(",")[0] for name in names[1:]] == ["DQN", "PPO"]


def test_a_group_is_never_named_by_an_interpolation(tmp_path: Path) -> None:
    """Nor a damaged experiment.json passed over in silence."""
    folders = [write_run(tmp_path / f"run_{seed}", evaluated([1.0]), config(seed)) for seed in range(2)]
    composed = {**config(0), "name": "${run_name:${hydra:runtime.choices.env}}", "other": {"x": "${seed}", "y": 1}}
    for folder, text in zip(folders, (yaml.safe_dump(composed), ""), strict=True):
        (folder / ".hydra").mkdir()
        (folder / ".hydra" / "config.yaml").write_text(text, encoding="utf-8")
        path = folder / "experiment.json"
        path.write_bytes(path.read_bytes()[:-20])
    runs, notes = read_runs([tmp_path])
    (task, unknown) = tasks_of(runs)
    assert (task.name, [group.name for group in task.groups]) == ("cartpole_team", ["run_0"])
    assert [group.name for group in unknown.groups] == ["run_1"]
    assert runs[0].config["other"] == {"y": 1}
    assert [note.partition(" is damaged")[0] for note in notes] == [str(one / "experiment.json") for one in folders]
    assert "the run's configuration is that of .hydra/config.yaml" in notes[0]
    assert "is not known" in notes[1]
