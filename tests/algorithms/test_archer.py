"""ArCHer's losses and samples compared with plain loops, its plan, and its refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym
from scipy.stats import norm

import marlflow as mf
from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.archer import ArCHer
from marlflow.algorithms.archer_loss import TokenActorLoss, TokenBaselineLoss, UtteranceCriticsLoss
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch, Transitions
from marlflow.flow import source
from marlflow.learner.learner import TorchLearner
from marlflow.policy.utterance import sampled
from marlflow.runtime.stage_chain import InlinePlace
from tests.algorithms.conversations import ACTIONS, LENGTH, SPACES, rows, seen
from tests.algorithms.parts import SMALL, experience, forward, make_learner, spread_out
from tests.sentences import sentences

ROWS = 7


def learner_of(algorithm: ArCHer) -> TorchLearner:
    learner = make_learner(algorithm, SPACES)
    # Parameters that differ from the target's.
    spread_out(learner)
    return learner


def tokens(random: np.random.Generator, end_token: int | None) -> list[int]:
    said = random.integers(0, ACTIONS, LENGTH).tolist()
    return said if end_token is None or end_token not in said else said[: said.index(end_token) + 1]


def silent(random: np.random.Generator) -> Array:
    return rows([seen(random.uniform(-1, 1), []) for _ in range(ROWS)])


def spoken(obs: Array, said: list[list[int]]) -> Array:
    contexts = SPACES.layout().read(obs)["context",][:, 0]
    return rows([seen(context, tokens_) for context, tokens_ in zip(contexts, said, strict=True)])


def naive_utterance(actor: Any, obs: Array, noise: Array, end_token: int | None) -> list[list[int]]:
    """Token by token: the first whose cumulative probability exceeds the normal number's."""
    found = []
    for row in range(ROWS):
        said: list[int] = []
        while len(said) < LENGTH and (not said or said[-1] != end_token):
            logits = forward(actor, "torso", "head", spoken(obs[row : row + 1], [said]))[0]
            weights = np.exp(logits) / np.exp(logits).sum()
            uniform, token = norm.cdf(noise[row, len(said)]), 0
            while token < ACTIONS - 1 and weights[: token + 1].sum() <= uniform:
                token += 1
            said.append(token)
        found.append(said)
    return found


def naive_values(values: Any, obs: Array) -> Array:
    return np.stack([forward(values, f"torsos.{k}", f"heads.{k}", obs)[:, 0] for k in range(len(values.heads))])


@pytest.mark.parametrize("end_token", [None, 1])
def test_an_utterance_is_sampled_token_by_token_as_in_a_plain_loop(end_token: int | None) -> None:
    module = learner_of(ArCHer(end_token=end_token)).module
    random = np.random.default_rng(1)
    for _ in range(20):
        obs, noise = silent(random), random.standard_normal((ROWS, LENGTH)).astype(np.float32)
        with torch.no_grad():
            found = sampled(module.actor, torch.from_numpy(obs), torch.from_numpy(noise), module.layout)
        np.testing.assert_array_equal(found.numpy(), spoken(obs, naive_utterance(module.actor, obs, noise, end_token)))


@pytest.mark.parametrize("end_token", [None, 1])
def test_the_critics_loss_is_that_of_a_plain_loop(end_token: int | None) -> None:
    learner = learner_of(ArCHer(end_token=end_token))
    module, target = learner.module, learner.parameters.target_module
    random = np.random.default_rng(2)
    obs, after = silent(random), silent(random)
    said = [tokens(random, end_token) for _ in range(ROWS)]
    reward, discount = random.standard_normal(ROWS), random.choice([0.0, 0.9], ROWS)
    noise = random.standard_normal((ROWS, LENGTH)).astype(np.float32)
    shown = np.array([[token + 1 for token in one] + [0] * (LENGTH - len(one)) for one in said])
    columns = {"obs": obs, "next_obs": after, "noise": noise, "action": shown}
    columns |= {"reward": reward.astype(np.float32), "discount": discount.astype(np.float32)}
    terms = UtteranceCriticsLoss(LENGTH)(module, target, {n: torch.from_numpy(c) for n, c in columns.items()})
    would_say = naive_utterance(module.actor, obs, noise, end_token)
    q, v = naive_values(module.critics.q, spoken(obs, said)), naive_values(module.critics.v, obs)
    q_target, v_target = naive_values(target.critics.q, spoken(obs, would_say)), naive_values(target.critics.v, after)
    of_q = of_v = 0.0
    for row in range(ROWS):
        for critic in range(2):
            of_q += 0.5 * (q[critic, row] - reward[row] - discount[row] * v_target[critic, row]) ** 2 / ROWS
            of_v += 0.5 * (v[critic, row] - q_target[critic, row]) ** 2 / ROWS
    assert float(terms.terms["q_error"]) == pytest.approx(of_q, rel=1e-4)
    assert float(terms.terms["v_error"]) == pytest.approx(of_v, rel=1e-4)
    terms.total.backward()
    assert all(p.grad is None or not p.grad.any() for p in [*module.actor.parameters(), *target.parameters()])


