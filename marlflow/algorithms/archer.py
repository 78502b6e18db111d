"""ArCHer: actor-critic with a hierarchy of utterances and tokens (Zhou et al., 2024, arXiv:2402.19446).

Critics learn the values of whole utterances from a replay buffer; the actor learns each token on-policy, by the
advantage of its utterance. Both are one learner, at two rates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm, Member
from marlflow.algorithms.archer_loss import TokenActorLoss, TokenBaselineLoss, UtteranceCriticsLoss
from marlflow.base.errors import Problem
from marlflow.base.ranges import (
    ActorLearningRate,
    CountOrZero,
    Discount,
    LearningRate,
    Range,
    SmallCount,
    SomeShare,
    Steps,
    StepsOrZero,
    Threshold,
    Weight,
)
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import EstimatedBatch, Transitions
from marlflow.batches.items import Fragment
from marlflow.batches.utterances import utterance_layout, utterance_problems
from marlflow.flow import Flow, InTurn, Plan, source
from marlflow.learner.loss_groups import LossGroup
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.policy.actor import Actor
from marlflow.policy.torso import TorsoConfig, normalizes
from marlflow.policy.utterance import UtteranceNetwork, token_actor
from marlflow.replay.protocol import Replay
from marlflow.replay.utterances import UtteranceReplay
from marlflow.stages import (
    Concat,
    Draw,
    DropStale,
    Insert,
    Learn,
    NStep,
    Publish,
    SyncTarget,
    UtteranceAdvantage,
    Utterances,
)


@dataclass(frozen=True)
class ArCHer(LearningAlgorithm):
    """ArCHer's settings; an update is one optimizer step, of the critics or of the actor and its baseline."""

    name: ClassVar[str] = "archer"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",),
        "on-policy",
        EstimatedBatch,
        loss_groups={"actor": EstimatedBatch, "baseline": EstimatedBatch, "critics": Transitions},
        replay=True,
    )
    has_target: ClassVar[bool] = True
    # Its stages check that observations continue utterances.
    plan_needs_environment: ClassVar[bool] = True

    #: minimum agent steps (tokens) in a batch; critics learn, then the actor from the batch
    batch_agent_steps: Steps = 250
    minibatch_agent_steps: Steps = 250  #: minimum agent steps in a minibatch of the actor
    actor_epochs: SmallCount = 1  #: passes of the actor over each batch
    critic_updates: Steps = 15  #: updates of the critics for each batch, before the actor's
    batch_utterances: Steps = 128  #: utterances drawn from the replay for an update of the critics
    replay_utterances: Steps = 50_000  #: utterances that the replay holds
    warm_up_updates: StepsOrZero = 500  #: updates of the critics before the actor's first one
    #: action that ends an utterance; None: all utterances are full
    end_token: Annotated[int, Range(0, 2**31 - 1)] | None = None
    #: step size of the optimizers of critics and baseline; below the actor's, they lag behind it
    learning_rate: OrSchedule[LearningRate] = 3e-3
    actor_learning_rate: OrSchedule[ActorLearningRate] = 2e-3  #: step size of the actor's optimizer
    discount: Discount = 0.95  #: discount factor per utterance
    token_baseline: bool = True  #: whether a token's expected advantage is subtracted from its advantage
    entropy_coefficient: OrSchedule[Weight] = 0.01  #: weight of the entropy bonus
    tau: OrSchedule[SomeShare] = 0.05  #: share of the trained critics in each update of the target critics
    #: maximum gradient norm of each network; larger gradients are scaled down
    max_grad_norm: OrSchedule[Threshold] = 10.0
    optimizer: Optimizer = Adam()
    max_staleness: CountOrZero = 0

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        to_store, to_actor = experience.gather(Concat(agent_steps=self.batch_agent_steps)).fork(2, capacity=1)
        store = (
            to_store.then(Utterances(), at=replay).then(NStep(1, self.discount), at=replay).then(Insert(), at=replay)
        )
        critics = (
            source(Draw(self.batch_utterances), at=replay)
            .then(Learn(groups=("critics",)), at=learner, name="Learn critics")
            .then(SyncTarget(every=1, tau=initial_value(self.tau)), at=learner)
        )
        trained = ("actor", "baseline") if self.token_baseline else ("actor",)
        learn = Learn(self.actor_epochs, self.minibatch_agent_steps, trained)
        actor = (
            to_actor.then(DropStale(self.max_staleness), at=learner)
            .then(UtteranceAdvantage(self.warm_up_updates), at=learner)
            .then(learn, at=learner, name="Learn actor")
            .then(Publish(), at=learner)
        )
        pace = InTurn(store=1, critics=self.critic_updates, output=1)
        return Plan("archer", output=actor, also={"store": store, "critics": critics}, pace=pace, waits_for_rounds=True)

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        problems += [Problem(text, self.name) for text in utterance_problems(spaces, self.end_token)]
        if normalizes(model):
            reason = "its critics see utterances that no observation has"
            problems.append(Problem("cannot do normalize_observations", self.name, reason, "leave it off"))
        return problems

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> UtteranceNetwork:
        return UtteranceNetwork(spaces, model, self.end_token, self.token_baseline, seed)

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        return token_actor(spaces, model, torch.Generator().manual_seed(seed))

    def losses(self, spaces: Spaces) -> Sequence[LossGroup]:
        length, rate = utterance_layout(spaces, self.end_token).length, initial_value(self.actor_learning_rate)
        entropy = initial_value(self.entropy_coefficient)
        # In this order: the actor's loss uses the baseline before its step.
        groups = [
            LossGroup("actor", lambda module: module.actor.parameters(), TokenActorLoss(entropy), rate),
            LossGroup("baseline", lambda module: module.baseline.parameters(), TokenBaselineLoss()),
            LossGroup("critics", lambda module: module.critics.parameters(), UtteranceCriticsLoss(length)),
        ]
        return groups if self.token_baseline else [groups[0], groups[2]]

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> UtteranceReplay:
        (member,) = members.values()
        layout = utterance_layout(member.spaces, self.end_token)
        return UtteranceReplay(layout, self.replay_utterances, self.discount, seed, name)
