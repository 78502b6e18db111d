"""Environments by name from Python are those of the command line."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.config.comments import names
from marlflow.config.environment import environment_maker, opened
from marlflow.config.named_environments import default_run_name
from marlflow.sampling.mapping import group
from tests.config.composition import experiment_of

NAMES = [
    name for name in names("env") if name not in ("functional", "gymnasium_team", "offline", "pettingzoo", "python")
]


@pytest.mark.parametrize("name", ["simple_tag", "knights_archers_zombies", "pistonball", "openspiel"])
def test_a_name_is_what_the_command_line_makes_of_it(name: str) -> None:
    by_name, composed = mf.Env(name), experiment_of(f"env={name}").env
    assert by_name == replace(composed, wrappers=tuple(composed.wrappers))
    assert type(by_name.num_envs) is int


@pytest.mark.parametrize("name", NAMES)
def test_every_environment_of_the_command_line_has_its_name_in_python(name: str) -> None:
    assert "." in str(mf.Env(name).factory)


def test_an_id_of_pettingzoo_is_a_name(recwarn: pytest.WarningsRecorder) -> None:
    by_id = mf.Env("butterfly/pistonball-v6", {"n_pistons": 3})
    composed = experiment_of("env=pettingzoo", "env.id=butterfly/pistonball-v6", "+env.n_pistons=3")
    assert by_id.arguments.items() <= composed.env.arguments.items()
    assert (by_id.factory, composed.env.arguments["api"]) == (composed.env.factory, None)
    assert composed.name == "pistonball-v6"


def test_what_is_said_beside_a_name_is_in_place_of_its_own_or_around_it() -> None:
    env = mf.Env("knights_archers_zombies", {"num_knights": 1, "render_mode": None}, [repr], num_envs=16)
    (clip,) = mf.Env("knights_archers_zombies").wrappers
    assert (env.arguments["num_knights"], env.arguments["num_archers"], env.arguments["render_mode"]) == (1, 2, None)
    assert list(env.wrappers) == [clip, repr]
    assert (mf.Env("pistonball").num_envs, mf.Env("pistonball", num_envs=16).num_envs) == (4, 16)


def test_an_environment_by_name_can_be_run() -> None:
    assert "policy" not in str(mf.plan(mf.Experiment(mf.Env("cartpole_team", {"num_agents": 2}))))


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("simple_tga", {}, "there is no environment 'simple_tga'; did you mean 'simple_tag'?"),
        (
            "python",
            {},
            "there is no environment 'python'; there are cartpole_family, cartpole_team, .* is the function",
        ),
        ("simple_tag", {"nm_good": 2}, "environment 'simple_tag' has no argument 'nm_good'; did you mean 'num_good'?"),
        ("offline", {}, r"environment 'offline' needs 'folder': write Env\('offline', {'folder': ...}\)"),
    ],
)
def test_a_name_or_an_argument_that_does_not_exist_is_refused(
    name: str, arguments: dict[str, int], expected: str
) -> None:
    with pytest.raises(mf.ConfigInvalid, match=expected.replace("?", r"\?")):
        mf.Env(name, arguments)


def test_a_configuration_says_how_a_name_is_chosen() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"not 'simple_tag'; that environment is env=simple_tag"):
        experiment_of("env=python", "env._target_=simple_tag")


def some_env() -> None:
    """Stand for a factory of the user's."""


@pytest.mark.parametrize(
    ("env", "name"),
    [
        (mf.Env("simple_tag", {"num_good": 2}), "simple_tag"),
        (mf.Env("connect_four"), "connect_four"),
        (mf.Env("classic/connect_four-v3"), "connect_four"),
        (mf.Env("atari/pong-v3"), "pong-v3"),
        (mf.Env("my_module.make"), "my_module.make"),
        (mf.Env(some_env), "some_env"),
        (mf.Env(lambda: None), None),
    ],
)
def test_a_run_without_a_name_has_that_of_its_environment(env: mf.Env, name: str | None) -> None:
    assert default_run_name(env.factory, env.arguments) == name


@pytest.mark.slow
def test_the_page_on_environments_has_the_groups_of_each() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", page.partition("\n## Groups\n")[2].partition("\n## ")[0], re.M)[1:]
    listed = {
        name: {found: int(count) for found, count in re.findall(r"`(\w+)` (\d+)", groups)}
        for envs, groups in rows
        for name in re.findall(r"`(\w+)`", envs)
    }
    assert set(NAMES) - {"jaxmarl", "jumanji", "pgx", "vmas"} == set(listed)
    for name, groups in listed.items():
        env = experiment_of(f"env={name}").env
        with opened(environment_maker(env), env) as adapter:
            assert Counter(map(group, adapter.agents)) == groups, name


def test_wrappers_of_the_shipped_groups_have_names() -> None:
    env = mf.Env("simple_tag", wrappers=["padding", outermost])
    *padding, last = env.wrappers
    assert [wrapper.name.rpartition(".")[2] for wrapper in padding] == ["pad_observations", "pad_actions"]
    assert last is outermost
    assert mf.Env(outermost, wrappers=["padding"]).wrappers == tuple(padding)


def outermost(env: Any) -> Any:
    return env


@pytest.mark.parametrize("wrappers", ["padding", None, {"padding": outermost}])
def test_what_is_no_list_of_wrappers_is_refused(wrappers: Any) -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"^wrappers is .*, not a list of functions and names$"):
        mf.Env("simple_tag", wrappers=wrappers)


def test_a_wrapper_that_does_not_exist_is_named() -> None:
    with pytest.raises(mf.ConfigInvalid, match=r"there is no wrapper 'pading'; did you mean 'padding'\?"):
        mf.Env("simple_tag", wrappers=["pading"])
