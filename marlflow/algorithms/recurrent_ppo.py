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

from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities, TorchAlgorithm
from marlflow.algorithms.ppo import ClippedAlgorithm
from marlflow.algorithms.ppo_loss import PPOLoss
from marlflow.base.errors import Problem
from marlflow.base.ranges import CountOrZero, Steps
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.critic_input import OWN_OBSERVATION, CriticSees
from marlflow.batches.sequences import Sequences
from marlflow.flow import Flow
from marlflow.learner.loss import LossTerms
from marlflow.learner.protocol import Learner
from marlflow.policy.recurrent import RecurrentActorCritic
from marlflow.policy.torso import TorsoConfig
from marlflow.stages import CutSequences


@dataclass(frozen=True)
class BatchOfSequences(TorchAlgorithm):
    """The sizes of a batch and its sequences, in agent steps."""

    batch_agent_steps: Steps = 4_000
    sequence_agent_steps: Steps = 16  #: agent steps that the network is unrolled over


@dataclass(frozen=True)
class RecurrentPPO(ClippedAlgorithm, BatchOfSequences):
    """Recurrent PPO's settings; an update is one optimizer step."""

    name: ClassVar[str] = "recurrent_ppo"
    capabilities: ClassVar[Capabilities] = Capabilities(
        STOCHASTIC_ACTIONS, "on-policy", Sequences, critic=True, memory="needed"
    )

    minibatch_agent_steps: Steps = 256  #: agent steps in one optimizer step, in whole sequences
    critic_sees: Sequence[CriticSees] = OWN_OBSERVATION
    bootstrap_at_death: bool = False
    max_staleness: CountOrZero = 0

    def prepared(self, estimated: Flow[EstimatedBatch], learner: Learner) -> Flow[Sequences]:
        # After Advantages, which needs whole segments.
        return super().prepared(estimated, learner).then(CutSequences(self.sequence_agent_steps), at=learner)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if self.sequence_agent_steps > self.minibatch_agent_steps >= 1:
            lengths = f"{self.sequence_agent_steps} and {self.minibatch_agent_steps}"
            message = f"needs sequence_agent_steps of at most minibatch_agent_steps, not {lengths}"
            problems.append(Problem(message, self.name))
        return problems

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> RecurrentActorCritic:
        return RecurrentActorCritic(spaces, model, seed, self.critic_sees)

    def losses(self, spaces: Spaces) -> RecurrentPPOLoss:
        return RecurrentPPOLoss(self.coefficients())


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
