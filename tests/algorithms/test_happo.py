"""HAPPO: one policy is MAPPO bit for bit; each policy's turn changes its actor and the critic alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.base.spaces import Spaces
from marlflow.checks.validation import ready
from marlflow.env.games import cartpole_team, pendulum_team
from marlflow.env.wrappers.shipped import joint_state
from marlflow.learner.compute import ON_CPU
from marlflow.runs.saved_runs import newest
from marlflow.runtime.stage_chain import InlinePlace
from tests.driver.joint_learning import ThreeGroups, team_run
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run, without_times
from tests.sentences import refusals

SETTINGS: dict[str, Any] = {"batch_agent_steps": 200, "epochs": 2, "minibatch_agent_steps": 64}
CARTS = mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, (joint_state,), num_envs=4)
PENDULUMS = mf.Env(pendulum_team.parallel_env, {"max_cycles": 50}, (joint_state,), num_envs=4)


def test_a_plan_without_advantages_is_refused_with_the_stage_that_is_missing() -> None:
    learner = of_two()
    learner.place = InlinePlace("learner team")
    experience = mf.source(list, name="experience", traits=mf.Traits(emits=mf.JointFragment))
    gathered = experience.gather(mf.Concat(agent_steps=10))
    plan = mf.Plan("team", gathered.then(mf.LearnInOrder(), at=learner))  # type: ignore[arg-type]
    with pytest.raises(mf.PlanInvalid, match=r"stage 'LearnInOrder' .*\.then\(JointAdvantages\(\.\.\.\), at=learner\)"):
        plan.check()


def without_stages(folder: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in without_times(one).items() if k != "stages"} for one in reports(folder)]


CASES: dict[str, tuple[mf.Env, dict[str, Any]]] = {
    "plain": (CARTS, {}),
    "its own observation": (CARTS, {"critic_sees": ("obs",), "parts": {"values": None}}),
    "deaths": (CARTS, {"critic_sees": ("state", "obs", "agent"), "bootstrap_at_death": True, "value_clip_range": 5.0}),
    "by autograd": (PENDULUMS, {"learning_rate": mf.Linear(1e-3, 1e-4, 2_000), "gae_lambda": mf.Linear(0.9, 1.0, 500)}),
}


@pytest.mark.parametrize(("env", "changes"), CASES.values(), ids=CASES)
def test_with_one_policy_it_is_mappo(env: mf.Env, changes: dict[str, Any], tmp_path: Path) -> None:
    """Bit for bit: every loss, return and count of the run, and the parameters at its end."""
    settings = {"critic_sees": ("state", "agent"), **SETTINGS, **changes}
    model = mf.MLP((16,), normalize_observations=True)
    for algorithm in (mf.MAPPO(**settings), mf.HAPPO(**settings)):
        policies = {"team": mf.Policy(algorithm, model)}
        experiment = small_run(env_steps=480, env=env, policies=policies, mapping=[mf.Rule("*", "team")])
        mf.train(experiment, tmp_path / algorithm.name)
    assert without_stages(tmp_path / "happo") == without_stages(tmp_path / "mappo")
    last = reports(tmp_path / "happo")[-1]["learners"]["team"]
    assert last["updates"] >= 10
    assert (last["rows_bootstrapped_at_death"] > 0) == ("bootstrap_at_death" in changes)
    mappo, happo = (from_bytes(newest(tmp_path / name).read("learner.team")) for name in ("mappo", "happo"))
    np.testing.assert_equal(happo, mappo)


STATE = gym.Box(-np.inf, np.inf, (6,), np.float32)
SEES = {
    "a": Spaces(gym.Box(-1.0, 1.0, (4,)), gym.Discrete(5), True, STATE, 3),
    "items": Spaces(gym.Box(-1.0, 1.0, (2,)), gym.Box(-1.0, 1.0, (2,)), False, STATE, 3),
}


def of_two(**changes: Any) -> mf.TorchLearner:
    members = {policy: mf.Member(spaces, mf.MLP((8,), normalize_observations=True)) for policy, spaces in SEES.items()}
    return mf.HAPPO(**changes).learner("team", members, 0, ON_CPU)


def rows(policy: str, count: int = 40, seed: int = 0) -> mf.EstimatedBatch:
    """Estimated rows of one policy, as JointAdvantages leaves them."""
    random, spaces = np.random.default_rng(seed), SEES[policy]
    floats = ("advantage", "value", "value_target", "behavior_logp")
    columns: dict[str, Any] = {name: random.standard_normal(count).astype(np.float32) for name in floats}
    columns["obs"] = (random.standard_normal((count, *spaces.obs_shape)) + 3.0).astype(np.float32)
    columns["central"] = random.standard_normal((count, 9)).astype(np.float32)
    if spaces.masked:
        columns["action"] = random.integers(0, 5, count)
        columns["action_mask"] = np.ones((count, 5), bool)
    else:
        columns["action"] = random.uniform(-1.0, 1.0, (count, 2)).astype(np.float32)
    columns |= {"reward": np.zeros(count), "version": np.zeros(count, np.int64)}
    return mf.EstimatedBatch(columns, {"length": np.full(1, count), "carried": np.zeros(1, bool)})


def parts_of(learner: mf.TorchLearner) -> dict[str, np.ndarray]:
    module = learner.module
    parts = {name: torch.nn.utils.parameters_to_vector(actor.parameters()) for name, actor in module.actors.items()}
    parts["critic"] = torch.nn.utils.parameters_to_vector(module.critic_parameters())
    moments = {
        group.name: np.concatenate([tensor.numpy().reshape(-1) for tensor in group.state().values()])
        for group in learner.parameters.groups
    }
    return {name: part.detach().numpy().copy() for name, part in parts.items()} | moments


@pytest.mark.parametrize("policy", SEES)
def test_a_turn_trains_one_actor_and_the_critic(policy: str) -> None:
    """Statistics of observations and the optimizer's moments included."""
    learner = of_two()
    for one in SEES:
        learner.update(rows(one), 1, 20, one)
    before = parts_of(learner)
    update = learner.update(rows(policy, seed=1), 2, 20, policy)
    assert update.updates == 4
    assert update.loss.keys() == {"policy", "entropy", "kl", "value", "grad_norm"}
    after = parts_of(learner)
    changed = {name for name in after if not np.array_equal(before[name], after[name])}
    assert changed == {policy, f"actor {policy}", "critic"}


