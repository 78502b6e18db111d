"""IMPALA and APPO: their plans, and what their losses make of V-trace's batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import Algorithm
from marlflow.algorithms.appo import APPO
from marlflow.algorithms.impala import IMPALA
from marlflow.algorithms.ppo import PPO
from marlflow.base.schedules import Linear
from marlflow.base.spaces import Spaces
from tests.algorithms.parts import CONTINUOUS, DISCRETE, MASKED, SMALL, loss_and_gradient, make_learner, make_plan
from tests.algorithms.test_a2c import minibatch, spread_out
from tests.sentences import sentences


def test_impala_drops_the_oldest_and_corrects_the_rest() -> None:
    assert str(make_plan(IMPALA(queue_fragments=6, trace_lambda=0.9, c_max=0.5))) == (
        "impala\n"
        "└── experience → newest(6, drop_oldest) → Concat(agent_steps=500)\n"
        "    → [VTrace(discount=0.99, trace_lambda=0.9, rho_max=1.0, c_max=0.5) → Learn(epochs=1)"
        " → Publish(every=1)] at learner hunter"
    )


def test_appo_learns_several_times_from_each_batch() -> None:
    text = str(make_plan(APPO(batch_agent_steps=300, epochs=3, minibatch_agent_steps=50)))
    assert "newest(4, drop_oldest) → Concat(agent_steps=300)\n" in text
    assert "→ Normalize → Learn(epochs=3, minibatch=50) → Publish(every=1)] at learner hunter" in text


@pytest.mark.parametrize("algorithm", [IMPALA(), APPO()])
def test_rounds_do_not_wait_for_it_and_rows_of_any_age_are_taken(algorithm: Any) -> None:
    plan = make_plan(algorithm)
    assert not plan.waits_for_rounds
    assert all(stage.traits.max_staleness is None for stage in plan.stages())
    assert algorithm.capabilities.experience == "off-policy"


@pytest.mark.parametrize("algorithm", [IMPALA(), APPO()])
@pytest.mark.parametrize("spaces", [DISCRETE, MASKED, CONTINUOUS])
def test_where_they_act(algorithm: Any, spaces: Spaces) -> None:
    assert isinstance(algorithm, Algorithm)
    assert sentences(algorithm.validate(spaces, SMALL)) == []
    text = Spaces(DISCRETE.observation, gym.Text(3))
    assert len(sentences(algorithm.validate(text, SMALL))) == 1


def test_minibatches_that_do_not_fit_into_a_batch_are_refused() -> None:
    assert sentences(APPO(batch_agent_steps=64, minibatch_agent_steps=65).validate(DISCRETE, SMALL)) == [
        "appo cannot cut batches of 64 agent steps into minibatches of 65; lower minibatch_agent_steps"
    ]


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
