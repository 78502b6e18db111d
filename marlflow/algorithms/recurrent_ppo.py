"""Recurrent Proximal Policy Optimization: PPO (Schulman et al., 2017, arXiv:1707.06347) on sequences of rows.

The network is unrolled from the memory stored with a sequence's first row, with truncated backpropagation through time.
For what matters in practice see Ni et al., 2022, arXiv:2110.05038.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, LearningAlgorithm
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.errors import Problem
from marlflow.base.ranges import CountOrZero, Discount, LearningRate, Share, SmallCount, Steps, Threshold, Weight
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees
from marlflow.batches.items import Fragment
from marlflow.batches.sequences import Sequences
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossTerms
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.recurrent_actors import RecurrentActorCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.protocol import Replay
from marlflow.stages import Advantages, Concat, CutSequences, DropStale, Learn, Normalize, Publish


@dataclass(frozen=True)
class RecurrentPPO(LearningAlgorithm):
    """Recurrent PPO's settings; an update is one optimizer step."""

    name: ClassVar[str] = "recurrent_ppo"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "on-policy", Sequences, memory="needed")

    batch_agent_steps: Steps = 4_000
    sequence_agent_steps: Steps = 16
    epochs: SmallCount = 10
    minibatch_agent_steps: Steps = 256
    learning_rate: OrSchedule[LearningRate] = 3e-4
    discount: OrSchedule[Discount] = 0.99
    gae_lambda: OrSchedule[Share] = 0.95
    clip_range: OrSchedule[Threshold] = 0.2
    value_clip_range: Threshold | None = None
    value_coefficient: OrSchedule[Weight] = 0.5
    entropy_coefficient: OrSchedule[Weight] = 0.01
    max_grad_norm: OrSchedule[Threshold] = 0.5
    optimizer: Optimizer = Adam(eps=1e-5)
    normalize_values: bool = False
    critic_sees: Sequence[CriticSees] = OWN_OBSERVATION
    bootstrap_at_death: bool = False
    max_staleness: CountOrZero = 0

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        estimate = Advantages(initial_value(self.discount), initial_value(self.gae_lambda), self.bootstrap_at_death)
        batches = experience.gather(Concat(agent_steps=self.batch_agent_steps))
        fresh = self.with_stages("fresh", batches.then(DropStale(self.max_staleness), at=learner), learner)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        # After Advantages, which needs whole segments.
        cut = estimated.then(Normalize(), at=learner).then(CutSequences(self.sequence_agent_steps), at=learner)
        learn = Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps)
        learned = self.with_stages("before_learning", cut, learner).then(learn, at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan("recurrent_ppo", output=reports, waits_for_rounds=True)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if self.sequence_agent_steps > self.minibatch_agent_steps >= 1:
            lengths = f"{self.sequence_agent_steps} and {self.minibatch_agent_steps}"
            message = f"needs sequence_agent_steps of at most minibatch_agent_steps, not {lengths}"
            problems.append(Problem(message, self.name))
        return problems

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> RecurrentActorCritic:
        return RecurrentActorCritic(spaces, model, seed, self.normalize_values, self.critic_sees)

    def losses(self, spaces: Spaces) -> RecurrentPPOLoss:
        clip, value, entropy = map(initial_value, (self.clip_range, self.value_coefficient, self.entropy_coefficient))
        return RecurrentPPOLoss(Coefficients(clip, value, entropy, self.value_clip_range))


class RecurrentPPOLoss(PPOLoss):
    """PPO's loss of each valid row, weighted by `Sequences.weight`."""

    def __call__(self, module: RecurrentActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:  # type: ignore[override]
        valid = minibatch["valid"]
        outputs, value = module(minibatch["obs"], minibatch["memory"], valid, minibatch.get("central"))
        unused = ("memory", "obs", "central")
        rows = {name: column.flatten(0, 1) for name, column in minibatch.items() if name not in unused}
        if (mask := rows.get("action_mask")) is not None:
            # Masks of padding may be empty, which would give its log-probabilities no number.
            rows["action_mask"] = mask | ~rows["valid"].unsqueeze(-1)

        def mean(by_row: Tensor) -> Tensor:
            # Weights make the expectation the same however rows fall into minibatches. Padding may have any number.
            weighted = torch.where(rows["valid"], by_row * rows["weight"], 0.0)
            of_sequences: Tensor = weighted.unflatten(0, valid.shape).sum(1)
            return of_sequences.mean()

        flat_outputs, flat_value = outputs.flatten(0, 1), value.flatten(0, 1)
        return self.of_rows(module.actor.head, module.value_error, flat_outputs, flat_value, rows, mean)
