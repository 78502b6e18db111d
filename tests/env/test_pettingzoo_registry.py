"""Environments by PettingZoo's ids are those of their modules; wrong ids are explained."""

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pettingzoo
import pytest
import yaml
from pettingzoo.env_registry import spec

import marlflow as mf
from marlflow import conf
from marlflow.config.environment import environment_identity, environment_name
from marlflow.env import make_environment
from marlflow.env.factories import import_factory
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.simulators import pettingzoo_registry
from tests.config.composition import experiment_of, ready_of

CONF = [yaml.safe_load(path.read_text()) for path in sorted(Path(conf.__path__[0]).glob("env/*.yaml"))]
SHIPPED = [(one["id"], one["api"]) for one in CONF if one["_target_"] == pettingzoo_registry.TARGET and one["api"]]


def _entry(env_id: str, api: str) -> object:
    return import_factory(str(pettingzoo.spec(api, env_id).entry_point).replace(":", "."))


@pytest.mark.parametrize(("env_id", "api"), SHIPPED)
def test_a_shipped_id_is_the_factory_that_its_module_has(env_id: str, api: str) -> None:
    # So training on an id is training on the module, and checkpoints of both are of one environment.
    path = pettingzoo_registry.stable_name({"id": env_id, "api": api})
    assert import_factory(path) is _entry(env_id, api)
    by_path = environment_identity(mf.Env(path, {"max_cycles": 3}))
    assert environment_identity(mf.Env(env_id, {"api": api, "max_cycles": 3})) == by_path


def test_agents_of_cooperative_pong_see_pixels() -> None:
    # PettingZoo draws them only in a render mode; without one all are black.
    shipped = mf.Env("cooperative_pong")
    assert isinstance(shipped.factory, str)
    env = make_environment(shipped.factory, shipped.arguments)
    try:
        observations, _ = env.reset(seed=0)
        assert {agent: int(seen.max()) > 0 for agent, seen in observations.items()} == dict.fromkeys(env.agents, True)
    finally:
        env.close()


def test_all_environments_of_pettingzoo_with_an_extra_ship() -> None:
    ids = {one for one in pettingzoo.aec_registry if one.startswith(("butterfly/", "classic/", "sisl/"))}
    assert {env_id for env_id, _ in SHIPPED} == ids


@pytest.mark.parametrize(
    ("env_id", "api", "agents"),
    [
        ("classic/rps-v2", None, pettingzoo.ParallelEnv),
        ("classic/rps-v2", "aec", pettingzoo.AECEnv),
        ("classic/tictactoe-v3", None, pettingzoo.AECEnv),
        ("classic/tictactoe", "aec", pettingzoo.AECEnv),
    ],
)
def test_the_form_is_parallel_if_there_is_one(env_id: str, api: str | None, agents: type) -> None:
    env = make_environment(pettingzoo_registry.TARGET, {"id": env_id, "api": api})
    assert isinstance(env, agents)
    env.close()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["env.id=butterfly/pistonbal-v6"], "has no environment 'butterfly/pistonbal-v6'; did you mean 'butterfly/pis"),
        (["env.id=pistonball-v5"], "did you mean 'butterfly/pistonball-v6'?"),
        (["env.id=zzz"], "ids look like butterfly/pistonball-v6: atari/"),
        (["env.id=classic/chess-v6", "env.api=parallel"], "'classic/chess-v6' has no parallel form: set env.api=aec"),
        (["env.id=classic/rps-v2", "env.api=turns"], "env.api must be parallel or aec, or null"),
        (["env.id=no_such_module.games:mine-v0"], "no_such_module.games, which is to register 'mine-v0', cannot be"),
        (["env.id=classic/rps-v2", "env.num_action=5"], "there is no env.num_action; did you mean 'env.num_actions'?"),
        (["env.id=classic/rps-v2", "env.num_actions=all"], "env.num_actions must be a number, such as 3"),
        ([], "env.id is not set; give it a value"),
    ],
)
def test_a_wrong_id_is_explained(words: list[str], expected: str) -> None:
    with pytest.raises(mf.ConfigInvalid) as caught:
        ready_of("env=pettingzoo", *words)
    assert expected in str(caught.value)


def test_an_extra_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("pettingzoo.classic.")]:
        monkeypatch.delitem(sys.modules, name)
    # Other tests may have made it, and imported its package's modules.
    spec._load_env_creator.cache_clear()
    for name in {"rlcard", *(name for name in sys.modules if name.startswith("rlcard."))}:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(mf.ConfigInvalid, match=r"pip install 'marlflow\[classic\]'"):
        pettingzoo_registry.make("classic/texas_holdem-v4")


def test_a_module_registers_its_environments_when_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registering.py").write_text(
        "import pettingzoo\n"
        "from marlflow.env.games.cartpole_team import parallel_env\n"
        'pettingzoo.register("parallel", "mine/carts-v1", entry_point=parallel_env, kwargs={"num_agents": 3})\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = experiment_of("env=pettingzoo", "env.id=registering:mine/carts-v1", "+env.max_cycles=7").env
    assert environment_name(env) == "registering:mine/carts-v1"
    assert environment_identity(env) == {"factory": "mine/carts-v1 (parallel)", "arguments": {"max_cycles": 7}}
    assert len(make_environment(str(env.factory), env.arguments).possible_agents) == 3
    monkeypatch.delitem(pettingzoo.parallel_registry, "mine/carts-v1")


def test_no_shipped_environment_uses_a_deprecated_module() -> None:
    program = (
        f"from marlflow.env.simulators import pettingzoo_registry as r\nfor one in {SHIPPED}: r.make(*one).close()\n"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error:The old environment", "-c", program],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, "")


def test_only_pettingzoos_own_pistonball_is_given_a_render_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def parallel_env(**arguments: object) -> CartPoleTeam:
        made.append(arguments)
        return CartPoleTeam()

    monkeypatch.setitem(pettingzoo.parallel_registry, "butterfly/pistonball-v99", None)
    monkeypatch.delitem(pettingzoo.parallel_registry, "butterfly/pistonball-v99")
    pettingzoo.register("parallel", "butterfly/pistonball-v99", entry_point=parallel_env)
    pettingzoo_registry.make("butterfly/pistonball-v99")
    assert made == [{}]


@pytest.mark.parametrize("name", ["pistonball", "cooperative_pong"])
def test_pictures_are_observed_once_and_are_those_of_pettingzoo(name: str) -> None:
    ours = pettingzoo_registry.make(f"butterfly/{name}-v6", render_mode="rgb_array")
    module = importlib.import_module(f"pettingzoo.butterfly.{name}_v6")
    theirs = module.parallel_env(render_mode="rgb_array")
    observed = []
    raw = ours.unwrapped
    observe = raw.observe
    raw.observe = lambda agent: observed.append(agent) or observe(agent)
    pairs = [env.reset(seed=7) for env in (ours, theirs)]
    for env_step in range(3):
        (seen, *rest), (others, *other_rest) = pairs
        assert rest == other_rest
        assert seen.keys() == others.keys() == set(ours.agents)
        assert all(np.array_equal(seen[agent], others[agent]) for agent in seen)
        for agent in ours.agents:
            ours.action_space(agent).seed(env_step)
        actions = {agent: ours.action_space(agent).sample() for agent in ours.agents}
        observed.clear()
        pairs = [env.step(actions) for env in (ours, theirs)]
        assert sorted(observed) == sorted(ours.agents)
    ours.close()
    theirs.close()
