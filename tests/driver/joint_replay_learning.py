"""A team that learns from a replay of joint rows, by the least that a mixer needs: the sum of its members' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import marlflow as mf
from marlflow.algorithms.algorithm import Capabilities, Member
from marlflow.algorithms.off_policy import JointOffPolicyAlgorithm
from marlflow.base.items import Fragment
from marlflow.base.joint_segments import TeamReward
from marlflow.base.joint_transitions import JointTransitions
from marlflow.base.schedules import ScheduledFloat
from marlflow.flow import AgentSteps, Flow, InTurn, Plan, source
from marlflow.learner.loss import LossTerms
from marlflow.learner.protocol import Learner
from marlflow.policy.q import QNetwork
from marlflow.replay import Prioritized, Uniform
from marlflow.replay.protocol import Replay
from marlflow.stages import Concat, Draw, Insert, JoinSegments, Learn, NStep, Publish, Reprioritize, SyncTarget


class SumNetwork(nn.Module):
    """An actor of action values for each policy."""

    def __init__(self, members: Mapping[str, Member], seed: int) -> None:
        super().__init__()
        networks = {
            name: QNetwork(one.spaces, one.model, dueling=False, seed=seed + number)
            for number, (name, one) in enumerate(members.items())
        }
        self.actors = nn.ModuleDict({name: network.actor for name, network in networks.items()})


class SumLoss:
    """Half the squared n-step error of the sum of the present members' values."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = members

    def set_schedule(self, values: Mapping[str, float]) -> None:
        pass

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> LossTerms:
        taken, following = torch.zeros(()), torch.zeros(())
        for name in self.members:
            shape = minibatch[f"{name}:present"].shape
            values = module.actors[name](minibatch[f"{name}:obs"].flatten(0, 1))
            chosen = values.gather(1, minibatch[f"{name}:action"].reshape(-1, 1)).view(shape)
            taken = taken + (chosen * minibatch[f"{name}:present"]).sum(1)
            with torch.no_grad():
                best = target_module.actors[name](minibatch[f"{name}:next_obs"].flatten(0, 1)).max(1).values.view(shape)
            following = following + (best * minibatch[f"{name}:next_present"]).sum(1)
        error = minibatch["reward"] + minibatch["discount"] * following - taken
        loss = (minibatch["weight"] * error**2).mean() / 2
        return LossTerms(loss, {"td": loss.detach()}, priorities=error.detach().abs())


@dataclass(frozen=True)
class Sum(JointOffPolicyAlgorithm):
    """Value decomposition with a replay of joint rows."""

    name: ClassVar[str] = "sum"
    capabilities: ClassVar[Capabilities] = Capabilities(
        ("Discrete",), "off-policy", JointTransitions, replay=True, joint=True
    )

    batch_agent_steps: int = 16
    train_every_agent_steps: int = 8
    learning_starts_agent_steps: int = 40
    replay_agent_steps: int = 1_000
    learning_rate: ScheduledFloat = 1e-3
    discount: float = 0.9
    n_step: int = 2
    team_reward: TeamReward = "sum"
    prioritized: bool = False
    epsilon: ScheduledFloat = 0.5

    def network(self, members: Mapping[str, Member], seed: int) -> SumNetwork:
        return SumNetwork(members, seed)

    def losses(self, members: Mapping[str, Member]) -> SumLoss:
        return SumLoss(tuple(members))

    def sampling(self) -> Uniform | Prioritized:
        return Prioritized() if self.prioritized else Uniform()

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        (replay,) = replays
        store = (
            experience.gather(Concat(agent_steps=1))
            .then(JoinSegments(learner.seats, self.team_reward), at=replay)
            .then(NStep(self.n_step, self.discount), at=replay)
            .then(Insert(), at=replay)
        )
        train = (
            source(Draw(self.batch_agent_steps, gives=JointTransitions), at=replay)
            .then(Learn(), at=learner)
            .then(SyncTarget(every=10, tau=1.0), at=learner)
            .then(Publish(every=2), at=learner)
            .then(Reprioritize(), at=replay)
        )
        ratio = InTurn(store=AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return Plan("sum", output=train, also={"store": store}, pace=ratio)


def sum_run(env_steps: int = 240, runtime: Literal["inline", "ray"] = "inline", **changes: Any) -> mf.Experiment:
    """Speaker and listener learn the sum of their values together, beside a walker that learns alone."""
    from tests.driver.joint_learning import team_run

    return team_run(
        env_steps, runtime, **{"learners": {"pair": mf.LearnerConfig(["speaker", "listener"], Sum())}, **changes}
    )
