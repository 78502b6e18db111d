"""Teams that learn from a replay of joint rows, by the least that a mixer needs: the sum of their agents' values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

import marlflow as mf
from marlflow.batches.joint_segments import TeamReward
from marlflow.policy.recurrent import RecurrentQNetwork
from tests.driver.coming_and_going import ComingAndGoing
from tests.driver.joint_learning import SMALL, joint_run


class SumNetwork(nn.Module):
    """An actor of action values for each policy."""

    def __init__(self, members: Mapping[str, mf.Member], seed: int) -> None:
        super().__init__()
        networks = {
            name: mf.QNetwork(one.spaces, one.model, dueling=False, seed=seed + number)
            for number, (name, one) in enumerate(members.items())
        }
        self.actors = nn.ModuleDict({name: network.actor for name, network in networks.items()})


class SumLoss:
    """Half the squared n-step error of the sum of the present members' values."""

    def __init__(self, members: Sequence[str]) -> None:
        self.members = members

    def set_schedule(self, values: Mapping[str, float]) -> None:
        pass

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
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
        return mf.LossTerms(loss, {"td": loss.detach()}, priorities=error.detach().abs())


@dataclass(frozen=True)
class Sum(mf.JointOffPolicyAlgorithm):
    """Value decomposition with a replay of joint rows."""

    name: ClassVar[str] = "sum"
    capabilities: ClassVar[mf.Capabilities] = mf.Capabilities(
        ("Discrete",), "off-policy", mf.JointTransitions, replay=True, state=True, joint=True
    )

    batch_agent_steps: int = 16
    train_every_agent_steps: int = 8
    learning_starts_agent_steps: int = 40
    replay_agent_steps: int = 1_000
    learning_rate: mf.ScheduledFloat = 1e-3
    discount: float = 0.9
    n_step: int = 2
    team_reward: TeamReward = "sum"
    prioritized: bool = False
    epsilon: mf.ScheduledFloat = 0.5

    def network(self, members: Mapping[str, mf.Member], seed: int) -> SumNetwork:
        return SumNetwork(members, seed)

    def losses(self, members: Mapping[str, mf.Member]) -> SumLoss:
        return SumLoss(tuple(members))

    def sampling(self) -> mf.Uniform | mf.Prioritized:
        return mf.Prioritized() if self.prioritized else mf.Uniform()

    def plan(self, experience: mf.Flow[mf.Fragment], learner: mf.Learner, replays: Sequence[mf.Replay]) -> mf.Plan:
        (replay,) = replays
        store: mf.Flow[Any] = experience.gather(mf.Concat(agent_steps=1)).then(
            mf.JoinSegments(learner.seats, self.team_reward), at=replay
        )
        if learner.trains_on is mf.JointSequenceTransitions:
            store = store.then(mf.SplitSegments(self.sequence_agent_steps, self.burn_in_agent_steps), at=replay)
        store = store.then(mf.NStep(self.n_step, self.discount), at=replay).then(mf.Insert(), at=replay)
        train = (
            mf.source(mf.Draw(self.batch_agent_steps, gives=learner.trains_on), at=replay)
            .then(mf.Learn(), at=learner)
            .then(mf.SyncTarget(every=10, tau=1.0), at=learner)
            .then(mf.Publish(every=2), at=learner)
            .then(mf.Reprioritize(), at=replay)
        )
        ratio = mf.InTurn(store=mf.AgentSteps(self.train_every_agent_steps, self.learning_starts_agent_steps), output=1)
        return mf.Plan("sum", output=train, also={"store": store}, pace=ratio)


class RecurrentSumNetwork(nn.Module):
    """A recurrent network of action values for each policy."""

    def __init__(self, members: Mapping[str, mf.Member], seed: int) -> None:
        super().__init__()
        networks = {
            name: RecurrentQNetwork(one.spaces, one.model, False, seed + number)
            for number, (name, one) in enumerate(members.items())
        }
        self.actors = nn.ModuleDict({name: network.actor for name, network in networks.items()})
        self.networks = nn.ModuleDict(networks)


class RecurrentSumLoss(SumLoss):
    """The same on sequences: each policy is unrolled over all its seats at once."""

    def __init__(self, members: Sequence[str], burn_in: int) -> None:
        super().__init__(members)
        self.burn_in = burn_in

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        taken, following = torch.zeros(()), torch.zeros(())
        for name in self.members:
            present = minibatch[f"{name}:valid"][:, self.burn_in :]
            values = self._values(module, name, minibatch)[:, :-1]
            chosen = values.gather(3, minibatch[f"{name}:action"][..., None])[..., 0]
            taken = taken + (chosen * present[:, :-1]).sum(2)
            with torch.no_grad():
                best = self._values(target_module, name, minibatch).max(3).values * present
            after = minibatch["following"][:, :, None].expand(-1, -1, best.shape[2])
            following = following + best.gather(1, after).sum(2)
        trained = minibatch["trained"]
        error = (minibatch["reward"] + minibatch["discount"] * following - taken) * trained
        loss = (minibatch["weight"] * (error**2).sum(1) / trained.sum(1)).mean() / 2
        return mf.LossTerms(loss, {"td": loss.detach()}, error.detach().abs().amax(1))

    def _values(self, module: Any, name: str, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the values of all seats, [S, L + 1, K_p, A]."""
        obs, valid = minibatch[f"{name}:obs"], minibatch[f"{name}:valid"]
        seats = valid.shape[2]
        flat = [column.transpose(1, 2).flatten(0, 1) for column in (obs, valid)]
        memory = minibatch[f"{name}:memory"].flatten(0, 1)
        values: Tensor = module.networks[name](flat[0], memory, flat[1], self.burn_in)
        return values.unflatten(0, (-1, seats)).transpose(1, 2)


@dataclass(frozen=True)
class RecurrentSum(Sum):
    """Value decomposition of recurrent policies."""

    name: ClassVar[str] = "recurrent_sum"
    capabilities: ClassVar[mf.Capabilities] = replace(Sum.capabilities, memory="needed")

    batch_agent_steps: int = 80
    sequence_agent_steps: int = 4
    burn_in_agent_steps: int = 2

    def network(self, members: Mapping[str, mf.Member], seed: int) -> Any:
        return RecurrentSumNetwork(members, seed)

    def losses(self, members: Mapping[str, mf.Member]) -> SumLoss:
        return RecurrentSumLoss(tuple(members), self.burn_in_agent_steps)


def sum_run(env_steps: int = 240, runtime: Literal["inline", "ray"] = "inline", **changes: Any) -> mf.Experiment:
    """The agents of two groups, which come and go, learn the sum of their values."""
    settings: dict[str, Any] = {
        "policies": {"red": mf.Policy(model=SMALL), "blue": mf.Policy(model=mf.MLP((6,)))},
        "learners": {"both": mf.LearnerConfig(["red", "blue"], Sum())},
    }
    return joint_run(ComingAndGoing, env_steps, runtime, 80, settings | changes)
