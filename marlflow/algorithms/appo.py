"""Asynchronous Proximal Policy Optimization, APPO: PPO's clipped loss on V-trace advantages.

As IMPALA (Espeholt et al., 2018, arXiv:1802.01561), with several epochs per batch. The clipped ratio (Schulman et al.,
2017, arXiv:1707.06347) is to the policy at the start of the batch; V-trace corrects from the behavior policy to that
one (Hilton et al., 2022, arXiv:2110.00641, section 3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from marlflow.algorithms.a2c import ActorCriticAlgorithm
from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities
from marlflow.algorithms.ppo_loss import Coefficients, PPOLoss
from marlflow.base.ranges import Count, Share, SmallCount, Steps, Threshold
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.loss import LossFunction, LossTerms
from marlflow.learner.protocol import Learner
from marlflow.policy.actor_critic import ActorCritic
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Normalize, Publish, VTrace


@dataclass(frozen=True)
class APPO(ActorCriticAlgorithm):
    """APPO's settings; an update is one optimizer step."""

    name: ClassVar[str] = "appo"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "off-policy", EstimatedBatch, critic=True)

    batch_agent_steps: Steps = 2_000  #: minimum agent steps in a batch
    queue_fragments: Count = 4  #: fragments that may wait for the learner; beyond that, the oldest are dropped
    epochs: SmallCount = 4  #: passes over each batch
    minibatch_agent_steps: Steps = 128  #: agent steps in one optimizer step
    clip_range: OrSchedule[Threshold] = 0.2  #: probability ratios are clipped to 1 - this and 1 + this
    trace_lambda: OrSchedule[Share] = 0.95  #: reach of the corrections along a segment: 0 is one-step, 1 is V-trace
    #: limit of probability ratios; lower values move the result toward the behavior policy
    rho_max: OrSchedule[Threshold] = 1.0
    #: limit of probability ratios in the trace; lower values shorten the corrections
    c_max: OrSchedule[Threshold] = 1.0

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        trace = map(initial_value, (self.discount, self.trace_lambda, self.rho_max, self.c_max))
        # Drops the oldest fragments if the learner is too slow, so that workers never wait.
        newest = experience.queue(self.queue_fragments, full="drop_oldest", name="newest")
        fresh = self.with_stages("fresh", newest.gather(Concat(agent_steps=self.batch_agent_steps)), learner)
        estimate = VTrace(*trace, bootstrap_at_death=self.bootstrap_at_death)
        estimated = self.with_stages("estimated", fresh.then(estimate, at=learner), learner)
        rows = self.with_stages("before_learning", estimated.then(Normalize(), at=learner), learner)
        learned = rows.then(Learn(epochs=self.epochs, minibatch=self.minibatch_agent_steps), at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan("appo", output=reports)

    def losses(self, spaces: Spaces) -> LossFunction:
        clip, value, entropy = map(initial_value, (self.clip_range, self.value_coefficient, self.entropy_coefficient))
        return APPOLoss(Coefficients(clip, value, entropy))


class APPOLoss(PPOLoss):
    """PPO's loss with the ratio to the policy at the start of the batch."""

    def __call__(self, module: ActorCritic, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        # `logp` is from VTrace, at the start of the batch; `behavior_logp` is from sampling.
        from_start = {**minibatch, "behavior_logp": minibatch["logp"]}
        return super().__call__(module, target_module, from_start)
