"""MultiDiscrete and MultiBinary policies, held against the enumeration of all actions."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.categorical import MultiCategoricalActor
from marlflow.policy.scripted import CallableActor, RandomActor
from tests.driver.watching import reports
from tests.policy.row_random import row_random
from tests.runtime.small_runs import small_run

ROWS = 4_000
ACTIONS = {
    "several": spaces.MultiDiscrete([2, 3], start=[4, -1]),
    "a matrix": spaces.MultiDiscrete([[2, 2], [3, 1]]),
    "switches": spaces.MultiBinary(3),
    "a grid": spaces.MultiBinary((2, 2)),
}


def actor_of(action: spaces.Space[Any], seed: int = 0) -> MultiCategoricalActor:
    module = ActorCritic(Spaces(spaces.Box(-1.0, 1.0, (3,)), action), mf.MLP((4,)), mf.MLP((4,)), seed)
    assert isinstance(module.actor, MultiCategoricalActor)
    with torch.no_grad():
        module.actor.head.weight.mul_(200.0)
    return module.actor


def legal_mask(choices: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    parts = []
    for count in choices:
        part = rng.random(count) < 0.5
        part[rng.integers(count)] = True
        parts.append(part)
    return np.concatenate(parts)


def naive(logits: np.ndarray, mask: np.ndarray, choices: tuple[int, ...]) -> dict[tuple[int, ...], float]:
    """The probability of every action: products of the components' softmaxes over legal values."""
    by_component, start = [], 0
    for count in choices:
        weights = [
            math.exp(float(x)) if legal else 0.0
            for x, legal in zip(logits[start : start + count], mask[start : start + count], strict=True)
        ]
        by_component.append([weight / sum(weights) for weight in weights])
        start += count
    return {
        action: math.prod(by_component[i][value] for i, value in enumerate(action))
        for action in product(*(range(count) for count in choices))
    }


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
@given(seed=st.integers(0, 50))
def test_log_probabilities_and_entropies_are_those_of_the_enumeration(action: spaces.Space[Any], seed: int) -> None:
    rng, choices = np.random.default_rng(seed), Spaces(spaces.Discrete(2), action).choices
    mask, logits = legal_mask(choices, rng), 2.0 * rng.standard_normal(sum(choices)).astype(np.float32)
    expected = naive(logits, mask, choices)
    assert sum(expected.values()) == pytest.approx(1.0)
    actions = np.array(list(expected)).reshape(-1, *action.shape)  # type: ignore[misc]
    many = [torch.from_numpy(np.tile(array, (len(actions), 1))) for array in (logits, mask)]
    logp, entropy = actor_of(action).log_prob_and_entropy(many[0], torch.from_numpy(actions), many[1])
    np.testing.assert_allclose(logp.exp().numpy(), list(expected.values()), atol=1e-5)
    true_entropy = -sum(p * math.log(p) for p in expected.values() if p > 0)
    np.testing.assert_allclose(entropy.numpy(), true_entropy, atol=1e-4)


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_actions_are_as_frequent_as_they_say_and_legal(action: spaces.Space[Any]) -> None:
    rng, choices = np.random.default_rng(1), Spaces(spaces.Discrete(2), action).choices
    actor, mask = actor_of(action), legal_mask(choices, rng)
    obs = np.tile(rng.standard_normal(3).astype(np.float32), (ROWS, 1))
    masks = np.tile(mask, (ROWS, 1))
    acted = actor.act(obs, masks, None, "explore", row_random(ROWS))
    assert acted.action.shape == (ROWS, *action.shape)  # type: ignore[misc]
    expected = naive(actor.outputs_of(obs[:1])[0], mask, choices)
    flat = [tuple(row) for row in acted.action.reshape(ROWS, -1).tolist()]
    for one, probability in expected.items():
        spread = 5 * math.sqrt(probability * (1 - probability) / ROWS)
        assert flat.count(one) / ROWS == pytest.approx(probability, abs=spread + 1e-9)
    said = [expected[one] for one in flat]
    np.testing.assert_allclose(np.exp(acted.behavior_logp), said, rtol=1e-4)
    greedy = actor.act(obs[:1], masks[:1], None, "greedy", mf.RowRandom(np.zeros(1, np.uint64), np.zeros(1)))
    assert tuple(greedy.action.reshape(-1).tolist()) == max(expected, key=lambda one: expected[one])


@pytest.mark.parametrize("action", ACTIONS.values(), ids=ACTIONS)
def test_random_policies_act_uniformly_over_the_legal(action: spaces.Space[Any]) -> None:
    choices = Spaces(spaces.Discrete(2), action).choices
    mask = legal_mask(choices, np.random.default_rng(2))
    draws = row_random(ROWS)
    acted = RandomActor(action).act(np.zeros((ROWS, 1)), np.tile(mask, (ROWS, 1)), None, "explore", draws)
    expected = naive(np.zeros(len(mask)), mask, choices)
    flat = [tuple(row) for row in acted.action.reshape(ROWS, -1).tolist()]
    np.testing.assert_allclose(np.exp(acted.behavior_logp), [expected[one] for one in flat], rtol=1e-5)
    assert set(flat) == {one for one, probability in expected.items() if probability > 0}


