"""IMPALA and APPO: their plans, and what their losses make of V-trace's batches."""

from __future__ import annotations

import numpy as np
import pytest

from marlflow.algorithms.appo import APPO
from marlflow.algorithms.ppo import PPO
from marlflow.base.schedules import Linear
from marlflow.base.spaces import Spaces
from tests.algorithms.parts import DISCRETE, MASKED, loss_and_gradient, make_learner, minibatch, spread_out


@pytest.mark.parametrize("spaces", [DISCRETE, MASKED])
def test_appo_is_ppo_whose_ratio_is_to_the_policy_at_the_start_of_the_batch(spaces: Spaces) -> None:
    appo, ppo = make_learner(APPO(entropy_coefficient=0.1), spaces), make_learner(PPO(entropy_coefficient=0.1), spaces)
    for learner in (appo, ppo):
        spread_out(learner)
    columns = minibatch(masked=spaces.masked)
    rows = len(columns["action"])
    logp = np.log(np.random.default_rng(1).uniform(0.15, 0.6, rows)).astype(np.float32)
    found = loss_and_gradient(appo, {**columns, "logp": logp})
    expected = loss_and_gradient(ppo, {**columns, "behavior_logp": logp})
    assert found[0] == expected[0]
    np.testing.assert_array_equal(found[1], expected[1])
    otherwise = loss_and_gradient(ppo, columns)
    assert np.abs(otherwise[1] - found[1]).max() > 1e-3


def test_appos_clip_range_is_scheduled() -> None:
    config = APPO(clip_range=Linear(0.2, 0.0, agent_steps=10))
    assert config.schedules(5) == {"clip_range": 0.1}
    learner, narrow = make_learner(config), make_learner(APPO(clip_range=0.1))
    columns = {**minibatch(masked=False), "logp": np.full(11, -1.5, np.float32)}
    for each in (learner, narrow):
        spread_out(each)
    before = loss_and_gradient(learner, columns)[0]["policy"]
    learner.set_schedule({"clip_range": 0.1})
    after = loss_and_gradient(learner, columns)[0]["policy"]
    assert after == loss_and_gradient(narrow, columns)[0]["policy"] != before
