"""Policies that cannot begin again are refused before a run, if its matchmaker may reset them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import marlflow as mf
from tests.driver.joint_learning import Team
from tests.driver.resetting import Resetting, with_resets
from tests.runtime.small_runs import SMALL, SMALL_PPO
from tests.sentences import wrong_with

PLAIN = mf.Policy(SMALL_PPO, SMALL)


def problems(main: mf.Policy, matchmaker: object | None = None, **changes: Any) -> list[str]:
    return wrong_with(with_resets(main, PLAIN, 400, matchmaker=matchmaker, **changes))


def test_a_policy_with_a_learner_of_its_own_may_be_reset() -> None:
    assert problems(PLAIN) == []


@pytest.mark.parametrize(
    ("main", "problem"),
    [
        (
            mf.Policy(mf.DDPPO(batch_agent_steps=40, minibatch_agent_steps=20), SMALL),
            "policy 'main' (ddppo) cannot be reset by Seating: it learns on the workers, each of which has a copy of "
            "it; use ppo",
        ),
        (
            mf.Policy(mf.MAML(), SMALL),
            "policy 'main' (maml) cannot be reset by Seating: it learns on the workers, each of which has a copy of it",
        ),
        (mf.Policy(mf.Random()), "policy 'main' (random) cannot be reset by Seating: it does not learn; give it"),
        (
            replace(PLAIN, stop=mf.PolicyStop(agent_steps=100)),
            "policy 'main' (ppo) cannot be reset by Seating: its own stop ends its learning for good; leave out its",
        ),
    ],
)
def test_a_policy_that_cannot_begin_again_is_refused(main: mf.Policy, problem: str) -> None:
    (found,) = problems(main, Seating())
    assert found.startswith(problem)


class Seating(Resetting):
    """Freezes nothing."""

    def change_population(self, published: Any, agent_steps: Any) -> Any:
        from marlflow.sampling.population import PopulationChange

        return PopulationChange()


class Misnaming(Resetting):
    def reset_policies(self) -> Sequence[str]:
        return ["mian"]


class Raising(Resetting):
    def reset_policies(self) -> Sequence[str]:
        raise KeyError("roles")


def test_a_name_that_is_no_policy_is_said_with_the_near_one() -> None:
    (found,) = problems(PLAIN, Misnaming())
    assert found == "mapping: Misnaming may reset policy 'mian', which does not exist; did you mean 'main'?"


def test_what_reset_policies_raises_is_said() -> None:
    (found,) = problems(PLAIN, Raising())
    assert found.startswith("mapping: Raising.reset_policies(): KeyError: 'roles'")


def test_a_policy_that_is_trained_with_others_is_refused() -> None:
    experiment: mf.Experiment = with_resets(mf.Policy(), mf.Policy(), 400, matchmaker=Seating())
    team = mf.LearnerConfig(("main", "rival"), Team())
    found = wrong_with(replace(experiment, learners={"team": team}))
    assert any("learner 'team' trains it together with rival; give it a learner of its own" in text for text in found)
