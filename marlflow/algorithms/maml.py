"""Model-Agnostic Meta-Learning, MAML (Finn, Abbeel and Levine, 2017, arXiv:1703.03400), algorithm 3.

Each environment has its own task, set by `reset(seed, options={"task": n})`. Rollout workers sample with the published
parameters, adapt them by policy-gradient steps, and sample again; the learner differentiates through these steps. The
meta-gradient is equation 4, by autograd, with the low-variance curvature of Rothfuss et al. (2019, arXiv:1810.06784)
and PPO's clipping; the first samples get no credit for the second ones. Evaluation does not adapt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn

from marlflow.algorithms.algorithm import Capabilities, LearningAlgorithm
from marlflow.base.ranges import CountOrZero, Discount, LearningRate, Range, Share, SmallCount, Steps, Threshold
from marlflow.base.schedules import OrSchedule, initial_value
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.flow.relocate import Where
from marlflow.learner.loss import LossTerms
from marlflow.learner.optimizer import Adam, Optimizer
from marlflow.learner.protocol import Learner
from marlflow.learner.task_batches import TaskBatch
from marlflow.losses.maml import likelihood_ratio_loss
from marlflow.losses.policy_gradient import approximate_kl, clipped_surrogate_loss
from marlflow.policy.adapted import AdaptedActor, FlatNetwork
from marlflow.policy.categorical import CategoricalActor
from marlflow.policy.torso import TorsoConfig, build_torso
from marlflow.replay.protocol import Replay
from marlflow.stages import Adapt, ByTask, Concat, DropStale, MetaLearn, Publish

Order: TypeAlias = Literal["first", "second"]


@dataclass(frozen=True)
class MAML(LearningAlgorithm):
    """MAML's settings. A collect is one iteration over the environments' tasks, in 1 + `inner_steps` equal phases."""

    name: ClassVar[str] = "maml"
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete",), "on-policy", TaskBatch, tasks=True)
    stages: ClassVar[Mapping[str, Where]] = {"Adapt": "worker"}

    batch_agent_steps: Steps = 1  #: minimum agent steps in a meta-update; 1: one per round of tasks
    inner_steps: Annotated[int, Range(1, 1_000)] = 1  #: gradient steps of adaptation, each after a phase of collecting
    inner_learning_rate: Annotated[float, Range(0.0, 10.0)] = 0.3  #: step size of the adaptation
    order: Order = "second"  #: second: gradients through the inner steps; first: first-order approximation
    epochs: SmallCount = 5  #: passes over each batch of tasks
    minibatch_tasks: SmallCount | None = None  #: tasks in one optimizer step; None: all
    learning_rate: OrSchedule[LearningRate] = 1e-3  #: step size of the meta-update
    discount: OrSchedule[Discount] = 0.99  #: discount factor per decision of an agent
    gae_lambda: OrSchedule[Share] = 0.97  #: generalized advantage estimation: 0 is one-step, 1 is the whole return
    clip_range: OrSchedule[Threshold] = 0.2  #: probability ratios are clipped to 1 - this and 1 + this
    max_grad_norm: OrSchedule[Threshold] = 0.5
    optimizer: Optimizer = Adam(eps=1e-5)
    max_staleness: CountOrZero = 0

    @property
    def learner_sees_every_row(self) -> bool:
        # The rows go through adapted copies of its network.
        return False

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        reports = (
            experience.gather(Concat(agent_steps=self.batch_agent_steps))
            .then(DropStale(self.max_staleness), at=learner)
            .then(Adapt(initial_value(self.discount), initial_value(self.gae_lambda)), at=learner)
            .then(ByTask(self.inner_steps), at=learner)
            .then(MetaLearn(self.epochs, self.minibatch_tasks), at=learner)
            .then(Publish(), at=learner)
        )
        return Plan("maml", output=reports, waits_for_rounds=True)

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> AdaptedActor:
        # Workers need no second derivatives: these are taken in the loss.
        step = InnerStep(self.inner_learning_rate, "first")
        return AdaptedActor(_network(spaces, model, seed), self.inner_steps, step)

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> MetaActor:
        return MetaActor(_network(spaces, model, seed))

    def losses(self, spaces: Spaces) -> MetaLoss:
        return MetaLoss(InnerStep(self.inner_learning_rate, self.order), initial_value(self.clip_range))


@dataclass(frozen=True, slots=True)
class InnerStep:
    """One policy gradient step (equation 1), used both to act and in the meta-loss.

    With `order` "second" the step is differentiable; with "first", its gradient counts as a constant.
    """

    learning_rate: float
    order: Order

    def __call__(self, network: FlatNetwork, parameters: Tensor, rows: Mapping[str, Tensor]) -> Tensor:
        """Return the parameters [T, P] of T tasks after one step, each on its own part of `rows` [T, N, ...].

        `rows` has `obs`, `action`, `behavior_logp`, `advantage`, `action_mask` if there is one, and `weight`, with
        which each task's losses are summed.
        """
        logp = network.log_prob(parameters, rows)
        by_row = likelihood_ratio_loss(logp, rows["behavior_logp"], rows["advantage"]) * rows["weight"]
        # One backward pass for all tasks, because no task's loss depends on another's parameters.
        (gradient,) = torch.autograd.grad(by_row.sum(), parameters, create_graph=self.order == "second")
        return parameters - self.learning_rate * (network.learns * gradient)


def _network(spaces: Spaces, model: TorsoConfig, seed: int) -> CategoricalActor:
    generator = torch.Generator().manual_seed(seed)
    body, features = build_torso(spaces, model, generator)
    return CategoricalActor(body, features, spaces.num_actions, generator)


class MetaActor(nn.Module):
    """The initial `actor` of all tasks."""

    def __init__(self, actor: CategoricalActor) -> None:
        super().__init__()
        self.actor = actor


class MetaLoss:
    """The clipped surrogate loss of adapted policies, differentiated through their inner steps."""

    def __init__(self, inner_step: InnerStep, clip_range: float) -> None:
        self._inner_step, self._clip_range = inner_step, clip_range

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self._clip_range = values.get("clip_range", self._clip_range)

    def __call__(self, module: MetaActor, target_module: None, minibatch: Mapping[str, Tensor]) -> LossTerms:
        network = FlatNetwork(module.actor)
        tasks, phases = minibatch["weight"].shape[:2]
        # All phases but the last adapt; the last evaluates.
        *before, last = [{name: column[:, at] for name, column in minibatch.items()} for at in range(phases)]
        # One row of parameters per task: tasks adapt independently.
        parameters = network.parameters().expand(tasks, -1)
        for phase in before:
            parameters = self._inner_step(network, parameters, phase)
        logp, behavior_logp = network.log_prob(parameters, last), last["behavior_logp"]
        policy = clipped_surrogate_loss(logp, behavior_logp, last["advantage"], self._clip_range)
        kl = approximate_kl(logp.detach(), behavior_logp)
        total = (policy * last["weight"]).sum(1).mean()
        return LossTerms(total, {"policy": total.detach(), "kl": (kl * last["weight"]).sum(1).mean()})
