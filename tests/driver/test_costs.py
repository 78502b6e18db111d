"""Runs with limits on costs: as without them if nothing costs, bit for bit over a resume, and beside other policies."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.env.games import toll
from marlflow.env.wrappers.shipped import joint_state
from tests.driver.costly import CostlyGroups, carts, pendulums
from tests.driver.kept_runs import assert_equal, kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.two_groups import SMALL as SIDES
from tests.driver.two_groups import pair
from tests.driver.watching import reports
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, small_run

SMALL_SAC = mf.SAC(
    batch_agent_steps=16, train_every_agent_steps=20, learning_starts_agent_steps=100, store_agent_steps=20
)
SMALL_MAPPO = mf.MAPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64)
LIMITED = {"cost": mf.CostLimit(5.0, multiplier_learning_rate=0.1)}
NAMES = {"ppo": SMALL_PPO, "mappo": SMALL_MAPPO, "sac": SMALL_SAC}


def one_policy(algorithm: Any, make: Any, factor: float, **changes: Any) -> mf.Experiment:
    wrappers = (joint_state,) if isinstance(algorithm, mf.MAPPO) else ()
    env = mf.Env(make, {"factor": factor}, wrappers, num_envs=4)
    policies = {"team": mf.Policy(algorithm, SMALL)}
    return small_run(env=env, policies=policies, mapping=[mf.Rule("*", "team")], **changes)


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        (SMALL_PPO, carts),
        (replace(SMALL_PPO, shared_torso=True), carts),
        (SMALL_PPO, pendulums),
        (SMALL_MAPPO, carts),
        (SMALL_SAC, carts),
        (SMALL_SAC, pendulums),
    ],
    ids=["ppo", "ppo shared", "ppo box", "mappo", "sac", "sac box"],
)
def test_without_costs_a_limit_changes_not_a_bit(algorithm: Any, make: Any, tmp_path: Path) -> None:
    plain, limited = tmp_path / "plain", tmp_path / "limited"
    mf.train(one_policy(algorithm, make, 0.0, env_steps=400), plain)
    mf.train(one_policy(replace(algorithm, parts={"cost": mf.CostLimit(0.0)}), make, 0.0, env_steps=400), limited)
    expected, found = kept(plain)["learner.team"], kept(limited)["learner.team"]
    assert expected["updates"] == found["updates"] > 0
    np.testing.assert_array_equal(found["published"], expected["published"])
    np.testing.assert_array_equal(found["generator"], expected["generator"])
    assert found["part.multiplier"].tolist() == [0.0, 0.0, found["part.multiplier"][2]]
    for one, other in zip(reports(plain), reports(limited), strict=True):
        loss, limited_loss = one["learners"]["team"]["loss"], other["learners"]["team"]["loss"]
        assert one["policies"]["team"]["return_mean"] == other["policies"]["team"]["return_mean"]
        shared = loss.keys() - {"grad_norm"}
        assert {name: loss[name] for name in shared} == {name: limited_loss[name] for name in shared}
        assert one["policies"]["team"]["infos"] == {}
    assert other["policies"]["team"]["infos"] == {"cost": 0.0}
    assert limited_loss["cost_value"] >= 0.0


@cache
def ending_at(env_steps: int) -> mf.Stop:
    return mf.Stop(env_steps=env_steps)


def test_a_run_that_goes_on_does_what_it_would_have_done(tmp_path: Path) -> None:
    """Three policies with limits, and one with another algorithm that knows of no costs."""
    limited = {name: mf.Policy(replace(algorithm, parts=LIMITED), SMALL) for name, algorithm in NAMES.items()}
    experiment = small_run(
        env=mf.Env(carts, {"factor": 1.0}, (joint_state,), num_envs=4),
        policies={**limited, "dqn": mf.Policy(SMALL_DQN, SMALL)},
        mapping=[mf.Rule(f"cart_{number}", name) for number, name in enumerate((*NAMES, "dqn"))],
        stop=ending_at(800),
    )
    resumed = resumes_exactly(experiment, tmp_path, 400)
    resumed.assert_mid_way()
    assert resumed.half["workers"]["tables"]["infos"]["cost"].any(), "running episodes were to have costs"
    for name in NAMES:
        assert resumed.metrics["policies"][name]["infos"]["cost"] > 5.0
        assert resumed.metrics["learners"][name]["loss"]["multiplier"] > 0.0
    unlimited = resumed.metrics["policies"]["dqn"]
    assert (unlimited["infos"], unlimited["infos_unattributed"]) == ({}, {})


@pytest.mark.parametrize(("name", "partner"), [("ppo", "dqn"), ("ppo", "ppo"), ("sac", "ppo"), ("sac", "dqn")])
def test_beside_a_policy_with_a_limit_others_learn_as_beside_one_without(
    name: str, partner: str, tmp_path: Path
) -> None:
    learned = {}
    for case, parts in {"with": {"cost": mf.CostLimit(1.0, multiplier_learning_rate=0.1)}, "without": {}}.items():
        experiment = pair(name, partner, "")
        limited = replace(experiment.policies["left"], algorithm=replace(SIDES[name][0], parts=parts))
        policies = {**experiment.policies, "left": limited}
        costly = replace(experiment, env=mf.Env(CostlyGroups, {}, num_envs=4), policies=policies)
        result = mf.train(costly, tmp_path / case)
        learned[case] = kept(tmp_path / case)
        assert all(learner["updates"] > 0 for learner in result.metrics["learners"].values())
    assert_equal(learned["with"]["learner.right"], learned["without"]["learner.right"])
    left = [learned[case]["learner.left"]["published"] for case in learned]
    assert not np.array_equal(*left), "costs were to matter"


def test_the_multiplier_follows_the_episodes_of_each_round(tmp_path: Path) -> None:
    limit, rate, start = 0.25, 0.5, 0.125
    limited = replace(SMALL_PPO, batch_agent_steps=100, parts={"cost": mf.CostLimit(limit, rate, start)})
    # A round has 100 episodes of one env step, as many as the window of infos.cost.
    experiment = small_run(
        env=mf.Env(toll.parallel_env, {}, num_envs=50),
        policies={"car": mf.Policy(limited, SMALL)},
        mapping=None,
        rollouts=mf.Rollouts(num_workers=1, fragment_env_steps=100),
        log=mf.Log(every_env_steps=100),
        stop=ending_at(1_200),
    )
    mf.train(experiment, tmp_path)
    found = reports(tmp_path)
    # The report of a round is written before its update.
    means = [report["policies"]["car"]["infos"].get("cost") for report in found[:12]]
    losses = [report["learners"]["car"]["loss"] for report in found[1:]]
    multiplier = start
    for mean, loss in zip(means, losses, strict=True):
        multiplier = max(0.0, multiplier + rate * (mean - limit))
        assert loss["cost_mean"] == pytest.approx(mean, abs=1e-9)
        assert loss["multiplier"] == pytest.approx(multiplier, abs=1e-9)
        assert loss["cost_violation"] == pytest.approx(max(0.0, mean - limit), abs=1e-9)
    assert len(losses) == 12


def test_evaluations_report_costs(tmp_path: Path) -> None:
    experiment = replace(
        one_policy(replace(SMALL_PPO, parts=LIMITED), carts, 1.0, env_steps=200),
        evaluation=mf.Evaluation(episodes=0, final_episodes=3),
    )
    metrics = mf.train(experiment, tmp_path).metrics["policies"]["team"]
    # Carts that fall at once cost less than they last.
    assert 0.0 < metrics["eval_infos"]["cost"] <= metrics["eval_episode_env_steps_mean"]
