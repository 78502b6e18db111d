"""SAC: its plan, refusals, and its losses as learners use them, compared with plain loops over rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from tests.algorithms.parts import CONTINUOUS, DISCRETE, MASKED, NUM_ACTIONS, forward, make_learner
from tests.algorithms.several_losses import BOX, ROWS, apart, bandit, found, naive_q, transitions, within

SPACES = [DISCRETE, MASKED, CONTINUOUS, BOX]
IDS = ["discrete", "masked", "box", "shifted box"]


def test_it_acts_uniformly_until_learning_starts() -> None:
    config = mf.SAC(learning_starts_agent_steps=50, temperature=mf.PiecewiseConstant([0.2, 0.1], [60]))
    at = [config.schedules(steps) for steps in (0, 49, 50, 60)]
    assert [values["acts_uniformly"] for values in at] == [1.0, 1.0, 0.0, 0.0]
    assert [values["temperature"] for values in at] == [0.2, 0.2, 0.2, 0.1]


# -- the losses -----------------------------------------------------------------------------------------------------


def naive_sample(module: Any, obs: Array, noise: Array) -> tuple[Array, list[float]]:
    """Actions in [-1, 1] and their log-densities, by the change of variables."""
    actions, logps = np.zeros((ROWS, 2)), []
    for row, output in enumerate(forward(module, "actor.torso", "actor.head", obs)):
        total = 0.0
        for d in range(2):
            raw = output[d] + math.exp(output[2 + d]) * float(noise[row, d])
            actions[row, d] = math.tanh(raw)
            gaussian = -0.5 * float(noise[row, d]) ** 2 - output[2 + d] - 0.5 * math.log(2.0 * math.pi)
            total += gaussian - math.log(1.0 - math.tanh(raw) ** 2)
        logps.append(total)
    return actions, logps


def naive_policy(module: Any, obs: Array, mask: Array | None, row: int) -> dict[int, float]:
    """The probability of each legal action."""
    logits = forward(module, "actor.torso", "actor.head", obs)[row]
    weights = {a: math.exp(logits[a]) for a in range(NUM_ACTIONS) if mask is None or mask[row, a]}
    return {action: weight / sum(weights.values()) for action, weight in weights.items()}


def test_losses_in_a_box_are_those_of_plain_loops() -> None:
    learner, drawn = apart(make_learner(mf.SAC(initial_temperature=0.5), BOX)), transitions(BOX)
    noise = np.random.default_rng(1).standard_normal((ROWS, 4)).astype(np.float32)
    module, alpha = learner.module, float(learner.module.log_temperature.detach().exp())
    next_action, next_logp = naive_sample(module, drawn.next_obs, noise[:, 2:])
    now_action, now_logp = naive_sample(module, drawn.obs, noise[:, :2])
    q_next = naive_q(learner.parameters.target_module, drawn.next_obs, next_action)[..., 0]
    q, q_now = naive_q(module, drawn.obs, within(drawn.action))[..., 0], naive_q(module, drawn.obs, now_action)[..., 0]
    critics, actor = 0.0, 0.0
    for row in range(ROWS):
        soft = min(q_next[0, row], q_next[1, row]) - alpha * next_logp[row]
        target = float(drawn.reward[row]) + float(drawn.discount[row]) * soft
        critics += float(drawn.weight[row]) * sum(0.5 * (q[k, row] - target) ** 2 for k in (0, 1)) / ROWS
        actor += (alpha * now_logp[row] - min(q_now[0, row], q_now[1, row])) / ROWS
    terms = found(learner, drawn, noise)
    expected = {"critics": critics, "actor": actor, "q_mean": q.mean(), "entropy": -np.mean(now_logp)}
    for name, value in {**expected, "temperature": alpha}.items():
        assert terms[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    gradient = float(learner.module.log_temperature.grad)
    assert gradient == pytest.approx(-np.mean(now_logp) + 2.0, rel=1e-4)


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED], ids=["discrete", "masked"])
@pytest.mark.parametrize("target_entropy", [None, 0.7])
def test_losses_with_discrete_actions_are_those_of_plain_loops(spaces: Spaces, target_entropy: float | None) -> None:
    config = mf.SAC(initial_temperature=0.5, target_entropy=target_entropy, target_entropy_share=0.8)
    learner, drawn = apart(make_learner(config, spaces)), transitions(spaces)
    module, alpha = learner.module, float(learner.module.log_temperature.detach().exp())
    q_next, q = naive_q(learner.parameters.target_module, drawn.next_obs, None), naive_q(module, drawn.obs, None)
    critics, actor, short, entropies = 0.0, 0.0, 0.0, []
    for row in range(ROWS):
        soft = 0.0
        if drawn.discount[row] > 0.0:
            for action, p in naive_policy(module, drawn.next_obs, drawn.next_mask, row).items():
                soft += p * (min(q_next[0, row, action], q_next[1, row, action]) - alpha * math.log(p))
        target, action = float(drawn.reward[row]) + float(drawn.discount[row]) * soft, int(drawn.action[row])
        critics += float(drawn.weight[row]) * sum(0.5 * (q[k, row, action] - target) ** 2 for k in (0, 1)) / ROWS
        policy = naive_policy(module, drawn.obs, drawn.action_mask, row)
        actor += sum(p * (alpha * math.log(p) - min(q[0, row, a], q[1, row, a])) for a, p in policy.items()) / ROWS
        entropies.append(-sum(p * math.log(p) for p in policy.values()))
        wanted = 0.8 * math.log(len(policy)) if target_entropy is None else target_entropy
        short += (wanted - entropies[-1]) / ROWS
    terms = found(learner, drawn, np.zeros((ROWS, 0), np.float32))
    expected = {
        "critics": critics,
        "actor": actor,
        "q_mean": q[:, range(ROWS), drawn.action].mean(),
        "entropy": np.mean(entropies),
    }
    for name, value in {**expected, "temperature": alpha}.items():
        assert terms[name] == pytest.approx(value, rel=1e-4, abs=1e-5), name
    assert float(learner.module.log_temperature.grad) == pytest.approx(-short, rel=1e-3, abs=1e-5)


def test_no_target_and_no_policy_uses_an_illegal_action() -> None:
    """However good an action looks to both critics, where it is illegal it changes nothing."""
    drawn = transitions(MASKED)
    assert drawn.next_mask is not None
    assert drawn.action_mask is not None
    drawn.next_mask[:] = drawn.action_mask[:] = [True, True, False]
    drawn.action[:] = np.minimum(drawn.action, 1)
    outcomes = []
    for bonus in (0.0, 1e6):
        learner = apart(make_learner(mf.SAC(), MASKED))
        with torch.no_grad():
            for head in (*learner.module.critics.heads, *learner.parameters.target_module.critics.heads):
                head.bias[2] += bonus
        terms = found(learner, drawn, np.zeros((ROWS, 0), np.float32))
        outcomes.append((terms["critics"], terms["actor"], learner.parameters.groups[1].gradient.numpy().copy()))
    assert outcomes[0][:2] == pytest.approx(outcomes[1][:2])
    np.testing.assert_allclose(outcomes[0][2], outcomes[1][2], atol=1e-6)


@pytest.mark.parametrize("spaces", SPACES, ids=IDS)
def test_a_fixed_temperature_stays_and_follows_its_schedule(spaces: Spaces) -> None:
    learner, drawn = make_learner(mf.SAC(temperature=0.3), spaces), transitions(spaces)
    assert [part.name for part in learner.parameters.groups] == ["critics", "actor"]
    noise = np.zeros((ROWS, 4), np.float32)
    first = found(learner, drawn, noise)
    learner.set_schedule({"temperature": 0.0})
    without = found(learner, drawn, noise)
    assert without["actor"] - first["actor"] == pytest.approx(0.3 * first["entropy"], rel=1e-3, abs=1e-5)
    assert without["critics"] != pytest.approx(first["critics"], rel=1e-3)


@pytest.mark.parametrize("spaces", [CONTINUOUS, DISCRETE], ids=["box", "discrete"])
def test_a_resumed_learner_goes_on_bit_for_bit(spaces: Spaces) -> None:
    one, other = (make_learner(mf.SAC(learning_rate=0.01), spaces, seed=seed) for seed in (0, 1))
    drawn = transitions(spaces)
    for _ in range(2):
        one.update(drawn)
        one.sync_target(0.1)
    other.load_state(one.state())
    for learner in (one, other):
        learner.update(drawn)
        learner.sync_target(0.1)
    torch.testing.assert_close(one.parameters.flat.vector, other.parameters.flat.vector, rtol=0.0, atol=0.0)


# -- learning -------------------------------------------------------------------------------------------------------


def test_a_policy_becomes_the_softmax_of_the_rewards_of_a_bandit() -> None:
    rewards = np.array([-1.0, 0.25, 1.0], np.float32)

    def draw(rng: Any) -> tuple[Array, Array]:
        action = rng.integers(0, NUM_ACTIONS, 64)
        return action, rewards[action]

    learner = bandit(mf.SAC(learning_rate=0.01, temperature=0.5), DISCRETE, draw, updates=300)
    p, _ = learner.module.probabilities(torch.full((1, 2), 0.3), None)
    expected = np.exp(rewards / 0.5) / np.exp(rewards / 0.5).sum()
    np.testing.assert_allclose(p.detach().numpy()[0], expected, atol=0.05)


def test_a_learned_temperature_brings_the_entropy_to_its_target() -> None:
    def draw(rng: Any) -> tuple[Array, Array]:
        action = rng.uniform(-1.0, 1.0, (64, 2)).astype(np.float32)
        return action, -np.square(action - [0.5, -0.25]).sum(1).astype(np.float32)

    learner = bandit(mf.SAC(learning_rate=0.02, initial_temperature=0.1), CONTINUOUS, draw, updates=350)
    obs, noise = torch.full((2000, 2), 0.3), torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        action, logp = learner.module.actor.sample(obs, noise)
    assert -float(logp.mean()) == pytest.approx(-2.0, abs=0.3)
    np.testing.assert_allclose(action.mean(0).numpy(), [0.5, -0.25], atol=0.15)