def test_the_losses_of_a_turn_are_ppos() -> None:
    """The actor's and the critic's gradients equal PPO's gradients for an ActorCritic of these two parts."""
    learner, batch = of_two(max_grad_norm=1e9), rows("items")
    minibatch = {name: torch.from_numpy(column) for name, column in batch.columns_for_losses().items()}
    groups = {group.name: group for group in learner.parameters.groups}
    for group in groups.values():
        group.gradient.zero_()
    terms = {}
    for name in ("actor items", "critic"):
        terms |= groups[name].add_gradient(learner.module, None, minibatch).terms
    found = learner.parameters.flat.gradient.clone()
    assert not groups["actor a"].gradient.any()
    loss = groups["critic"].loss
    assert isinstance(loss, mf.PPOLoss)
    module = learner.module
    learner.parameters.flat.gradient.zero_()
    outputs, value = module.actors["items"](minibatch["obs"]), module.critic(minibatch["central"])
    expected = loss.of_rows(module.actors["items"], module.value_error, outputs, value, minibatch, torch.mean)
    expected.total.backward()
    assert {name: float(term) for name, term in terms.items()} == {
        name: float(term) for name, term in expected.terms.items()
    }
    torch.testing.assert_close(found, learner.parameters.flat.gradient, rtol=1e-6, atol=1e-8)
    assert float(found.abs().max()) > 1e-3


MEMBERS = ("speaker", "listener")


def pair(env_steps: int = 480, runtime: Any = "inline", **changes: Any) -> mf.Experiment:
    """A speaker that sometimes ends early and a listener with other spaces learn together; a walker learns alone."""
    algorithm = mf.HAPPO(batch_agent_steps=60, epochs=2, minibatch_agent_steps=20, bootstrap_at_death=True, **changes)
    experiment = team_run(env_steps, runtime, learners={"pair": mf.LearnerConfig(MEMBERS, algorithm)})
    return dataclasses.replace(experiment, env=mf.Env(ThreeGroups, wrappers=(joint_state,), num_envs=4))


def test_policies_of_other_spaces_learn_together(tmp_path: Path) -> None:
    learner = mf.train(pair(240), tmp_path).metrics["learners"]["pair"]
    assert learner["rows_bootstrapped_at_death"] > 0
    assert learner["loss"].keys() == {"policy", "entropy", "kl", "value", "grad_norm", "factor_distance"}
    assert learner["agent_steps_trained"] > 240


def test_a_critic_of_observations_needs_one_space() -> None:
    assert refusals(mf.ConfigInvalid, ready, pair(critic_sees=("state", "obs"))) == [
        "learner 'pair' (happo) has one critic of all policies, which see different spaces ('speaker' Box(2,), "
        "'listener' Box(3,)); leave obs out of algorithm.critic_sees"
    ]


def test_a_critic_like_a_network_for_images_needs_to_see_one() -> None:
    state = gym.Box(0.0, 1.0, (3,), np.float32)
    images = Spaces(gym.Box(0, 255, (40, 40, 3), np.uint8), gym.Discrete(3), state=state, num_agents=2)
    vectors = Spaces(gym.Box(0.0, 1.0, (2,), np.float32), gym.Discrete(3), state=state, num_agents=2)
    sees, looks = mf.Member(images, mf.CNN()), mf.Member(vectors, mf.MLP((8,)))
    (problem,) = mf.HAPPO().member_problems({"eyes": sees, "legs": looks})
    assert str(problem) == (
        "happo has a critic with layers like the model of its first policy, 'eyes', and CNN cannot see state and agent "
        "alone; add obs to algorithm.critic_sees, or list a policy first whose model is mlp"
    )
    assert not list(mf.HAPPO().member_problems({"legs": looks, "eyes": sees}))
    assert not list(mf.HAPPO(critic_sees=("state", "obs")).member_problems({"eyes": sees}))


def test_a_critic_of_a_state_needs_one() -> None:
    without = dataclasses.replace(pair(), env=mf.Env(ThreeGroups, num_envs=4))
    (problem,) = refusals(mf.ConfigInvalid, ready, without)
    assert problem.startswith("learner 'pair' (happo) has a critic that sees state (critic_sees)")
    assert "add wrappers=joint_state" in problem


@pytest.mark.learning
def test_it_learns(tmp_path: Path) -> None:
    """Each is paid if its action is the sign of its first number: 1/2 or 1/3 by chance, and 1 at best."""
    algorithm = mf.HAPPO(batch_agent_steps=600, epochs=5, minibatch_agent_steps=100, learning_rate=3e-3)
    experiment = dataclasses.replace(pair(12_000), learners={"pair": mf.LearnerConfig(MEMBERS, algorithm)})
    agents = mf.train(experiment, tmp_path).metrics["agents"]
    assert agents["listener_0"]["return_mean"] > 0.85 * 7
