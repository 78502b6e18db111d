"""A toy that two groups share and in which neither can tell that the other is there; and every algorithm, made small.

So whatever one group's policy learns beside another, it learns beside any other too, bit for bit.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from gymnasium.spaces import Box, Discrete, Space
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.arrays import Array

EPISODE = 10
WIDTHS = {"left": 3, "right": 4}
"""How many numbers each group sees: no network takes the other's rows."""


class TwoGroups(ParallelEnv[str, Array, Any]):
    """Agents left_0, left_1, right_0: each sees noise, and is paid for an action like its first number.

    `box` names the groups whose actions are numbers instead of one of two. One of the left leaves early, at times.
    """

    metadata: ClassVar[dict[str, Any]] = {"name": "two_groups_v0", "tasks": True}

    def __init__(self, box: tuple[str, ...] = ()) -> None:
        self.possible_agents = ["left_0", "left_1", "right_0"]
        self.agents: list[str] = []
        self._box = box
        self._random = {agent: np.random.default_rng(0) for agent in self.possible_agents}

    def observation_space(self, agent: str) -> Box:
        return Box(-5.0, 5.0, (WIDTHS[agent.partition("_")[0]],), np.float32)

    def action_space(self, agent: str) -> Space[Any]:
        return Box(-1.0, 1.0, (1,), np.float32) if agent.partition("_")[0] in self._box else Discrete(2)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.agents, self._step = self.possible_agents[:], 0
        if seed is not None:
            self._random = {a: np.random.default_rng((seed, n)) for n, a in enumerate(self.possible_agents)}
        return self._see(self.agents), {agent: {} for agent in self.agents}

    def _see(self, agents: list[str]) -> dict[str, Array]:
        seen = {}
        for agent in agents:
            group = agent.partition("_")[0]
            seen[agent] = self._random[agent].uniform(-1.0, 1.0, WIDTHS[group]).astype(np.float32)
        self._seen = seen
        return dict(seen)

    def step(self, actions: dict[str, Any]) -> tuple[Any, ...]:
        playing, self._step = self.agents, self._step + 1
        rewards = {agent: self._reward(agent, actions[agent]) for agent in playing}
        terminated = {agent: agent == "left_1" and self._random[agent].random() < 0.1 for agent in playing}
        truncated = {agent: self._step >= EPISODE and not terminated[agent] for agent in playing}
        self.agents = [agent for agent in playing if not terminated[agent] and not truncated[agent]]
        return self._see(playing), rewards, terminated, truncated, {agent: {} for agent in playing}

    def _reward(self, agent: str, action: Any) -> float:
        wanted = float(self._seen[agent][0])
        chosen = float(action[0]) if agent.partition("_")[0] in self._box else 2.0 * float(action) - 1.0
        return 1.0 - abs(chosen - np.sign(wanted))


MLP = mf.MLP((8,))
GRU = mf.GRU(8, (8,))
OFF = {"batch_agent_steps": 16, "train_every_agent_steps": 8, "learning_starts_agent_steps": 40}

SMALL: dict[str, tuple[mf.Algorithm, mf.TorsoConfig]] = {
    "ppo": (mf.PPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20), MLP),
    "a2c": (mf.A2C(batch_agent_steps=40), MLP),
    "a3c": (mf.A3C(), MLP),
    "impala": (mf.IMPALA(batch_agent_steps=40), MLP),
    "appo": (mf.APPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20), MLP),
    "ddppo": (mf.DDPPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20), MLP),
    "recurrent_ppo": (
        mf.RecurrentPPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20, sequence_agent_steps=4),
        GRU,
    ),
    "dqn": (mf.DQN(**OFF, prioritized=True, n_step=2), MLP),
    "apex": (mf.ApeX(**OFF, replay_shards=2, n_step=2), MLP),
    "r2d2": (
        mf.R2D2(**(OFF | {"train_every_agent_steps": 16}), sequence_agent_steps=4, burn_in_agent_steps=2, n_step=2),
        GRU,
    ),
    "vdn": (mf.VDN(**OFF, n_step=2), MLP),
    "qmix": (mf.QMIX(**OFF, prioritized=True, mixer_sees="observations", embed_size=4), MLP),
    "sac": (mf.SAC(**OFF), MLP),
    "td3": (mf.TD3(**OFF), MLP),
    "ddpg": (mf.DDPG(**OFF), MLP),
    "bc": (mf.BC(batch_agent_steps=40, minibatch_agent_steps=20), MLP),
    "marwil": (mf.MARWIL(batch_agent_steps=40, minibatch_agent_steps=20), MLP),
    "maml": (mf.MAML(), MLP),
}
IN_A_BOX = frozenset({"td3", "ddpg"})
OFFLINE = frozenset({"bc", "marwil"})


def pair(left: str, right: str, records: str, runtime: str = "inline", env_steps: int = 400) -> mf.Experiment:
    """Two algorithms of SMALL, or `random`, beside each other; `records` is a folder with rows of both groups."""
    policies = {}
    for group, name in {"left": left, "right": right}.items():
        algorithm, model = SMALL.get(name, (mf.Random(), MLP))
        recorded = mf.OfflineData(records, group) if name in OFFLINE else None
        policies[group] = mf.Policy(algorithm, model, experience=recorded)
    box = tuple(group for group, name in {"left": left, "right": right}.items() if name in IN_A_BOX)
    return mf.Experiment(
        mf.Env(TwoGroups, {"box": box}, num_envs=4),
        policies,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=40),
        runtime=mf.RuntimeConfig(runtime),  # type: ignore[arg-type]
        stop=mf.Stop(env_steps=env_steps),
        evaluation=mf.Evaluation(episodes=0),
        checkpoint=mf.CheckpointConfig(every_env_steps=None, replay="none"),
        log=mf.Log(every_env_steps=10_000, console="none", tensorboard=False),
    )
