"""Asynchronous Proximal Policy Optimization, APPO: PPO's clipped loss on V-trace's advantages.

As IMPALA (Espeholt et al., 2018, arXiv:1802.01561), but each batch is learned from several times. The ratio that is
clipped (Schulman et al., 2017, arXiv:1707.06347) is to the policy at the start of the batch, and V-trace's advantages
weigh what that one would do over what the workers did (Hilton et al., 2022, arXiv:2110.00641, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from marlflow.algorithms.a2c import ActorCriticSettings
from marlflow.algorithms.algorithm import Capabilities
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.batch import EstimatedBatch
from marlflow.base.items import Fragment
from marlflow.base.schedules import Setting, at_start
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.learn.loss import LossFunction, LossTerms
from marlflow.learn.protocol import Learner
from marlflow.policy.actor_critic import ActorCritic
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Normalize, Publish, VTrace


@dataclass(frozen=True)
class APPO(ActorCriticSettings):
    """APPO's settings. Sizes are in agent steps of the policy; one update is one optimiser step."""

    name: ClassVar[str] = "appo"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "off-policy", EstimatedBatch)

    batch_agent_steps: int = 2_000
    waiting_fragments: int = 4
    epochs: int = 4
    minibatch_agent_steps: int = 128
    clip_range: Setting = 0.2
    trace_lambda: Setting = 0.95
    rho_max: Setting = 1.0
    c_max: Setting = 1.0

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        """From experience to weights."""
        trace = map(at_start, (self.discount, self.trace_lambda, self.rho_max, self.c_max))
        reports = (
            experience.queue(self.waiting_fragments, full="drop_oldest", name="newest")
            .gather(Concat(agent_steps=self.batch_agent_steps))
            .then(VTrace(*trace), at=learner)
            .then(Normalize(), at=learner)
            .then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("appo", output=reports)

    def losses(self, spaces: Spaces) -> LossFunction:
        """PPO's loss, its ratio to the policy at the start of the batch."""
        clip, value, entropy = map(at_start, (self.clip_range, self.value_coefficient, self.entropy_coefficient))
        return APPOLoss(Coefficients(clip, value, entropy))


class APPOLoss(PPOLoss):
    """PPO's loss, where the policy at the start of the batch stands for the one that acted."""

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        """The loss of a minibatch of VTrace's; its `behaviour_logp` is what acted, its `logp` what began to learn."""
        return super().__call__(module, target_module, {**minibatch, "behaviour_logp": minibatch["logp"]})
