"""PPO's and DQN's updates are Stable-Baselines3's, number for number, fed the same parameters and rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples, RolloutBufferSamples
from torch import Tensor, nn

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.flow.protocols import stage_call
from marlflow.learner.compute import ON_CPU

ROWS, DISCOUNT, LEARNING_RATE = 64, 0.97, 1e-3
OBSERVATION = gymnasium.spaces.Box(-2.0, 2.0, (3,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(4)
BOX = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
MODEL = mf.MLP((16, 16))
# Theirs is the mean of whole squares, ours of half of them.
VALUE_COEFFICIENT = 0.7


class Spaced(gymnasium.Env[Any, Any]):
    """Only the spaces, which is all that Stable-Baselines3 looks at here."""

    def __init__(self, action_space: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = OBSERVATION, action_space


def silent(made: Any) -> Any:
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def parameters(*modules: nn.Module | Tensor) -> Tensor:
    """All parameters in order, as one vector."""
    found = [list(module.parameters()) if isinstance(module, nn.Module) else [module] for module in modules]
    return torch.cat([parameter.detach().reshape(-1) for each in found for parameter in each])


def ppo_peer(action_space: gymnasium.Space[Any]) -> Any:
    torch.manual_seed(3)
    return silent(
        stable_baselines3.PPO(
            "MlpPolicy",
            Spaced(action_space),
            learning_rate=LEARNING_RATE,
            n_steps=ROWS,
            batch_size=ROWS,
            n_epochs=1,
            ent_coef=0.02,
            vf_coef=0.5 * VALUE_COEFFICIENT,
            max_grad_norm=0.4,
            normalize_advantage=False,
            policy_kwargs={"net_arch": {"pi": [16, 16], "vf": [16, 16]}, "ortho_init": True},
            device="cpu",
        )
    )


def ppo_flat(made: Any) -> Tensor:
    """In the order of marlflow's flat vector: the actor, then the critic."""
    policy, extractor = made.policy, made.policy.mlp_extractor
    free = [policy.log_std] if hasattr(policy, "log_std") else []
    actor = parameters(*free, extractor.policy_net, policy.action_net)
    return torch.cat([actor, parameters(extractor.value_net, policy.value_net)])


def ppo_rows(action_space: gymnasium.Space[Any], seed: int) -> mf.EstimatedBatch:
    """Inside the box, where a clipped Gaussian has the density of one that is not."""
    random = np.random.default_rng(seed)
    inside = random.uniform(-0.9, 0.9, (ROWS, 2)).astype(np.float32)
    columns = {
        "obs": random.uniform(-2.0, 2.0, (ROWS, 3)).astype(np.float32),
        "action": random.integers(0, 4, ROWS) if action_space is DISCRETE else inside,
        "behavior_logp": random.normal(-1.4, 0.4, ROWS).astype(np.float32),
        "advantage": random.normal(0.0, 2.0, ROWS).astype(np.float32),
        "value": random.normal(0.0, 1.0, ROWS).astype(np.float32),
        "value_target": random.normal(1.0, 3.0, ROWS).astype(np.float32),
        "reward": np.zeros(ROWS),
        "version": np.zeros(ROWS, np.int64),
    }
    return mf.EstimatedBatch(columns, {"length": np.array([ROWS]), "carried": np.zeros(1, bool)})


def ppo_samples(rows: mf.EstimatedBatch) -> RolloutBufferSamples:
    names = ("obs", "action", "value", "behavior_logp", "advantage", "value_target")
    return RolloutBufferSamples(*(torch.from_numpy(rows.columns[name]) for name in names))


