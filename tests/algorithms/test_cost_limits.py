"""Algorithms with a limit on costs: their plans, and their losses against plain loops over rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from tests.algorithms.parts import DISCRETE, MASKED, forward, make_learner, make_plan, terms_of_step
from tests.algorithms.several_losses import BOX, ROWS, apart, transitions, within
from tests.algorithms.test_sac import naive_policy, naive_sample
from tests.learner.experience import estimated

LAMBDA = 1.5
LIMITED = {"cost": mf.CostLimit(1.0)}


def test_advantages_may_stay_as_they_are() -> None:
    assert "Normalize" not in str(make_plan(mf.PPO(normalize_advantages=False)))
    assert "Normalize" in str(make_plan(mf.PPO()))


@pytest.mark.parametrize("spaces", [DISCRETE, BOX], ids=["discrete", "box"])
@pytest.mark.parametrize("config", [mf.PPO(), mf.MAPPO(critic_sees=("obs",)), mf.SAC()], ids=["ppo", "mappo", "sac"])
def test_a_limit_leaves_the_other_networks_as_they_are(config: Any, spaces: Spaces) -> None:
    plain = dict(make_learner(config, spaces, seed=3).module.named_parameters())
    limited = dict(make_learner(replace(config, parts=LIMITED), spaces, seed=3).module.named_parameters())
    assert set(limited.keys() - plain.keys()) == {n for n in limited if n.startswith("cost_critic.")}
    for name, parameter in plain.items():
        assert torch.equal(parameter, limited[name]), name


@pytest.mark.parametrize("normalize", [False, True])
def test_the_cost_critic_of_ppo_learns_its_value_targets(normalize: bool) -> None:
    learner = apart(make_learner(mf.PPO(parts={"values": mf.PopArt() if normalize else None, **LIMITED})))
    obs = np.random.default_rng(0).standard_normal((ROWS, 2)).astype(np.float32)
    target = np.arange(ROWS, dtype=np.float32)
    group = learner.parameters.groups[1]
    assert group.name == "cost_critic"
    unit, center = 1.0, 0.0
    if normalize:
        moments = learner.module.cost_critic.returns.moments
        with torch.no_grad():
            moments.mean.fill_(2.0)
            moments.variance.fill_(9.0)
        unit, center = float(moments.deviation), 2.0
    minibatch = {"obs": torch.from_numpy(obs), "cost_value_target": torch.from_numpy(target)}
    group.gradient.zero_()
    terms = group.add_gradient(learner.module, None, minibatch).terms
    value = forward(learner.module, "cost_critic.torso", "cost_critic.head", obs)[:, 0] * unit + center
    expected = sum(0.5 * (v - t) ** 2 for v, t in zip(value, target, strict=True)) / ROWS / unit**2
    assert float(terms["cost_value"]) == pytest.approx(expected, rel=1e-4)
    np.testing.assert_allclose(learner.estimator("cost_critic").values(obs), value, rtol=1e-4, atol=1e-5)
    # The other critic and the actor get no gradient of it.
    assert not learner.parameters.groups[0].gradient.any()
    assert group.gradient.any()


def costly(spaces: Spaces) -> tuple[mf.Transitions, Array]:
    drawn = transitions(spaces)
    cost = np.random.default_rng(11).standard_normal(ROWS).astype(np.float32)
    return replace(drawn, infos={"cost": cost}), np.random.default_rng(1).standard_normal((ROWS, 4)).astype(np.float32)


def terms_of(learner: Any, drawn: mf.Transitions, noise: Array) -> dict[str, float]:
    columns = {name: torch.from_numpy(column) for name, column in drawn.columns_for_losses().items()}
    return terms_of_step(learner, lambda group: {**columns, "noise": torch.from_numpy(noise)})


def q_cost(module: Any, obs: Array, action: Array | None) -> Array:
    seen = obs if action is None else np.concatenate([obs, action], 1)
    torso = "cost_critic.torsos.0" if action is None else "cost_critic.joins.0.torso"
    return forward(module, torso, "cost_critic.heads.0", seen)


def test_sac_in_a_box_is_that_of_plain_loops() -> None:
    learner, (drawn, noise) = apart(make_learner(mf.SAC(parts=LIMITED), BOX)), costly(BOX)
    plain = terms_of(learner, drawn, noise)
    learner.set_schedule({"multiplier": LAMBDA})
    found = terms_of(learner, drawn, noise)
    next_action, _ = naive_sample(learner.module, drawn.next_obs, noise[:, 2:])
    action, _ = naive_sample(learner.module, drawn.obs, noise[:, :2])
    following = q_cost(learner.parameters.target_module, drawn.next_obs, next_action)[:, 0]
    taken = q_cost(learner.module, drawn.obs, within(drawn.action))[:, 0]
    loss = 0.0
    for row in range(ROWS):
        target = float(drawn.infos["cost"][row]) + float(drawn.discount[row]) * following[row]
        loss += float(drawn.weight[row]) * 0.5 * (taken[row] - target) ** 2 / ROWS
    assert found["cost_value"] == pytest.approx(loss, rel=1e-4)
    chosen = q_cost(learner.module, drawn.obs, action)[:, 0].mean()
    # With a multiplier of 0, the actor's loss is SAC's own.
    assert found["actor"] == pytest.approx((plain["actor"] + LAMBDA * chosen) / (1.0 + LAMBDA), rel=1e-4, abs=1e-5)
    assert found["critics"] == plain["critics"]
    assert found["entropy"] == plain["entropy"]


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED], ids=["discrete", "masked"])
def test_sac_with_discrete_actions_is_that_of_plain_loops(spaces: Spaces) -> None:
    learner, (drawn, noise) = apart(make_learner(mf.SAC(parts=LIMITED), spaces)), costly(spaces)
    plain = terms_of(learner, drawn, noise)
    learner.set_schedule({"multiplier": LAMBDA})
    found = terms_of(learner, drawn, noise)
    following = q_cost(learner.parameters.target_module, drawn.next_obs, None)
    now = q_cost(learner.module, drawn.obs, None)
    loss = chosen = 0.0
    for row in range(ROWS):
        target = float(drawn.infos["cost"][row])
        if drawn.discount[row] > 0.0:
            policy = naive_policy(learner.module, drawn.next_obs, drawn.next_mask, row)
            target += float(drawn.discount[row]) * sum(p * following[row, a] for a, p in policy.items())
        loss += float(drawn.weight[row]) * 0.5 * (now[row, int(drawn.action[row])] - target) ** 2 / ROWS
        policy = naive_policy(learner.module, drawn.obs, drawn.action_mask, row)
        chosen += sum(p * now[row, a] for a, p in policy.items()) / ROWS
    assert found["cost_value"] == pytest.approx(loss, rel=1e-4)
    assert found["actor"] == pytest.approx((plain["actor"] + LAMBDA * chosen) / (1.0 + LAMBDA), rel=1e-4, abs=1e-5)
    assert found["critics"] == plain["critics"]


def moved_multiplier(learner: mf.TorchLearner) -> float:
    mf.UpdateMultiplier(1.0, 0.25)(estimated(3, 0), learner)
    return learner.scheduled["multiplier"]


@pytest.mark.parametrize("config", [mf.PPO(parts=LIMITED), mf.SAC(parts=LIMITED)], ids=["ppo", "sac"])
def test_a_resumed_learner_has_its_multiplier_and_tells_its_losses(config: Any) -> None:
    config = replace(config, parts={"cost": mf.CostLimit(1.0, initial_multiplier=0.5)})
    one, other = (make_learner(config, seed=seed) for seed in (0, 1))
    totals = {"cost_total": 12.0, "cost_episodes": 4}
    one.set_schedule(totals)
    assert moved_multiplier(one) == 0.5 + 0.25 * 2.0
    other.load_state(one.state())
    # The same episodes do not count twice.
    other.set_schedule(totals)
    assert moved_multiplier(other) == 1.0
    assert other.scheduled["multiplier"] == 1.0
    other.reset(make_learner(config, seed=2))
    assert moved_multiplier(other) == 0.5
