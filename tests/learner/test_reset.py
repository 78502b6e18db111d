"""A learner that is reset equals a new one, except its version."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.runtime.spec import LearnerSpec, PolicySpec
from tests.driver.kept_runs import assert_equal
from tests.learner.experience import estimated, transitions
from tests.learner.test_torch_learner import SEEN

RMSPROP = mf.TorchOptimizer(torch.optim.RMSprop)


def spec(algorithm: mf.PPO | mf.DQN, **placement: object) -> LearnerSpec:
    policy = PolicySpec("p", algorithm, mf.MLP((8,)), SEEN, 7)
    return LearnerSpec("p", (policy,), algorithm, 7, mf.LearnerPlacement(**placement))  # type: ignore[arg-type]


def trained(learner: mf.TorchLearner, updates: int = 3) -> mf.TorchLearner:
    batch = transitions(12) if learner.parameters.target_module is not None else estimated(12)
    for _ in range(updates):
        learner.update(batch)
        learner.publish()
    return learner


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.PPO(optimizer=RMSPROP), mf.PPO(shared_torso=True), mf.DQN()])
def test_it_continues_as_a_new_learner_with_the_next_version(algorithm: mf.PPO | mf.DQN) -> None:
    of = spec(algorithm)
    learner, other = trained(of.learner()), of.with_fresh_seed(1)
    published = learner.reset(other.learner())
    assert published["p"].version == learner.version == 4
    new = other.learner()
    np.testing.assert_array_equal(published["p"].flat, new.published["p"].flat)
    assert_equal(learner.state(), {**new.state(), "version": 4})
    # The next updates equal the new learner's, too.
    trained(learner)
    trained(new)
    assert_equal(learner.state(), {**new.state(), "version": 7})


def test_what_was_published_before_stays_as_it_was() -> None:
    of = spec(mf.PPO())
    learner = trained(of.learner())
    before = learner.published["p"].flat
    copy = before.copy()
    learner.reset(of.learner())
    np.testing.assert_array_equal(before, copy)


def test_scheduled_values_stay_until_they_are_set_again() -> None:
    of = spec(mf.PPO())
    learner, other = of.learner(), of.learner()
    for one in (learner, other):
        one.set_schedule({"learning_rate": 1e-2, "clip_range": 0.3})
    trained(learner)
    learner.reset(of.learner())
    trained(learner)
    trained(other)
    np.testing.assert_array_equal(learner.state()["vector"], other.state()["vector"])


def test_each_reset_has_other_parameters_which_the_seed_and_the_number_decide() -> None:
    of = spec(mf.PPO())
    vectors = [of.learner().state()["vector"], *(of.with_fresh_seed(n).learner().state()["vector"] for n in (1, 2, 1))]
    assert len({vector.tobytes() for vector in vectors}) == 3
    assert vectors[1].tobytes() == vectors[3].tobytes()


@pytest.mark.parametrize("algorithm", [mf.PPO(), mf.PPO(shared_torso=True), mf.DQN()])
@pytest.mark.parametrize("relocated", [False, True])
def test_the_actor_may_begin_with_published_parameters(algorithm: mf.PPO | mf.DQN, relocated: bool) -> None:
    of = spec(algorithm)
    source = of.learner()
    if relocated:
        source.publish_all()  # they end with the critic's
    flat = trained(source).publish()["p"].flat
    learner = of.with_fresh_seed(1).learner([flat])
    acting = learner.published["p"].flat
    np.testing.assert_array_equal(acting, flat[: len(acting)])
    state, fresh = learner.state(), of.with_fresh_seed(1).learner().state()
    assert not np.array_equal(state["vector"], fresh["vector"])
    if "target" in state:
        np.testing.assert_array_equal(state["target"], state["vector"])
    if len(acting) < len(state["vector"]):
        np.testing.assert_array_equal(state["vector"][len(acting) :], fresh["vector"][len(acting) :])


def test_parameters_of_another_network_are_refused() -> None:
    with pytest.raises(mf.WeightsMismatch, match=r"expected \d+ parameters of an actor of 'p', got 3"):
        spec(mf.PPO()).learner([np.zeros(3, np.float32)])
