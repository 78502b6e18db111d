"""MAPPO and other central critics: what they see, their gradients, and that PPO is the case of its own observation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces as gym

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.checks.validation import ready
from marlflow.env.games import cartpole_team
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.env.wrappers.shipped import joint_state
from marlflow.policy.actor_critic import ActorCritic
from marlflow.policy.recurrent import RecurrentActorCritic
from marlflow.sampling.protocol import Request
from tests.algorithms.parts import make_plan
from tests.driver.watching import reports
from tests.runtime.small_runs import small_run, without_times

NUM_AGENTS, ROWS = 3, 64
SEEN = Spaces(
    gym.Box(-1.0, 1.0, (4,)),
    gym.Discrete(5),
    masked=True,
    state=gym.Box(-np.inf, np.inf, (6,), np.float32),
    num_agents=NUM_AGENTS,
)
EVERYTHING = ("state", "obs", "agent")


def estimated(rows: int = ROWS) -> EstimatedBatch:
    """Rows with the column `central`, as Advantages leaves them."""
    random = np.random.default_rng(0)
    action, mask = random.integers(0, 5, rows), random.random((rows, 5)) < 0.6
    mask[np.arange(rows), action] = True
    floats = {name: random.standard_normal(rows).astype(np.float32) for name in ("advantage", "value")}
    columns: dict[str, Array] = {
        **floats,
        "behavior_logp": (-1.6 - random.random(rows)).astype(np.float32),
        "value_target": (30.0 * random.standard_normal(rows) + 50.0).astype(np.float32),
        "obs": random.standard_normal((rows, 4)).astype(np.float32),
        "central": random.standard_normal((rows, 13)).astype(np.float32),
        "action": action,
        "action_mask": mask,
        "reward": np.zeros(rows),
        "version": np.zeros(rows, np.int64),
    }
    return EstimatedBatch(columns, {"length": np.full(1, rows), "carried": np.zeros(1, bool)})


def test_actor_and_critic_learn_from_their_own_inputs_only() -> None:
    module = ActorCritic(SEEN, mf.MLP((8,)), mf.MLP((8,)), 0, critic_sees=EVERYTHING)
    obs, central = torch.randn(5, 4, requires_grad=True), torch.randn(5, 13, requires_grad=True)
    outputs, value = module(obs, central)
    value.sum().backward(retain_graph=True)
    assert obs.grad is None
    assert central.grad is not None
    central.grad = None
    outputs.sum().backward()
    assert central.grad is None
    assert obs.grad is not None


def test_observations_are_normalized_by_the_rows_that_each_network_sees() -> None:
    module = ActorCritic(SEEN, mf.MLP((8,), normalize_observations=True), mf.MLP((8,), normalize_observations=True), 0)
    central = ActorCritic(
        SEEN, mf.MLP((8,), normalize_observations=True), mf.MLP((8,), normalize_observations=True), 0, EVERYTHING
    )
    batch = estimated()
    for one, column in ((module, "obs"), (central, "central")):
        learner = mf.TorchLearner("p", one, mf.PPOLoss(mf.Coefficients()), trains_on=EstimatedBatch, learning_rate=1e-3)
        own = {name: values for name, values in batch.columns.items() if name in (column, "obs") or name != "central"}
        learner.update(EstimatedBatch(own, batch.segments))
        for torso, name in ((one.actor.torso, "obs"), (one.critic_torso, column)):
            moments: Any = torso.rows.moments  # type: ignore[union-attr]
            np.testing.assert_allclose(moments.mean.numpy(), batch.columns[name].mean(0), atol=1e-5)


@pytest.mark.parametrize("model", [mf.GRU(8, (6,)), mf.LSTM(8, (6,))], ids=["gru", "lstm"])
def test_a_recurrent_actor_has_a_critic_without_memory(model: Any) -> None:
    module = RecurrentActorCritic(SEEN, model, 0, critic_sees=EVERYTHING)
    obs, central = torch.randn(3, 4, 4), torch.randn(3, 4, 13)
    memory, valid = torch.randn(3, *model.memory_shape), torch.ones(3, 4, dtype=torch.bool)
    _, value = module(obs, memory, valid, central)
    torch.testing.assert_close(value, torch.stack([module.critic(row) for row in central.unbind(1)], 1))
    value.sum().backward()
    assert not any(parameter.grad is not None and parameter.grad.any() for parameter in module.actor.parameters())
    sizes = [layer.out_features for layer in module.critic_torso.layers]  # type: ignore[union-attr]
    assert sizes == [6, 8]


def test_its_plan_is_ppos() -> None:
    plan = str(make_plan(mf.MAPPO(), spaces=SEEN)).splitlines()
    assert plan[0] == "mappo"
    assert plan[1:] == str(make_plan(mf.PPO(minibatch_agent_steps=2_000))).splitlines()[1:]
    assert "bootstrap_at_death=True" in str(make_plan(mf.MAPPO(bootstrap_at_death=True), spaces=SEEN))


class Observed(CartPoleTeam):
    """One cart, whose observation is the state."""

    def __init__(self) -> None:
        super().__init__(1, 30)
        self._state: Array = np.zeros(4, np.float32)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        observations, infos = super().reset(seed, options)
        self._state = observations["cart_0"]
        return observations, infos

    def step(self, actions: Any) -> Any:
        stepped = super().step(actions)
        self._state = stepped[0]["cart_0"]
        return stepped

    def state(self) -> Array:
        return np.array(self._state)


def run(plays: mf.Algorithm | mf.Policy, folder: Path, env: mf.Env, **changes: Any) -> list[Mapping[str, Any]]:
    """The reports of a small run, without times."""
    policy = plays if isinstance(plays, mf.Policy) else mf.Policy(plays, mf.MLP((16,)))
    mf.train(small_run(env=env, policies={"team": policy}, mapping=[mf.Rule("*", "team")], **changes), folder)
    return [without_times(report) for report in reports(folder)]


ALONE = {
    "ppo": mf.PPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64),
    "ppo with value normalization": mf.PPO(
        batch_agent_steps=200, epochs=2, minibatch_agent_steps=64, parts={"values": mf.PopArt()}
    ),
    "a2c": mf.A2C(batch_agent_steps=100),
    "a2c in microbatches": mf.A2C(batch_agent_steps=100, microbatches=2),
    "a3c": mf.A3C(),
    "impala": mf.IMPALA(batch_agent_steps=100),
    "appo": mf.APPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64),
    "ddppo": mf.DDPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64),
}


FEW = ("ppo with value normalization", "a2c", "impala")
EACH = [pytest.param(one, id=name, marks=() if name in FEW else pytest.mark.slow) for name, one in ALONE.items()]


@pytest.mark.parametrize("algorithm", EACH)
def test_a_critic_of_a_state_that_is_the_observation_is_the_usual_critic(
    algorithm: mf.LearningAlgorithm, tmp_path: Path
) -> None:
    """Bit for bit: every loss, return and count of the run."""
    central = dataclasses.replace(algorithm, critic_sees=("state",))  # type: ignore[type-var]
    usual = run(algorithm, tmp_path / "usual", mf.Env(Observed, num_envs=4))
    assert usual[-1]["learners"]["team"]["updates"] > 0
    assert run(central, tmp_path / "central", mf.Env(Observed, num_envs=4)) == usual


TEAM = mf.Env(cartpole_team.parallel_env, {"max_cycles": 50}, (joint_state,), num_envs=4)
SMALL_MAPPO = mf.MAPPO(batch_agent_steps=200, epochs=2, minibatch_agent_steps=64)


def test_mappo_with_ppos_settings_and_critic_is_ppo(tmp_path: Path) -> None:
    plain = {field.name: getattr(mf.PPO(), field.name) for field in dataclasses.fields(mf.PPO)}
    settings: Any = {**plain, "batch_agent_steps": 200, "epochs": 2, "minibatch_agent_steps": 64}
    expected = run(mf.PPO(**settings), tmp_path / "ppo", TEAM)
    found = run(mf.MAPPO(**{**settings, "parts": {"values": None}}), tmp_path / "mappo", TEAM)
    names = {"stages"}
    assert [{k: v for k, v in report.items() if k not in names} for report in found] == [
        {k: v for k, v in report.items() if k not in names} for report in expected
    ]


def test_the_dead_have_no_rows_and_are_zeros_in_what_the_others_see() -> None:
    """MAPPO's death masking (section 4.5 of the paper) has nothing to do here."""
    experiment = small_run(env=TEAM, policies={"team": mf.Policy(SMALL_MAPPO)}, mapping=[mf.Rule("*", "team")])
    spec = ready(experiment).spec
    learner, worker = spec.learners["team"].learner(), spec.worker(0)
    try:
        receipt, batches = worker.collect(40, Request(0, learner.publish(), {"team": {}}))
    finally:
        worker.close()
    batch = batches["team"]
    assert batch.rows == receipt.policies["team"].rows
    width = 5  # four numbers and the presence bit of each cart
    carts = batch.columns["state"].reshape(-1, 4, width)
    own = carts[np.arange(batch.rows), batch["agent"]]
    np.testing.assert_array_equal(own[:, :-1], batch.columns["obs"])
    assert (own[:, -1] == 1.0).all()
    alive = carts[..., -1] == 1.0
    assert not alive.all()
    assert not carts[~alive].any()
    # At each env step, there are as many rows as carts alive.
    moments = np.stack([batch["env"], batch["episode"], batch.columns["t_env"]], 1)
    _, group, counts = np.unique(moments, axis=0, return_inverse=True, return_counts=True)
    np.testing.assert_array_equal(counts[group.reshape(-1)], alive.sum(1))


