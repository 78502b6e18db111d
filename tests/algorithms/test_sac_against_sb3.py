"""SAC's update is Stable-Baselines3's, number for number, fed the same parameters, rows and noise."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import stable_baselines3
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor, nn

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.flow.protocols import stage_call
from marlflow.learner.compute import ON_CPU

SEED, ROWS, DISCOUNT, TAU, LEARNING_RATE = 3, 64, 0.97, 0.05, 1e-3
OBSERVATION = gymnasium.spaces.Box(-2.0, 2.0, (3,), np.float32)
ACTION = gymnasium.spaces.Box(np.array([-1.0, 0.0], np.float32), np.array([3.0, 1.0], np.float32))
CENTER, SCALE = np.array([1.0, 0.5], np.float32), np.array([2.0, 0.5], np.float32)


class Spaced(gymnasium.Env[Any, Any]):
    """Only the spaces, which is all that Stable-Baselines3 looks at here."""

    observation_space, action_space = OBSERVATION, ACTION


def transitions(seed: int) -> mf.Transitions:
    rng = np.random.default_rng(seed)
    return mf.Transitions(
        obs=rng.uniform(-2.0, 2.0, (ROWS, 3)).astype(np.float32),
        action=rng.uniform(ACTION.low, ACTION.high, (ROWS, 2)).astype(np.float32),
        reward=rng.normal(-1.0, 2.0, ROWS).astype(np.float32),
        discount=np.where(rng.random(ROWS) < 0.2, 0.0, DISCOUNT).astype(np.float32),
        next_obs=rng.uniform(-2.0, 2.0, (ROWS, 3)).astype(np.float32),
        weight=np.ones(ROWS, np.float32),
        row_id=np.arange(ROWS),
    )


def samples(rows: mf.Transitions) -> ReplayBufferSamples:
    """The same rows as Stable-Baselines3 keeps them: columns of width 1, and actions in [-1, 1]."""
    column = {name: torch.from_numpy(getattr(rows, name)) for name in ("obs", "next_obs", "reward", "discount")}
    action = torch.from_numpy((rows.action - CENTER) / SCALE)
    ended = (column["discount"] == 0.0).float().unsqueeze(1)
    return ReplayBufferSamples(
        column["obs"], action, column["next_obs"], ended, column["reward"].unsqueeze(1), torch.tensor(DISCOUNT)
    )


def peer(temperature: float | str) -> stable_baselines3.SAC:
    torch.manual_seed(SEED)
    made = stable_baselines3.SAC(
        "MlpPolicy",
        Spaced(),
        learning_rate=LEARNING_RATE,
        tau=TAU,
        gamma=DISCOUNT,
        ent_coef=temperature,
        policy_kwargs={"net_arch": [16, 16]},
        device="cpu",
    )
    made.set_logger(Logger(folder=None, output_formats=[]))
    return made


def parameters_of(made: stable_baselines3.SAC, critics: Any) -> list[Tensor]:
    """Actor and critics in the order of marlflow's flat vector; the actor's two heads are one of ours."""
    actor = made.actor
    hidden = [parameter for layer in actor.latent_pi for parameter in layer.parameters()]
    head = [torch.cat([getattr(actor.mu, name), getattr(actor.log_std, name)]) for name in ("weight", "bias")]
    values = [parameter for critic in critics.q_networks for parameter in critic[:-1].parameters()]
    heads = [parameter for critic in critics.q_networks for parameter in critic[-1].parameters()]
    return [parameter.detach().reshape(-1) for parameter in (*hidden, *head, *values, *heads)]


def flat_of(made: stable_baselines3.SAC) -> Tensor:
    temperature = getattr(made, "log_ent_coef", None)
    last = torch.zeros(1) if temperature is None else temperature.detach().reshape(-1)
    return torch.cat([*parameters_of(made, made.critic), last])


def learner_like(made: stable_baselines3.SAC, temperature: float | None) -> mf.TorchLearner:
    config = mf.SAC(learning_rate=LEARNING_RATE, discount=DISCOUNT, tau=TAU, temperature=temperature)
    model = mf.MLP(hidden_sizes=(16, 16), activation="relu")
    learner = config.learner("hunter", {"hunter": mf.Member(Spaces(OBSERVATION, ACTION), model)}, SEED, ON_CPU)
    learner.parameters.flat.load(flat_of(made))
    learner.sync_target()
    return learner


@pytest.fixture
def noise(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tensor]]:
    """The noise that Stable-Baselines3 draws, in order: for each update first for `obs`, then for `next_obs`."""
    queue: list[Tensor] = []
    monkeypatch.setattr(torch.distributions.normal, "_standard_normal", lambda *shape, **how: queue.pop(0))
    yield queue
    assert not queue


@pytest.mark.parametrize("temperature", [None, 0.3], ids=["learned", "fixed"])
@pytest.mark.parametrize("updates", [1, 3])
def test_updates_are_those_of_stable_baselines3(
    updates: int, temperature: float | None, noise: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = peer("auto" if temperature is None else temperature)
    learner = learner_like(made, temperature)
    before = flat_of(made)
    batches = [transitions(seed) for seed in range(updates)]
    generator = torch.Generator().manual_seed(SEED)
    for _ in batches:
        noise += torch.randn(ROWS, 4, generator=generator).split(2, dim=1)
    rows = iter(batches)
    made.replay_buffer = SimpleNamespace(sample=lambda *_, **__: samples(next(rows)))  # type: ignore[assignment]
    made.train(gradient_steps=updates, batch_size=ROWS)
    learn, sync = stage_call(mf.Learn(), learner), stage_call(mf.SyncTarget(every=1, tau=TAU), learner)
    for batch in batches:
        sync(learn(batch))
    assert learner.updates == updates
    torch.testing.assert_close(learner.parameters.flat.vector, flat_of(made), rtol=1e-5, atol=1e-5)
    targets = nn.ModuleList(
        [*learner.parameters.target_module.critics.joins, *learner.parameters.target_module.critics.heads]
    )
    target = torch.cat([parameter.reshape(-1) for parameter in targets.parameters()])
    expected = torch.cat(parameters_of(made, made.critic_target))
    torch.testing.assert_close(target, expected[-len(target) :], rtol=1e-5, atol=1e-5)
    assert (learner.parameters.flat.vector - before).abs().max() > 0.5 * LEARNING_RATE * updates
