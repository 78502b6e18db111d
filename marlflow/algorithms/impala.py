"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561).

Sampling and learning are asynchronous: excess fragments are dropped, oldest first, and V-trace corrects for the lag
between the behavior policy and the learner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.a2c import ActorCriticAlgorithm
from marlflow.algorithms.algorithm import STOCHASTIC_ACTIONS, Capabilities
from marlflow.base.ranges import Count, Share, Steps, Threshold
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.batches.batch import EstimatedBatch
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Publish, VTrace


@dataclass(frozen=True)
class IMPALA(ActorCriticAlgorithm):
    """IMPALA's settings; a batch is one optimizer step."""

    name: ClassVar[str] = "impala"
    capabilities: ClassVar[Capabilities] = Capabilities(STOCHASTIC_ACTIONS, "off-policy", EstimatedBatch, critic=True)

    batch_agent_steps: Steps = 500  #: minimum agent steps in a batch
    queue_fragments: Count = 4  #: fragments that may wait for the learner; beyond that, the oldest are dropped
    trace_lambda: OrSchedule[Share] = 1.0  #: reach of the corrections along a segment: 0 is one-step, 1 is V-trace
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
        learned = self.with_stages("before_learning", estimated, learner).then(Learn(), at=learner)
        reports = self.with_stages("after_update", learned, learner).then(Publish(), at=learner)
        return Plan("impala", output=reports)
