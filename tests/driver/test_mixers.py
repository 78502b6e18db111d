"""VDN and QMIX in whole runs: as DQN for one agent, beside PPO, over Ray, and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.algorithms import vdn
from tests.driver.joint_learning import team_run
from tests.driver.kept_runs import kept
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.two_groups import MLP, TwoGroups
from tests.driver.watching import standing

OFF: dict[str, Any] = {
    "batch_agent_steps": 16,
    "train_every_agent_steps": 8,
    "learning_starts_agent_steps": 40,
    "replay_agent_steps": 200,
    "target_every_updates": 7,
    "publish_every_updates": 3,
    "n_step": 2,
    "learning_rate": 5e-3,
}


def groups(right: mf.Algorithm, left: mf.Algorithm | None = None, **changes: Any) -> mf.Experiment:
    """Two agents on the left, one of which leaves early at times, and one on the right; see TwoGroups."""
    settings: dict[str, Any] = {
        "policies": {"left": mf.Policy(left or mf.Random(), MLP), "right": mf.Policy(right, MLP)},
        "rollouts": mf.Rollouts(num_workers=2, fragment_env_steps=20),
        "stop": mf.Stop(env_steps=400),
        "evaluation": mf.Evaluation(episodes=0),
        "checkpoint": mf.CheckpointConfig(every_env_steps=None),
        "log": mf.Log(every_env_steps=200, console="none", tensorboard=False),
        "runtime": mf.RuntimeConfig("inline"),
    }
    return mf.Experiment(env=mf.Env(TwoGroups, num_envs=4), **(settings | changes))


@pytest.mark.parametrize("changes", [{}, {"prioritized": True, "double": False}], ids=["uniform", "prioritized"])
def test_vdn_of_one_agent_is_dqn_bit_for_bit(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Both begin with the same values.
    monkeypatch.setattr(vdn, "_FIRST_SPREAD", 1.0)
    settings = OFF | {"huber_delta": 0.5, "epsilon": mf.Linear(1.0, 0.05, 300)} | changes
    # Joint rows are in the order of environments, whichever worker each is in.
    one = mf.Rollouts(num_workers=1, fragment_env_steps=20)
    for name, algorithm in {"dqn": mf.DQN(**settings), "vdn": mf.VDN(**settings)}.items():
        mf.train(groups(algorithm, rollouts=one), tmp_path / name)
    single, joint = (kept(tmp_path / name)["learner.right"] for name in ("dqn", "vdn"))
    assert single["updates"] == (400 - 40) // 8
    assert single.keys() == joint.keys()
    for name, value in single.items():
        np.testing.assert_array_equal(joint[name], value, err_msg=name)


@pytest.mark.parametrize("team", [mf.VDN(**OFF), mf.QMIX(**OFF, mixer_sees="observations", prioritized=True)])
def test_a_team_learns_beside_ppo_as_each_alone(team: mf.VDN, tmp_path: Path) -> None:
    ppo = mf.PPO(batch_agent_steps=40, epochs=2, minibatch_agent_steps=20)
    random = mf.Random()
    for name, (left, right) in {"both": (team, ppo), "left": (team, random), "right": (random, ppo)}.items():
        result = mf.train(groups(right, left), tmp_path / name)
        if name == "both":
            steps = standing(result.metrics, "left")
            assert steps["updates"] == (result.metrics["policies"]["left"]["agent_steps_sampled"] - 40) // 8
    for side in ("left", "right"):
        beside, alone = (kept(tmp_path / run)[f"learner.{side}"] for run in ("both", side))
        for name, value in alone.items():
            np.testing.assert_array_equal(beside[name], value, err_msg=f"{side} {name}")


MEMBERS = ["speaker", "listener"]
TEAM = {"pair": mf.LearnerConfig(MEMBERS, mf.QMIX(**OFF, mixer_sees="state", prioritized=True))}


def with_state(**changes: Any) -> mf.Experiment:
    """Speaker and listener, with different spaces, have one mixer of the state; a walker learns alone."""
    made = team_run(learners=TEAM, **changes)
    return replace(made, env=replace(made.env, wrappers=[joint_state]))


def joint_state(env: Any) -> Any:
    from marlflow.env.wrappers.shipped import joint_state as wrapper

    return wrapper(env)


def test_a_resumed_run_learns_as_one_that_was_not_ended(tmp_path: Path) -> None:
    pair = resumes_exactly(with_state(env_steps=480), tmp_path, 280).metrics["learners"]["pair"]
    assert pair["updates"] > 0
    assert set(pair["loss"]) == {"td", "td_error_mean", "q_tot_mean", "reward_spread", "grad_norm"}


def test_a_mixer_without_a_state_is_refused_with_two_remedies() -> None:
    team = {"pair": mf.LearnerConfig(MEMBERS, mf.QMIX(**OFF))}
    with pytest.raises(mf.ConfigInvalid) as raised:
        mf.plan(team_run(learners=team))
    said = "has a mixer that sees the state (mixer_sees), and the environment has no state() of numbers; add "
    remedies = "wrappers=joint_state, which makes one of all agents' observations, or set mixer_sees=observations"
    assert list(raised.value.problems) == [f"learner 'pair' (qmix) {said}{remedies}"]


def with_memory(env_steps: int) -> mf.Experiment:
    """A team of two policies with memories of different shapes, whose sequences are shorter than episodes."""
    settings: dict[str, Any] = OFF | {"sequence_agent_steps": 3, "burn_in_agent_steps": 2, "prioritized": True}
    team = {"pair": mf.LearnerConfig(MEMBERS, mf.QMIX(**settings, mixer_sees="observations"))}
    made = team_run(env_steps, learners=team)
    models = {"speaker": mf.GRU(4, (4,)), "listener": mf.LSTM(3, (4,))}
    policies = {name: replace(policy, model=models.get(name, policy.model)) for name, policy in made.policies.items()}
    return replace(made, policies=policies)


def test_a_team_with_memory_learns_from_sequences_and_resumes(tmp_path: Path) -> None:
    assert "SplitSegments(length=3, burn_in=2) → NStep(n_step=1, discount=0.99)" in str(mf.plan(with_memory(480)))
    resumed = resumes_exactly(with_memory(480), tmp_path, 280)
    pair = resumed.metrics["learners"]["pair"]
    assert pair["updates"] == resumed.trees["learner.pair"]["updates"] > 0
    assert np.isfinite(list(pair["loss"].values())).all()


@pytest.mark.parametrize("name", ["train", "a.b"])
@pytest.mark.parametrize("make", [mf.VDN, mf.MASAC, mf.MADDPG])
def test_a_policy_may_have_the_name_of_a_method_or_a_dot(make: type, name: str, tmp_path: Path) -> None:
    algorithm = make(batch_agent_steps=16, train_every_agent_steps=8, learning_starts_agent_steps=40)
    policies = {name: mf.Policy(algorithm, MLP), "right": mf.Policy(mf.Random())}
    mapping = (mf.Rule("right*", "right"), mf.Rule("*", name))
    run = groups(mf.Random(), policies=policies, mapping=mapping, stop=mf.Stop(env_steps=80))
    metrics = mf.train(run, tmp_path).metrics
    assert metrics["learners"][name]["updates"] > 0
    mf.resume(replace(run, stop=mf.Stop(env_steps=120)), tmp_path)
