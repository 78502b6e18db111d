"""Proximal Policy Optimization (Schulman et al., 2017, arXiv:1707.06347).

Gathers a batch of fresh rows, estimates their advantages with the critic, learns from each row for some epochs with the
clipped surrogate loss, publishes, and forgets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from gymnasium import spaces as gym
from torch import Tensor

from marlflow.algorithms.algorithm import describe_space
from marlflow.algorithms.ppo_gradient import Coefficients, Rows, ppo_gradient
from marlflow.base.batch import EstimatedBatch
from marlflow.base.items import Fragment
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.learn.compute import Compute
from marlflow.learn.learner import TorchLearner
from marlflow.learn.loss import LossTerms
from marlflow.learn.protocol import Learner
from marlflow.learn.stages import Advantages, DropStale, Learn, Normalise, Publish
from marlflow.losses.ppo import approximate_kl, clipped_surrogate_loss, clipped_value_loss, value_loss
from marlflow.policy.actor_critic import ActorCritic, DensePass, StochasticActor, stochastic_actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay
from marlflow.rollout.stages import Concat


@dataclass(frozen=True)
class PPO:
    """PPO's settings. Sizes are in agent steps of the policy; one update is one optimiser step."""

    name: ClassVar[str] = "ppo"
    learns: ClassVar[bool] = True
    remembers: ClassVar[bool] = False
    trains_on: ClassVar[type] = EstimatedBatch
    needs_state: ClassVar[bool] = False

    batch_agent_steps: int = 4_000
    epochs: int = 10
    minibatch_agent_steps: int = 128
    learning_rate: float = 3e-4
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_range: float = 0.2
    value_clip_range: float | None = None
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    max_grad_norm: float = 0.5
    adam_eps: float = 1e-5
    shared_torso: bool = False
    max_staleness: int = 0

    def plan(self, experience: Flow[Fragment], learner: Learner, replay: Replay | None = None) -> Plan:
        """From experience to weights."""
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(DropStale(learner, self.max_staleness))
            .then(Advantages(learner, self.discount, self.gae_lambda))
            .then(Normalise(learner))
            .then(Learn(learner, epochs=self.epochs, minibatch=self.minibatch_agent_steps))
            .then(Publish(learner))
        )
        return Plan("ppo", output=reports, waits_for_rounds=True)

    def problems(self, spaces: Spaces) -> list[str]:
        """PPO acts in Discrete and Box spaces."""
        found = []
        if not isinstance(spaces.action, gym.Discrete | gym.Box):
            found.append(f"ppo cannot act in {describe_space(spaces.action)}; it needs Discrete or Box actions")
        elif isinstance(spaces.action, gym.Box) and spaces.action.dtype.kind != "f":
            found.append(
                f"ppo cannot act in {describe_space(spaces.action)}; it needs a Box of floats, not of "
                f"{spaces.action.dtype}, or Discrete actions"
            )
        if self.batch_agent_steps < 1 or self.minibatch_agent_steps < 1 or self.epochs < 1:
            found.append("ppo needs batch_agent_steps, minibatch_agent_steps and epochs of at least 1")
        elif self.minibatch_agent_steps > self.batch_agent_steps:
            found.append(
                f"ppo's minibatches of {self.minibatch_agent_steps} agent steps do not fit into its batches of "
                f"{self.batch_agent_steps}; lower minibatch_agent_steps"
            )
        return found

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> StochasticActor:
        """Samples from a categorical or Gaussian distribution."""
        return stochastic_actor(spaces, model, torch.Generator().manual_seed(seed))

    def learner(self, name: str, spaces: Spaces, model: TorsoConfig, seed: int, compute: Compute) -> TorchLearner:
        """Learns an actor and a critic."""
        return TorchLearner(
            name,
            ActorCritic(spaces, model, None if self.shared_torso else model, seed),
            PPOLoss(
                Coefficients(self.clip_range, self.value_coefficient, self.entropy_coefficient, self.value_clip_range)
            ),
            trains_on=self.trains_on,
            learning_rate=self.learning_rate,
            max_grad_norm=self.max_grad_norm,
            adam_eps=self.adam_eps,
            seed=seed,
            compute=compute,
        )

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """PPO forgets what it has learned from."""
        raise TypeError("ppo has no replay")

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Nothing of PPO changes with time."""
        return {}


class PPOLoss:
    """The clipped surrogate, the value loss and the entropy bonus (equation 9)."""

    def __init__(self, coefficients: Coefficients) -> None:
        self.coefficients = coefficients

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of this loss is scheduled."""

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch of an EstimatedBatch: in closed form where that is known, else by autograd."""
        return self.in_closed_form(module, minibatch) if DensePass.fits(module) else self.composed(module, minibatch)

    def composed(self, module: ActorCritic, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss for any network and any actions, differentiable."""
        weights = self.coefficients
        outputs, value = module(minibatch["obs"])
        mask, behaviour_logp = minibatch.get("action_mask"), minibatch["behaviour_logp"]
        logp, entropy_by_row = module.actor.log_prob_and_entropy(outputs, minibatch["action"], mask)
        policy = clipped_surrogate_loss(logp, behaviour_logp, minibatch["advantage"], weights.clip_range).mean()
        values = self._value_loss(value, minibatch).mean()
        entropy = entropy_by_row.mean()
        total = policy + weights.value * values - weights.entropy * entropy
        kl = approximate_kl(logp.detach(), behaviour_logp).mean()
        terms = {"policy": policy.detach(), "value": values.detach(), "entropy": entropy.detach(), "kl": kl}
        return LossTerms(total, terms)

    def in_closed_form(self, module: ActorCritic, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The same number and the same gradient for small networks on a CPU, at less than half the cost."""
        with torch.inference_mode():
            ahead = DensePass(module, minibatch["obs"])
            mask = minibatch.get("action_mask")
            rows = Rows(
                action=minibatch["action"].numpy(),
                behaviour_logp_t=minibatch["behaviour_logp"].numpy(),
                advantage_t=minibatch["advantage"].numpy(),
                target_tm1=minibatch["value_target"].numpy(),
                behaviour_v_tm1=minibatch["value"].numpy(),
                mask=None if mask is None else mask.numpy(),
            )
            terms, d_logits, d_value = ppo_gradient(ahead.logits.numpy(), ahead.value.numpy(), rows, self.coefficients)
            ahead.pull(torch.from_numpy(d_logits), torch.from_numpy(d_value))
        return LossTerms(None, terms)

    def _value_loss(self, value: Tensor, minibatch: Mapping[str, Tensor]) -> Tensor:
        target, limit = minibatch["value_target"], self.coefficients.value_clip_range
        if limit is None:
            return value_loss(value, target)
        return clipped_value_loss(value, minibatch["value"], target, limit)
