"""IMPALA (Espeholt et al., 2018, arXiv:1802.01561).

Workers act while the learner learns, and neither waits for the other: what the learner has no time for is dropped, the
oldest first, and V-trace corrects what it has learned since the rest was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from marlflow.algorithms.a2c import ActorCriticSettings
from marlflow.algorithms.algorithm import Capabilities
from marlflow.base.batch import EstimatedBatch
from marlflow.base.items import Fragment
from marlflow.base.schedules import Setting, at_start
from marlflow.flow import Flow, Plan
from marlflow.learn.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Learn, Publish, VTrace


@dataclass(frozen=True)
class IMPALA(ActorCriticSettings):
    """IMPALA's settings. Sizes are in agent steps of the policy; one batch is one optimiser step."""

    name: ClassVar[str] = "impala"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "Box"), "off-policy", EstimatedBatch)

    batch_agent_steps: int = 500
    waiting_fragments: int = 4
    trace_lambda: Setting = 1.0
    rho_max: Setting = 1.0
    c_max: Setting = 1.0

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay] = ()) -> Plan:
        """From experience to weights."""
        trace = map(at_start, (self.discount, self.trace_lambda, self.rho_max, self.c_max))
        reports = (
            experience.queue(self.waiting_fragments, full="drop_oldest", name="newest")
            .gather(Concat(agent_steps=self.batch_agent_steps))
            .then(VTrace(*trace), at=learner)
            .then(Learn(), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("impala", output=reports)
