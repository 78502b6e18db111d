"""Deep Q-learning with replay (Mnih et al., 2015, doi:10.1038/nature14236).

Stores every row, and in an exact ratio to what it stored draws transitions and learns from them. Double
(van Hasselt et al., 2016, arXiv:1509.06461), dueling (Wang et al., 2016, arXiv:1511.06581), n-step (Sutton, 1988) and
prioritised (Schaul et al., 2016, arXiv:1511.05952) by choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from gymnasium import spaces as gym
from torch import Tensor

from marlflow.algorithms.algorithm import describe_space
from marlflow.algorithms.dqn_gradient import Rows, q_learning_gradient
from marlflow.base.batch import Transitions
from marlflow.base.items import Fragment
from marlflow.base.spaces import Spaces
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learn.compute import Compute
from marlflow.learn.learner import TorchLearner
from marlflow.learn.loss import LossTerms
from marlflow.learn.protocol import Learner
from marlflow.learn.stages import Learn, Publish, SyncTarget
from marlflow.losses.q_learning import double_q_learning_target, huber_loss, q_learning_target, td_error
from marlflow.policy.q import QActor, QNetwork, QPass
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay
from marlflow.replay.sampling import Prioritized, Uniform
from marlflow.replay.stages import Draw, Insert, NStep, Reprioritize
from marlflow.rollout.stages import Concat


@dataclass(frozen=True)
class DQN:
    """DQN's settings. Sizes are in agent steps of the policy; one update is one optimiser step."""

    name: ClassVar[str] = "dqn"
    learns: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    trains_on: ClassVar[type] = Transitions
    needs_state: ClassVar[bool] = False

    batch_agent_steps: int = 64
    train_every_agent_steps: int = 8
    learning_starts_agent_steps: int = 1_000
    store_agent_steps: int = 1
    replay_agent_steps: int = 100_000
    learning_rate: float = 5e-4
    discount: float = 0.99
    n_step: int = 3
    double: bool = True
    dueling: bool = False
    prioritized: bool = False
    priority_alpha: float = 0.6
    priority_beta: float = 0.4
    target_every_updates: int = 200
    publish_every_updates: int = 10
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_agent_steps: int = 10_000
    huber_delta: float = 1.0
    max_grad_norm: float = 10.0
    adam_eps: float = 1e-8

    def plan(self, experience: Flow[Fragment], learner: Learner, replay: Replay | None) -> Plan:
        """From experience to weights."""
        if replay is None:
            raise TypeError("dqn's plan needs a replay")
        store = (
            experience.gather(Concat(agent_steps=self.store_agent_steps))
            .then(NStep(replay, self.n_step, self.discount))
            .then(Insert(replay))
        )
        # What the learner does stands together: it is then one call, and targets and versions come after the same
        # updates, wherever the replay lives.
        train = (
            source(Draw(replay, self.batch_agent_steps))
            .then(Learn(learner))
            .then(SyncTarget(learner, every=self.target_every_updates))
            .then(Publish(learner, every=self.publish_every_updates))
            .then(Reprioritize(replay))
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan("dqn", output=train, also={"store": store}, pace=ratio)

    def problems(self, spaces: Spaces) -> list[str]:
        """DQN acts in Discrete spaces."""
        found = []
        if not isinstance(spaces.action, gym.Discrete):
            found.append(f"dqn cannot act in {describe_space(spaces.action)}; it needs Discrete actions")
        positive = ("batch_agent_steps", "store_agent_steps", "train_every_agent_steps", "replay_agent_steps", "n_step")
        found += [
            f"dqn needs {name} of at least 1, not {value}" for name in positive if (value := getattr(self, name)) < 1
        ]
        if self.learning_starts_agent_steps > self.replay_agent_steps:
            found.append(
                f"dqn would start learning after {self.learning_starts_agent_steps} agent steps, but its replay holds "
                f"{self.replay_agent_steps}; raise replay_agent_steps"
            )
        return found

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> QActor:
        """Epsilon-greedy over the action values."""
        return QNetwork(spaces, model, dueling=self.dueling, seed=seed).actor

    def learner(self, name: str, spaces: Spaces, model: TorsoConfig, seed: int, compute: Compute) -> TorchLearner:
        """Learns action values."""
        return TorchLearner(
            name,
            QNetwork(spaces, model, dueling=self.dueling, seed=seed),
            DQNLoss(self.double, self.huber_delta),
            trains_on=self.trains_on,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            adam_eps=self.adam_eps,
            seed=seed,
            compute=compute,
            target=True,
        )

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """Remembers the newest rows."""
        sampling = Prioritized(self.priority_alpha, self.priority_beta) if self.prioritized else Uniform()
        return ReplayBuffer(self.replay_agent_steps, self.n_step, self.discount, seed, sampling, name)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Epsilon falls linearly."""
        done = min(1.0, agent_steps / max(1, self.epsilon_agent_steps))
        return {"epsilon": self.epsilon_start + done * (self.epsilon_end - self.epsilon_start)}


class DQNLoss:
    """The Huber loss of (double) Q-learning's errors, weighted by the replay; priorities are the errors' sizes."""

    def __init__(self, double: bool = True, huber_delta: float = 1.0) -> None:
        self.double, self.huber_delta = double, huber_delta

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch of Transitions: in closed form where that is known, else by autograd."""
        found = self.in_closed_form if QPass.fits(module) else self.composed
        return found(module, target_module, minibatch)

    def composed(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss for any network, differentiable."""
        q_tm1 = module(minibatch["obs"])
        error = td_error(q_tm1, minibatch["action"], self._target(module, target_module, minibatch))
        total = (huber_loss(error, self.huber_delta) * minibatch["weight"]).mean()
        with torch.no_grad():
            priorities = error.abs()
            terms = {"td": total.detach(), "td_error_mean": priorities.mean(), "q_mean": q_tm1.mean()}
        return LossTerms(total, terms, priorities)

    def in_closed_form(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The same number and the same gradient for small networks on a CPU, at half the cost."""
        with torch.inference_mode():
            ahead, next_obs, mask = QPass(module, minibatch["obs"]), minibatch["next_obs"], minibatch.get("next_mask")
            q_t_value = target_module(next_obs)
            q_t_selector = module(next_obs) if self.double else q_t_value
            rows = Rows(
                action=minibatch["action"].numpy(),
                r_t=minibatch["reward"].numpy(),
                discount_t=minibatch["discount"].numpy(),
                weight=minibatch["weight"].numpy(),
                mask_t=None if mask is None else mask.numpy(),
            )
            terms, d_q, error = q_learning_gradient(
                ahead.q.numpy(), q_t_selector.numpy(), q_t_value.numpy(), rows, self.huber_delta
            )
            ahead.pull(torch.from_numpy(d_q))
        return LossTerms(None, terms, torch.from_numpy(abs(error)))

    def _target(self, module: QNetwork, target_module: QNetwork, minibatch: Mapping[str, Tensor]) -> Tensor:
        next_obs, mask = minibatch["next_obs"], minibatch.get("next_mask")
        with torch.no_grad():
            q_t = target_module(next_obs)
            if not self.double:
                return q_learning_target(minibatch["reward"], minibatch["discount"], q_t, mask)
            return double_q_learning_target(minibatch["reward"], minibatch["discount"], module(next_obs), q_t, mask)
