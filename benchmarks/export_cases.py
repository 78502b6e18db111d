"""Short runs whose policies are exported: every network that an algorithm of marlflow has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from pettingzoo import ParallelEnv

OBSERVATIONS: dict[str, gym.Space[Any]] = {
    "vector": gym.Box(-np.inf, np.inf, (6,), np.float32),
    "number": gym.Discrete(5),
    "pixels": gym.Box(0, 255, (12, 12, 3), np.uint8),
    "nested": gym.Dict(
        {
            "image": gym.Box(0, 255, (12, 12, 3), np.uint8),
            "x": gym.Box(-1, 1, (3,)),
            "kind": gym.Discrete(3, start=2),
        }
    ),
    "flat": gym.Dict({"x": gym.Box(-1, 1, (3,)), "inner": gym.Tuple([gym.MultiDiscrete([3, 2]), gym.MultiBinary(2)])}),
}
ACTIONS: dict[str, gym.Space[Any]] = {
    "one": gym.Discrete(4, start=1),
    "components": gym.MultiDiscrete([3, 4], start=[0, 2]),
    "bits": gym.MultiBinary((2, 2)),
    "box": gym.Box(np.array([-2, -1, 0], np.float32), np.array([2, 3, 5], np.float32)),
    "unbounded": gym.Box(-np.inf, np.inf, (2,)),
    "scalar": gym.Box(-1, 1, ()),
}
_MAX_CYCLES = 25


class AnySpaces(ParallelEnv[str, Any, Any]):
    """An environment with chosen spaces, whose observations are random; large actions are rewarded, with masks or not.

    It has no meaning but that each kind of input and output is trained by rewards.
    """

    metadata = {"name": "any_spaces", "render_modes": []}  # noqa: RUF012  (PettingZoo's own way)

    def __init__(self, observation: str = "vector", action: str = "one", masked: bool = False) -> None:
        self.possible_agents = ["player_0"]
        self.agents: list[str] = []
        self._observation, self._action, self._masked = OBSERVATIONS[observation], ACTIONS[action], masked
        self._width = 0
        if masked:
            sizes = [self._action.n] if isinstance(self._action, gym.Discrete) else self._action.nvec
            self._width = int(np.sum(sizes))
            self._sizes = sizes
        self._random = np.random.default_rng(0)
        self._steps = 0

    def observation_space(self, agent: str) -> Any:
        if not self._masked:
            return self._observation
        return gym.Dict({"observation": self._observation, "action_mask": gym.Box(0, 1, (self._width,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return self._action

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        if seed is not None:
            self._observation.seed(seed)
            self._random = np.random.default_rng(seed)
        self.agents, self._steps = list(self.possible_agents), 0
        return self._seen(), {"player_0": {}}

    def step(self, actions: Any) -> Any:
        self._steps += 1
        reward = float(np.clip(np.asarray(actions["player_0"], np.float64), -10, 10).mean())
        seen, over = self._seen(), self._steps >= _MAX_CYCLES
        if over:
            self.agents = []
        none, ended = {"player_0": False}, {"player_0": over}
        return seen, {"player_0": reward}, none, ended, {"player_0": {}}

    def _seen(self) -> dict[str, Any]:
        observation = self._observation.sample()
        if not self._masked:
            return {"player_0": observation}
        mask = (self._random.random(self._width) < 0.5).astype(np.int8)
        # One value of each component is legal in any case.
        starts = np.cumsum([0, *self._sizes])[:-1]
        mask[starts + self._random.integers(0, self._sizes)] = 1
        return {"player_0": {"observation": observation, "action_mask": mask}}


@dataclass(frozen=True)
class Case:
    """A run of `words`, of which `policies` are exported, or all that learned; `after` is a case to run before it."""

    name: str
    words: Sequence[str]
    policies: Sequence[str] = ()
    after: str | None = None


_CARTS = ("experiment=cartpole_team_ppo", "stop.env_steps=4096")
_SMALL_CNN = (
    "default_policy.model.channels=[8,16]",
    "default_policy.model.kernel_sizes=[4,3]",
    "default_policy.model.strides=[2,1]",
    "default_policy.model.hidden_sizes=[64]",
)


def _carts(name: str, *words: str, steps: int = 4_096) -> Case:
    return Case(name, (f"experiment=cartpole_team_{name}", f"stop.env_steps={steps}", *words))


def _pendulum(algorithm: str) -> Case:
    words = ("env=pendulum_team", f"policy@default_policy={algorithm}", "stop.env_steps=2500")
    return Case(f"{algorithm}, pendulum", words)


def _spread(algorithm: str, *words: str, name: str = "") -> Case:
    chosen = ("env=simple_spread", f"policy@policies.agent={algorithm}", "stop.env_steps=3000", *words)
    return Case(f"{algorithm}{name}, spread", chosen)


# Small batches, so that a short run has many updates.
_BATCH = "default_policy.algorithm.batch_agent_steps=500"


def _spaces(name: str, observation: str, action: str, *words: str, masked: bool = False) -> Case:
    env = ("env=python", "env._target_=benchmarks.export_cases.AnySpaces", f"env.observation={observation}")
    chosen = (*env, f"env.action={action}", f"env.masked={masked}", "stop.env_steps=3000", _BATCH, *words)
    return Case(name, chosen)


_FEW_PIXELS = ("env.num_envs=2", "rollouts.fragment_env_steps=100", "stop.env_steps=200")
_TRAIN_EVERY = "default_policy.algorithm.train_every_agent_steps=16"
_SAC_BATCH = "default_policy.algorithm.batch_agent_steps=64"
_STARTS = "policies.team.algorithm.learning_starts_agent_steps=1000"
_CNN = ("model@default_policy.model=cnn", *_SMALL_CNN)
_TINY_CNN = (
    "model@default_policy.model=cnn",
    "default_policy.model.channels=[4]",
    "default_policy.model.kernel_sizes=[3]",
    "default_policy.model.strides=[1]",
    "default_policy.model.hidden_sizes=[16]",
)

CASES: tuple[Case, ...] = (
    _carts("ppo"),
    Case("ppo, relu", (*_CARTS, "policies.team.model.activation=relu")),
    Case("ppo, normalized observations", (*_CARTS, "policies.team.model.normalize_observations=true")),
    Case("ppo, 256 x 256", (*_CARTS, "policies.team.model.hidden_sizes=[256,256]")),
    *(_carts(name) for name in ("a2c", "a3c", "impala", "appo", "ddppo", "dqn", "c51", "sac")),
    _carts("apex", _STARTS),
    Case("ppo, and plain dqn, the demo", ("experiment=cartpole_team_ppo_dqn", "stop.env_steps=50000")),
    _carts("memory_recurrent_ppo", steps=6_000),
    Case(
        "recurrent_ppo, LSTM",
        (
            "experiment=cartpole_team_memory_recurrent_ppo",
            "model@policies.team.model=lstm",
            "stop.env_steps=6000",
        ),
    ),
    _carts("memory_r2d2"),
    Case("expert of bc", (*_CARTS, "record=dataset")),
    *(
        Case(name, (f"experiment=cartpole_team_{name}", "env.folder={expert of bc}/record"), after="expert of bc")
        for name in ("bc", "marwil")
    ),
    *(_pendulum(algorithm) for algorithm in ("ppo", "sac", "td3", "ddpg")),
    _spread("mappo"),
    _spread("happo"),
    _spread("vdn"),
    _spread("qmix"),
    _spread("qmix", "model@policies.agent.model=gru", name=", GRU"),
    *(_spread(name) for name in ("maddpg", "matd3", "masac")),
    *(_spread(name, "env.continuous_actions=true", name=", Box") for name in ("maddpg", "matd3", "masac")),
    Case("maddpg of two", ("experiment=simple_speaker_listener_maddpg", "stop.env_steps=4000")),
    Case("ppo and dqn, connect_four", ("experiment=connect_four_ppo_dqn", "stop.env_steps=6000")),
    Case("dqn and clone, kuhn poker", ("experiment=kuhn_nfsp", "stop.env_steps=6000")),
    Case(
        "ppo, pixels of pistonball",
        ("env=pistonball", "wrappers=pixels", *_CNN, _BATCH, *_FEW_PIXELS, "default_policy.algorithm.epochs=2"),
    ),
    Case(
        "dqn, pixels of pong",
        (
            *("env=cooperative_pong", "wrappers=pixels", "policy@default_policy=dqn", *_CNN, *_FEW_PIXELS),
            # It draws nothing without a render mode, and then all observations are black.
            *("env.render_mode=rgb_array", "default_policy.algorithm.learning_starts_agent_steps=100", _TRAIN_EVERY),
        ),
    ),
    Case("ppo, knights and archers", ("env=knights_archers_zombies", _BATCH, "stop.env_steps=3000")),
    _spaces("ppo, components with masks", "vector", "components", masked=True),
    _spaces("ppo, bits", "vector", "bits"),
    _spaces("ppo, a number", "number", "one"),
    _spaces("ppo, nested with pixels", "nested", "one", *_TINY_CNN),
    _spaces("ppo, nested with pixels, dense", "nested", "one"),
    _spaces("ppo, nested without pixels", "flat", "one", masked=True),
    _spaces("ppo, Box", "vector", "box"),
    _spaces("ppo, Box without bounds", "vector", "unbounded"),
    _spaces("sac, one number", "vector", "scalar", "policy@default_policy=sac", _SAC_BATCH),
    _spaces("recurrent_ppo, nested", "nested", "box", "policy@default_policy=recurrent_ppo"),
)
