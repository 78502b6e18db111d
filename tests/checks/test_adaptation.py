"""A run in which a policy could not adapt does not start, and says why."""

from __future__ import annotations

import dataclasses

import marlflow as mf
from marlflow.env.games import cartpole_family, cartpole_team
from tests.sentences import wrong_with


def problems(
    algorithm: mf.MAML | mf.PPO, fragment_env_steps: int, inference: mf.InferencePlacement | None = None
) -> list[str]:
    experiment = mf.Experiment(
        mf.Env(cartpole_family.parallel_env, num_envs=4),
        policies={"cart": mf.Policy(algorithm)},
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=fragment_env_steps),
    )
    return wrong_with(dataclasses.replace(experiment, placement=mf.RunPlacement(inference=inference)))


def test_every_phase_needs_an_env_step() -> None:
    assert problems(mf.MAML(inner_steps=2), 6) == []
    (found,) = problems(mf.MAML(inner_steps=2), 4)
    assert "adapts in 3 phases of a collect, but an env takes 2 env steps in one" in found
    assert "raise rollouts.fragment_env_steps to at least 6" in found
    assert problems(mf.PPO(), 4) == []


def test_an_environment_without_tasks_has_nothing_to_adapt_to() -> None:
    experiment = mf.Experiment(mf.Env(cartpole_team.parallel_env), policies={"cart": mf.Policy(mf.MAML())})
    (found,) = wrong_with(experiment)
    assert found.startswith("policy 'cart' (maml) adapts to tasks, and the environment has none; take a family of them")


def test_nobody_acts_beside_the_workers_for_a_policy_that_adapts_there() -> None:
    (found,) = problems(mf.MAML(), 400, mf.InferencePlacement())
    assert "policy 'cart' (maml)" in found
    assert "placement.inference=null" in found
    assert problems(mf.PPO(), 400, mf.InferencePlacement()) == []