def test_a_function_whose_component_is_illegal_is_refused() -> None:
    mask = np.array([[True, True, False, True, True]])
    for component, legal in ((0, False), (1, True)):
        actor = CallableActor(lambda obs, mask, draws, c=component: np.array([[1, c]]), spaces.MultiDiscrete([2, 3]))
        if legal:
            assert actor.act(np.zeros((1, 1)), mask, None, "explore", None).action.tolist() == [[1, 1]]  # type: ignore[arg-type]
            continue
        with pytest.raises(mf.MarlflowError, match="illegal action"):
            actor.act(np.zeros((1, 1)), mask, None, "explore", None)  # type: ignore[arg-type]


class Locks(ParallelEnv):
    """Two agents set digits; some are forbidden, and an agent that takes one of these is an error.

    The reward is the share of digits that are the largest legal ones.
    """

    metadata = {"name": "locks"}  # noqa: RUF012
    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def __init__(self, action: spaces.Space[Any]) -> None:
        self._action, self._choices = action, Spaces(spaces.Discrete(2), action).choices
        mask = spaces.Box(0, 1, (sum(self._choices),), np.int8)
        self._space = spaces.Dict({"observation": spaces.Box(0.0, 1.0, (2,)), "action_mask": mask})

    def observation_space(self, agent: str) -> Any:
        return self._space

    def action_space(self, agent: str) -> Any:
        return self._action

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.random, self.agents, self.t = np.random.default_rng(seed), list(self.possible_agents), 0
        return self.see(), {agent: {} for agent in self.agents}

    def see(self) -> Any:
        self.masks = {agent: legal_mask(self._choices, self.random) for agent in self.possible_agents}
        seen = np.zeros(2, np.float32)
        return {a: {"observation": seen, "action_mask": self.masks[a].astype(np.int8)} for a in self.possible_agents}

    def step(self, actions: Any) -> Any:
        self.t += 1
        rewards = {}
        for agent, action in actions.items():
            assert self._action.contains(action)
            values, start, right = (action - getattr(self._action, "start", 0)).ravel(), 0, 0
            for value, count in zip(values, self._choices, strict=True):
                legal = np.flatnonzero(self.masks[agent][start : start + count])
                assert value in legal
                right += value == legal[-1]
                start += count
            rewards[agent] = right / len(self._choices)
        over = self.t == 10
        ends = dict.fromkeys(self.agents, over)
        infos: Any = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return self.see(), rewards, dict.fromkeys(ends, False), ends, infos


def last_return(algorithm: mf.Algorithm, action: spaces.Space[Any], folder: Path, env_steps: int, model: Any) -> float:
    policies = {"a": mf.Policy(algorithm, model)}
    env = mf.Env(Locks, {"action": action}, num_envs=4)
    mf.train(small_run(env=env, policies=policies, mapping=[mf.Rule("*", "a")], env_steps=env_steps), folder)
    report = reports(folder)[-1]
    return float(report["policies"]["a"]["return_mean"])


@pytest.mark.learning
@pytest.mark.parametrize("name", ["several", "switches"])
def test_ppo_learns_with_legal_actions_only(name: str, tmp_path: Path) -> None:
    algorithm = mf.PPO(batch_agent_steps=200, epochs=10, minibatch_agent_steps=50, learning_rate=1e-2)
    uniform = last_return(mf.A2C(learning_rate=0.0), ACTIONS[name], tmp_path / "uniform", 2_000, mf.MLP((8,)))
    # Of 10, the most; the mean is over the last half of the episodes.
    assert last_return(algorithm, ACTIONS[name], tmp_path / "ppo", 2_000, mf.MLP((8,))) > 0.5 * (uniform + 10.0)


RUNS = {
    "several": mf.RecurrentPPO(batch_agent_steps=100, epochs=1, minibatch_agent_steps=50),
    "a matrix": mf.IMPALA(batch_agent_steps=100),
    "switches": mf.PPO(batch_agent_steps=100, epochs=1, minibatch_agent_steps=50),
    "a grid": mf.A2C(batch_agent_steps=100),
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_take_legal_actions_only(name: str, tmp_path: Path) -> None:
    algorithm = RUNS[name]
    model = mf.GRU(8, (8,)) if isinstance(algorithm, mf.RecurrentPPO) else mf.MLP((8,))
    assert last_return(algorithm, ACTIONS[name], tmp_path, 400, model) > 0


def test_policies_that_do_not_learn_too(tmp_path: Path) -> None:
    def first_legal(obs: Any, mask: Any, draws: Any) -> Any:
        return np.stack([mask[:, :2].argmax(1), mask[:, 2:].argmax(1)], 1)

    learner = {"a_1": mf.Policy(mf.PPO(batch_agent_steps=100, minibatch_agent_steps=50), mf.MLP((8,)))}
    env = mf.Env(Locks, {"action": ACTIONS["several"]}, num_envs=4)
    for others in ({"a_0": mf.Policy(mf.Random())}, {"a_0": mf.Policy(mf.Scripted(first_legal))}):
        mapping = [mf.Rule("a_0", "a_0"), mf.Rule("a_1", "a_1")]
        name = type(others["a_0"].algorithm).__name__
        mf.train(small_run(env=env, policies={**others, **learner}, mapping=mapping, env_steps=200), tmp_path / name)