@pytest.mark.parametrize("has_baseline", [True, False])
def test_the_actors_and_baselines_losses_are_those_of_a_plain_loop(has_baseline: bool) -> None:
    module = learner_of(ArCHer(token_baseline=has_baseline)).module
    random = np.random.default_rng(3)
    obs = rows([seen(random.uniform(-1, 1), tokens(random, 1)[:-1]) for _ in range(ROWS)])
    action, advantage = random.integers(0, ACTIONS, ROWS), random.standard_normal(ROWS).astype(np.float32)
    minibatch = {
        name: torch.from_numpy(c) for name, c in {"obs": obs, "action": action, "advantage": advantage}.items()
    }
    logits = forward(module.actor, "torso", "head", obs)
    baseline = naive_values(module.baseline, obs)[0] if has_baseline else np.zeros(ROWS)
    policy = entropy = error = 0.0
    for row in range(ROWS):
        p = np.exp(logits[row]) / np.exp(logits[row]).sum()
        policy -= np.log(p[action[row]]) * (advantage[row] - baseline[row]) / ROWS
        entropy -= (p * np.log(p)).sum() / ROWS
        error += 0.5 * (baseline[row] - advantage[row]) ** 2 / ROWS
    found = TokenActorLoss(0.25)(module, None, minibatch)
    assert float(found.total.detach()) == pytest.approx(policy - 0.25 * entropy, rel=1e-4)
    assert float(found.terms["entropy"]) == pytest.approx(entropy, rel=1e-4)
    if has_baseline:
        assert float(TokenBaselineLoss()(module, None, minibatch).terms["baseline_error"]) == pytest.approx(
            error, rel=1e-4
        )


def parameters(part: Any) -> list[list[float]]:
    return [p.detach().flatten().tolist() for p in part.parameters()]


def test_each_rate_changes_its_own_parameters_and_the_actors_alone_are_published() -> None:
    learner = learner_of(ArCHer())
    module, random = learner.module, np.random.default_rng(4)
    obs, ones = silent(random), np.ones(ROWS, np.float32)
    said = np.ones((ROWS, LENGTH), np.int64)
    before = parameters(module.actor), parameters(module.baseline), parameters(module.critics)
    learner.update(Transitions(obs, said, ones, ones, obs, ones, np.arange(ROWS)), groups=("critics",))
    after = parameters(module.actor), parameters(module.baseline), parameters(module.critics)
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, True, False]
    columns = {"obs": obs, "action": np.zeros(ROWS, np.int64), "reward": ones, "version": np.zeros(ROWS, np.int64)}
    columns |= {"advantage": ones, "value": ones, "value_target": ones}
    batch = EstimatedBatch(columns, {"length": np.array([ROWS]), "carried": np.array([False])})
    learner.update(batch, groups=("actor", "baseline"))
    last = parameters(module.actor), parameters(module.baseline), parameters(module.critics)
    assert [a == b for a, b in zip(after, last, strict=True)] == [False, False, True]
    (published,) = learner.publish().values()
    assert published.flat.tolist() == [number for part in last[0] for number in part]
    assert learner.updates == 2


@pytest.mark.parametrize(("has_baseline", "groups"), [(True, "actor+baseline"), (False, "actor")])
def test_the_plan_has_one_learner_at_two_rates(has_baseline: bool, groups: str) -> None:
    algorithm = ArCHer(token_baseline=has_baseline, critic_updates=3)
    learner, replay = make_learner(algorithm, SPACES), algorithm.replay("hunter", {"hunter": Member(SPACES, SMALL)}, 0)
    learner.place = replay.place = InlinePlace("learner hunter")
    plan = algorithm.plan(source(experience), learner, [replay])
    plan.check()
    assert str(plan.pace) == "in turn: store 1, critics 3, output 1"
    assert f"groups={groups})" in str(plan)
    assert "Learn critics: Learn(epochs=1, groups=critics)" in str(plan)


SHOWN = gym.Dict({"utterance": gym.MultiDiscrete([3, 3])})
PIXELS = gym.Dict({**SHOWN.spaces, "screen": gym.Box(0, 255, (4, 4, 1), np.uint8)})


@pytest.mark.parametrize(
    ("spaces", "algorithm", "sentence"),
    [
        (Spaces(gym.Discrete(3), gym.Discrete(2)), ArCHer(), "needs an observation that is a Dict with 'utterance': "),
        (Spaces(SHOWN, gym.Discrete(3)), ArCHer(), r"MultiDiscrete\(\[4\] \* tokens\), not MultiDiscrete\(\[3 3\]"),
        (Spaces(SHOWN, gym.Discrete(2), masked=True), ArCHer(), "whose tokens have no known action_mask"),
        (Spaces(PIXELS, gym.Discrete(2)), ArCHer(), "needs observations without pixels"),
        (Spaces(SHOWN, gym.Discrete(2)), ArCHer(end_token=2), "ends utterances with the token 2; give one of 0 to 1"),
        (Spaces(SHOWN, gym.MultiBinary(2)), ArCHer(), "cannot act in MultiBinary"),
    ],
)
def test_what_does_not_show_utterances_is_refused(spaces: Spaces, algorithm: ArCHer, sentence: str) -> None:
    (found,) = sentences(algorithm.validate(spaces, SMALL))
    assert re.search(sentence, found)


def test_what_its_critics_see_cannot_be_normalized() -> None:
    model = mf.MLP((4,), normalize_observations=True)
    (found,) = sentences(ArCHer().validate(SPACES, model))
    assert (
        found
        == "archer cannot do normalize_observations: its critics see utterances that no observation has; leave it off"
    )
    assert not ArCHer().validate(SPACES, replace(model, normalize_observations=False))