@pytest.mark.parametrize("action_space", [DISCRETE, BOX], ids=["discrete", "box"])
def test_ppo(action_space: gymnasium.Space[Any]) -> None:
    made = ppo_peer(action_space)
    config = mf.PPO(
        learning_rate=LEARNING_RATE, entropy_coefficient=0.02, value_coefficient=VALUE_COEFFICIENT, max_grad_norm=0.4
    )
    learner = config.learner("hunter", {"hunter": mf.Member(Spaces(OBSERVATION, action_space), MODEL)}, 0, ON_CPU)
    learner.parameters.flat.load(ppo_flat(made))
    before = ppo_flat(made)
    batches = [ppo_rows(action_space, seed) for seed in range(3)]
    for batch in batches:
        values = batch.columns["value"], batch.columns["value_target"]
        made.rollout_buffer = SimpleNamespace(
            get=lambda _, rows=batch: iter([ppo_samples(rows)]),
            values=SimpleNamespace(flatten=lambda found=values: found[0]),
            returns=SimpleNamespace(flatten=lambda found=values: found[1]),
        )
        made.train()
        update = mf.Learn(epochs=1, minibatch=ROWS)(batch, learner)
        assert update.updates == 1
        torch.testing.assert_close(learner.parameters.flat.vector, ppo_flat(made), rtol=1e-5, atol=1e-5)
    assert (learner.parameters.flat.vector - before).abs().max() > LEARNING_RATE


def dqn_peer() -> Any:
    torch.manual_seed(3)
    return silent(
        stable_baselines3.DQN(
            "MlpPolicy",
            Spaced(DISCRETE),
            learning_rate=LEARNING_RATE,
            gamma=DISCOUNT,
            max_grad_norm=0.5,
            policy_kwargs={"net_arch": [16, 16]},
            device="cpu",
        )
    )


def dqn_rows(seed: int) -> mf.Transitions:
    random = np.random.default_rng(seed)
    obs, next_obs = random.uniform(-2.0, 2.0, (2, ROWS, 3)).astype(np.float32)
    discount = np.where(random.random(ROWS) < 0.2, 0.0, DISCOUNT).astype(np.float32)
    reward = random.normal(0.0, 2.0, ROWS).astype(np.float32)
    ones = np.ones(ROWS, np.float32)
    return mf.Transitions(obs, random.integers(0, 4, ROWS), reward, discount, next_obs, ones, np.arange(ROWS))


def dqn_samples(rows: mf.Transitions) -> ReplayBufferSamples:
    column = {name: torch.from_numpy(getattr(rows, name)) for name in ("obs", "next_obs", "action", "reward")}
    ended = torch.from_numpy(rows.discount == 0.0).float()
    return ReplayBufferSamples(
        column["obs"], column["action"][:, None], column["next_obs"], ended[:, None], column["reward"][:, None]
    )


def dqn_learner(made: Any) -> mf.TorchLearner:
    config = mf.DQN(learning_rate=LEARNING_RATE, discount=DISCOUNT, n_step=1, double=False, max_grad_norm=0.5)
    model = mf.MLP((16, 16), "relu")
    learner = config.learner("hunter", {"hunter": mf.Member(Spaces(OBSERVATION, DISCRETE), model)}, 0, ON_CPU)
    learner.parameters.flat.load(parameters(made.q_net))
    learner.sync_target()
    return learner


def test_dqn() -> None:
    made = dqn_peer()
    with torch.no_grad():  # a target that is not the network
        for parameter in made.q_net.parameters():
            parameter.add_(0.05)
    learner = dqn_learner(made)
    made.q_net_target.load_state_dict(made.q_net.state_dict())
    learn, sync = stage_call(mf.Learn(), learner), stage_call(mf.SyncTarget(every=2), learner)
    for number in range(4):
        rows = dqn_rows(number)
        made.replay_buffer = SimpleNamespace(sample=lambda *_, rows=rows, **__: dqn_samples(rows))
        made.train(gradient_steps=1, batch_size=ROWS)
        sync(learn(rows))
        if number % 2:
            made.q_net_target.load_state_dict(made.q_net.state_dict())
        torch.testing.assert_close(learner.parameters.flat.vector, parameters(made.q_net), rtol=1e-5, atol=1e-5)
    assert learner.updates == 4
