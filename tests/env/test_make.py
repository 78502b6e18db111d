"""Environments by import path: what comes of a wrong one."""

import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
from pettingzoo import ParallelEnv
from pettingzoo.utils import BaseParallelWrapper

from marlflow.base.errors import ConfigInvalid
from marlflow.env import make_environment
from marlflow.env.games import cartpole_team
from marlflow.env.make import EnvMaker, wrapped
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.receipts import FaultLog
from marlflow.sampling.sampler_config import SamplerConfig
from marlflow.sampling.watchdog import Watchdog

TEAM = "marlflow.env.games.cartpole_team.parallel_env"


class LikeParallel:
    """Has a ParallelEnv's methods without its class."""

    possible_agents: ClassVar = ["a"]
    reset = step = observation_space = action_space = print


def make_class():
    return LikeParallel


def test_what_has_the_methods_of_an_environment_is_one_by_the_class_that_the_message_names():
    class Mine(LikeParallel, ParallelEnv):
        pass

    assert wrapped(Mine(), [], "mine").possible_agents == ["a"]


def test_a_factory_is_called_with_its_arguments():
    assert make_environment(TEAM, {"num_agents": 2}).possible_agents == ["cart_0", "cart_1"]


def test_wrappers_are_applied_in_order():
    applied = []

    def wrapper(name):
        return lambda env: applied.append(name) or BaseParallelWrapper(env)

    env = make_environment(TEAM, {}, [wrapper("first"), wrapper("second")])
    assert applied == ["first", "second"]
    assert isinstance(env.env.env, cartpole_team.CartPoleTeam)


@pytest.mark.parametrize(
    ("target", "arguments", "problem"),
    [
        ("marlflow.env.games.cartpole_team.paralel_env", {}, "has no 'paralel_env'; did you mean 'parallel_env'"),
        ("marlflow.env.games.cartpole_teem.env", {}, "did you mean 'cartpole_team'"),
        ("no_such_package.env", {}, "is its package installed"),
        ("env", {}, "is not an import path"),
        (
            "marlflow.env.games.cartpole_team",
            {},
            "give its function or class, e.g. marlflow.env.games.cartpole_team.parallel_env",
        ),
        # Its package does not import it.
        (
            "tests.check_env.trial_environments",
            {},
            "of type module: give its function or class, e.g. tests.check_env.trial_environments.Knockout",
        ),
        ("tests.sentences", {}, "tests.sentences is of type module: give its function or class"),
        (TEAM, {"num_cats": 2}, "does not take num_cats=2"),
        ("gymnasium.make", {"id": "CartPole-v1"}, "one of several agents, with Tuple spaces, is env=gymnasium_team"),
        (f"{__name__}.make_class", {}, "it returned the class LikeParallel: call it there"),
        ("builtins.dict", {}, "makes a dict, not a PettingZoo AECEnv or ParallelEnv"),
        (f"{__name__}.LikeParallel", {}, "so class Mine(LikeParallel, pettingzoo.ParallelEnv) of your own"),
    ],
)
def test_what_cannot_be_made_is_explained(target, arguments, problem):
    with pytest.raises(ConfigInvalid) as caught:
        make_environment(target, arguments)
    assert problem in str(caught.value)


def test_an_extra_that_is_not_installed_is_named(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("mpe2.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mpe2", None)
    with pytest.raises(ConfigInvalid) as caught:
        make_environment("mpe2.simple_tag_v3.parallel_env", {})
    assert "pip install 'marlflow[mpe]'" in str(caught.value)


def test_a_wrapper_must_return_an_environment():
    with pytest.raises(ConfigInvalid, match="returned NoneType, not an environment"):
        make_environment(TEAM, {}, [lambda env: None])


_QUIETLY = """
from marlflow.env import make_environment
from marlflow.env.simulators import pettingzoo_registry
for id, api in {ids!r}:
    env = make_environment(pettingzoo_registry.TARGET, {{"id": id, "api": api}})
    env.reset(seed=0)
    env.step({{agent: env.action_space(agent).sample() for agent in env.agents}} if api == "parallel" else 1)
    env.close()
"""


def test_environments_that_warn_needlessly_are_quiet_and_bear_that_warnings_are_errors():
    noisy = [
        ("butterfly/cooperative_pong-v6", "parallel"),
        ("classic/texas_holdem_no_limit-v6", "aec"),
        ("sisl/multiwalker-v9", "parallel"),
    ]
    program = _QUIETLY.format(ids=noisy)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


class Seen(BaseParallelWrapper):
    """Keeps how it is rendered."""

    made: ClassVar[list[str | None]] = []

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(cartpole_team.parallel_env(2))
        self.made.append(render_mode)


@pytest.mark.parametrize(
    ("mode", "made"), [("human", ["human", None, None]), ("rgb_array", ["rgb_array"] * 3), (None, [None] * 3)]
)
def test_only_the_first_environment_of_a_run_has_a_window(mode, made, monkeypatch):
    monkeypatch.setattr(Seen, "made", [])
    maker = EnvMaker(Seen, {"render_mode": mode}, (), "Seen")
    # Two workers; what broke is opened again as it was.
    for env_indices in ([0, 1], [2]):
        pool = EnvPool(SamplerConfig(maker, env_indices, None, 0), env_indices, Watchdog(None), FaultLog())
    assert Seen.made == made
    pool.discard([0])
    assert not pool.reset(np.array([0]), np.array([7]), [None]).broken
    assert Seen.made[-1] == made[-1]