def test_estimates_on_the_workers_are_the_same_bit_for_bit(tmp_path: Path) -> None:
    algorithm = dataclasses.replace(SMALL_MAPPO, bootstrap_at_death=True)
    at_learner = run(algorithm, tmp_path / "learner", TEAM)
    policy = mf.Policy(algorithm, mf.MLP((16,)), mf.PlacementOverrides(stages={"Advantages": "worker"}))
    moved = run(policy, tmp_path / "worker", TEAM)
    assert moved[-1]["learners"] == at_learner[-1]["learners"]
    assert moved[-1]["policies"] == at_learner[-1]["policies"]
    assert moved[-1]["learners"]["team"]["rows_bootstrapped_at_death"] > 0


def test_recurrent_critics_of_states_run(tmp_path: Path) -> None:
    algorithm = mf.RecurrentPPO(
        batch_agent_steps=200,
        epochs=2,
        minibatch_agent_steps=64,
        parts={"values": mf.PopArt()},
        critic_sees=EVERYTHING,
        bootstrap_at_death=True,
    )
    learner = run(mf.Policy(algorithm, mf.GRU(8, (8,))), tmp_path, TEAM)[-1]["learners"]["team"]
    assert learner["rows_bootstrapped_at_death"] > 0
    assert all(np.isfinite(value) for value in learner["loss"].values())
