"""Observations of several parts reach the learners; observations that no network can read are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import ParallelEnv

import marlflow as mf
from tests.sentences import wrong_with

PANEL = spaces.Dict(
    {
        "lights": spaces.Box(0, 255, (3, 3, 1), np.uint8),
        "noise": spaces.Box(-1.0, 1.0, (1,)),
        "dial": spaces.Discrete(3, start=-1),
    }
)
ROUNDS = 8


class Panels(ParallelEnv):
    """Press the button whose light is on: `eye` has to look at the lights' brightness, `ear` hears its number."""

    metadata: ClassVar[dict[str, Any]] = {"name": "panels_v0"}
    possible_agents: ClassVar[list[str]] = ["eye", "ear"]

    def __init__(self, brightest: float = 255) -> None:
        self.brightest = brightest
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return PANEL if agent == "eye" else spaces.Discrete(3, start=5)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.random = np.random.default_rng(seed)
        self.agents, self.played = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> dict[str, Any]:
        self.on = int(self.random.integers(3))
        lights = np.zeros((3, 3, 1))
        lights[self.on] = self.brightest
        noise = self.random.uniform(-1.0, 1.0, 1)
        return {"eye": {"lights": lights, "noise": noise, "dial": self.random.integers(-1, 2)}, "ear": 5 + self.on}

    def step(self, actions: dict[str, int]) -> tuple[Any, ...]:
        self.played += 1
        rewards = {agent: float(actions[agent] == self.on) for agent in self.agents}
        is_over, agents = self.played >= ROUNDS, self.agents
        if is_over:
            self.agents = []
        ended = dict.fromkeys(agents, is_over)
        return self.seen(), rewards, ended, dict.fromkeys(agents, False), {agent: {} for agent in agents}


def experiment(env: mf.Env, eye: mf.Policy) -> mf.Experiment:
    ear = mf.Policy(
        mf.DQN(learning_starts_agent_steps=200, epsilon=mf.Linear(1.0, 0.05, 1_000), learning_rate=5e-3), mf.MLP((16,))
    )
    return mf.Experiment(
        env,
        policies={"eye": eye, "ear": ear},
        runtime=mf.RuntimeConfig("inline"),
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=200),
        stop=mf.Stop(env_steps=2_400),
        evaluation=mf.Evaluation(every_env_steps=2_400, episodes=10),
    )


@pytest.mark.parametrize("model", [mf.MLP((32,)), mf.CNN((4,), (2,), (1,), (32,))])
def test_what_agents_see_reaches_what_learns(model, tmp_path: Path) -> None:
    eye = mf.Policy(mf.PPO(batch_agent_steps=200, minibatch_agent_steps=50, learning_rate=3e-3, discount=0.0), model)
    metrics = mf.train(experiment(mf.Env(Panels, num_envs=4), eye), tmp_path).metrics["policies"]
    # Guessing gets a third of the rounds.
    assert metrics["eye"]["eval_return_mean"] > 0.95 * ROUNDS
    assert metrics["ear"]["eval_return_mean"] > 0.95 * ROUNDS


def test_an_observation_outside_its_space_ends_the_run_and_is_named(tmp_path: Path) -> None:
    expected = r"panels_v0, env 0, .* agent 'eye': .*\['lights'\] has 256 at \[\d, 0, 0\], above its bound 255"
    with pytest.raises(mf.StageFailed, match=expected):
        mf.train(experiment(mf.Env(Panels, {"brightest": 256}, num_envs=1), mf.Policy(mf.Random())), tmp_path)


class Chat(Panels):
    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return spaces.Dict(said=spaces.Text(9), heard=spaces.Box(0.0, 1.0, (2,))) if agent == "eye" else PANEL


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.DQN(), mf.Random()])
def test_what_nobody_can_see_is_refused_at_start(algorithm) -> None:
    (problem,) = wrong_with(experiment(mf.Env(Chat), mf.Policy(algorithm)))
    assert problem.startswith(f"policy 'eye' ({algorithm.name}) cannot play agent 'eye': observation['said'] is a Text")


def test_a_network_that_cannot_see_a_part_is_refused_at_start() -> None:
    (problem,) = wrong_with(experiment(mf.Env(Panels), mf.Policy(mf.PPO(), mf.CNN())))
    assert problem.startswith("policy 'eye' (ppo): a kernel of 8 x 8 does not fit observation['lights'], 3 x 3; give")
