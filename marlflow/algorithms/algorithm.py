"""What an algorithm is: a config that knows what it can be used for, what it learns with, and its plan."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import NoneType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, runtime_checkable

from gymnasium import spaces as gym

from marlflow.base.items import Fragment
from marlflow.base.schedules import Schedule, Setting, at_start, scheduled
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.flow.relocate import Where
from marlflow.learn.compute import Compute
from marlflow.learn.groups import LossGroup
from marlflow.learn.learner import LearnsOn, TorchLearner
from marlflow.learn.loss import LossFunction
from marlflow.learn.optimizer import Adam, Optimizer
from marlflow.learn.protocol import Learner
from marlflow.policy.actor import Actor
from marlflow.policy.recurrent import RecurrentTorsoConfig
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import StoredReplay
from marlflow.replay.protocol import Replay


@dataclass(frozen=True, slots=True)
class Member:
    """One of the policies that a learner trains: what its agents see and do, and the model of its network."""

    spaces: Spaces
    model: TorsoConfig


Experience: TypeAlias = Literal["on-policy", "off-policy", "offline", "none"]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What an algorithm can be used for, and what it needs.

    `actions` are the names of gymnasium's spaces that it acts in. `experience` says whose rows it learns from: its own
    of just now, its own of any age, anybody's from a record, or none. `trains_on` is the type of item that its loss is
    for; NoneType: it does not learn. `replay`: it has one. `state`: its rows have the column `state`, the environment's
    global state. `tasks`: it needs an environment that is a family of tasks. `memory` says whether it takes recurrent
    models: then it takes no others. `learns_on`: in a process of the learner's own, or in each of the rollout workers,
    which have a replica each (see learn.replicas). `joint`: one learner trains several policies, on joint rows of all.
    """

    actions: tuple[str, ...]
    experience: Experience
    trains_on: type = NoneType
    replay: bool = False
    state: bool = False
    tasks: bool = False
    memory: Literal["refused", "needed"] = "refused"
    learns_on: LearnsOn = "learner"
    joint: bool = False

    @property
    def learns(self) -> bool:
        """False for policies that only act: no learner, no plan, no rows."""
        return self.trains_on is not NoneType


@runtime_checkable
class Algorithm(Protocol):
    """The settings of an algorithm, and how its parts are made from them.

    A class of a user's own is as good as one of marlflow's: the configuration's `_target_` names it. One that learns
    best derives from LearningAlgorithm, or where it trains several policies at once from JointAlgorithm: these have all
    of this but `plan`, and make the learner and the actor from a network and losses.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    stages: ClassVar[Mapping[str, Where]]
    """Where stages of its plan run, by name, that are to run elsewhere than the plan has them, if nobody says more."""

    only_for_actors: ClassVar[frozenset[str]]
    """The settings that may be scheduled, and that neither learner nor replay knows."""

    @property
    def replay_shards(self) -> int:
        """How many replays share what it remembers."""
        ...

    def problems(self, spaces: Spaces, model: TorsoConfig) -> list[str]:
        """Why a policy of these spaces and this model cannot use it, with these settings; empty if it can."""
        ...

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """What acts for a policy on the workers."""
        ...

    def learner(self, name: str, members: Mapping[str, Member], seed: int, compute: Compute) -> TorchLearner:
        """What learns: the learner `name` of the policies `members`, one unless `capabilities.joint`.

        It is called where the learner lives.
        """
        ...

    def replay(self, name: str, seed: int) -> StoredReplay[Any]:
        """What remembers, or one shard of it; called where the replay lives."""
        ...

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        """The dataflow from experience to weights; there are as many `replays` as `replay_shards`."""
        ...

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """The settings that change, by name, after so many agent steps of the learner's policies were sampled.

        Actor, learner and replays are told before each round; each takes those that it knows.
        """
        ...


class TorchAlgorithm:
    """What LearningAlgorithm and JointAlgorithm have in common: settings, their checks, and how a learner is made.

    The learner is made of the network and the losses with the fields `learning_rate`, `max_grad_norm` and `optimiser`,
    of which only the first is required. An algorithm with a replay also gives `replay`.

    Which numbers its fields may have, experiment.ranges says by their names. A field of whole numbers whose name is not
    there has to be at least 1, those `from_0` at least 0.
    """

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    has_target: ClassVar[bool] = False
    """Whether the learner keeps a frozen copy of the network for the losses, which SyncTarget renews."""

    learning_rate: Setting
    max_grad_norm: Setting = float("inf")
    optimiser: Optimizer = Adam()

    stages: ClassVar[Mapping[str, Where]] = {}
    only_for_actors: ClassVar[frozenset[str]] = frozenset({"epsilon", "exploration_noise"})
    from_0: ClassVar[frozenset[str]] = frozenset()

    @property
    def replay_shards(self) -> int:
        """One replay, if it has any."""
        return int(self.capabilities.replay)

    def problems(self, spaces: Spaces, model: TorsoConfig) -> list[str]:
        """Actions that it cannot choose, settings that do not go together, a model that it cannot use."""
        found = [*action_problems(self.name, self.capabilities, spaces), *self._setting_problems()]
        found += self._minibatch_problems()
        return [*found, *memory_problems(self.name, self.capabilities, model), *self._normalising_problems(model)]

    def _network_and_losses(
        self, members: Mapping[str, Member], seed: int
    ) -> tuple[Any, LossFunction | Sequence[LossGroup]]:
        raise NotImplementedError

    def learner(self, name: str, members: Mapping[str, Member], seed: int, compute: Compute) -> TorchLearner:
        """A new learner of the network by the losses."""
        network, losses = self._network_and_losses(members, seed)
        return TorchLearner(
            name,
            network,
            losses,
            policies=tuple(members),
            trains_on=self.capabilities.trains_on,
            learning_rate=at_start(self.learning_rate),
            max_grad_norm=at_start(self.max_grad_norm),
            optimizer=self.optimiser,
            seed=seed,
            compute=compute,
            target=self.has_target,
            learns_on=self.capabilities.learns_on,
        )

    def replay(self, name: str, seed: int) -> StoredReplay[Any]:
        """There is none."""
        raise TypeError(f"{self.name} has no replay")

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Every field that is a schedule, by its name."""
        return scheduled(self, agent_steps)

    @property
    def sees_all_rows(self) -> bool:
        """Whether its learner is shown every row that it learns from, which running moments need."""
        return True

    def _normalising_problems(self, model: TorsoConfig) -> Iterator[str]:
        asked = {"normalise_observations": model, "normalise_returns": self}
        for setting, where in asked.items():
            if getattr(where, setting, False) and not self.sees_all_rows:
                yield f"{self.name} cannot do {setting}: its learner does not see all rows; leave it off, or use ppo"

    def _setting_problems(self) -> Iterator[str]:
        for field in fields(self):  # type: ignore[arg-type]  # whoever derives from this is a dataclass
            value = getattr(self, field.name)
            if isinstance(value, Schedule) and not re.search(r"\b(Setting|Schedule)\b", str(field.type)):
                yield f"{self.name} cannot change {field.name} while it learns; give it a number"

    def _minibatch_problems(self) -> Iterator[str]:
        batch, minibatch = (getattr(self, f"{kind}_agent_steps", 0) for kind in ("batch", "minibatch"))
        if 1 <= batch < minibatch:
            yield (
                f"{self.name} cannot cut batches of {batch} agent steps into minibatches of {minibatch}; lower "
                "minibatch_agent_steps"
            )


class LearningAlgorithm(TorchAlgorithm):
    """Base of algorithms for one policy: a frozen dataclass derives from it and gives `network`, `losses` and `plan`.

    Its fields `learning_rate`, `max_grad_norm` and `optimiser`, of which only the first is required, are the
    learner's. An algorithm with a replay also gives `replay`.
    """

    def network(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Any:
        """A new torch module with an `actor`, whose parameters are published, and a `critic` if stages ask for values.

        `critic` gives the values [N] of observations [N, ...], after memories [N, ...] if the model is recurrent.
        """
        raise NotImplementedError(f"{type(self).__name__} has no network(spaces, model, seed)")

    def losses(self, spaces: Spaces) -> LossFunction | Sequence[LossGroup]:
        """A new loss of all parameters of the network, or several losses, each of a group of parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no losses(spaces)")

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """The actor of a new network."""
        actor: Actor = self.network(spaces, model, seed).actor
        return actor

    def _network_and_losses(
        self, members: Mapping[str, Member], seed: int
    ) -> tuple[Any, LossFunction | Sequence[LossGroup]]:
        (member,) = members.values()
        return self.network(member.spaces, member.model, seed), self.losses(member.spaces)


class JointAlgorithm(TorchAlgorithm):
    """Base of algorithms that train several policies at once, on joint rows of all: give `network`, `losses`, `plan`.

    Its capabilities have `joint=True` and `trains_on=JointBatch`. Its fields `learning_rate`, `max_grad_norm` and
    `optimiser`, of which only the first is required, are the learner's. `experience` of its plan is the joint stream: a
    `Concat` gathers it, and a `Join` at the learner makes the joint rows.
    """

    def network(self, members: Mapping[str, Member], seed: int) -> Any:
        """A new torch module with `actors`: the actor of each policy, with parameters of its own, which are published.

        `members` are the policies of the learner, in order.
        """
        raise NotImplementedError(f"{type(self).__name__} has no network(members, seed)")

    def losses(self, members: Mapping[str, Member]) -> LossFunction | Sequence[LossGroup]:
        """A new loss of all parameters of the network, or several losses, each of a group of parameters."""
        raise NotImplementedError(f"{type(self).__name__} has no losses(members)")

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """The actor of one policy in a new network of that policy alone: its shape must not depend on the others."""
        actor: Actor = self.network({"policy": Member(spaces, model)}, seed).actors["policy"]
        return actor

    def _network_and_losses(
        self, members: Mapping[str, Member], seed: int
    ) -> tuple[Any, LossFunction | Sequence[LossGroup]]:
        return self.network(members, seed), self.losses(members)


def action_problems(name: str, capabilities: Capabilities, spaces: Spaces) -> Iterator[str]:
    """Why an algorithm cannot act in a space."""
    action, *others = spaces.action, *capabilities.actions
    wanted = " or ".join([*filter(None, [", ".join(others[:-1])]), others[-1]])
    if type(action).__name__ not in capabilities.actions:
        yield f"{name} cannot act in {describe_space(action)}; it needs {wanted} actions"
    elif isinstance(action, gym.Box) and action.dtype.kind != "f" and capabilities.learns:
        yield (
            f"{name} cannot act in {describe_space(action)}; it needs {wanted} actions, and a Box of floats, not of "
            f"{action.dtype}"
        )


def memory_problems(name: str, capabilities: Capabilities, model: TorsoConfig) -> Iterator[str]:
    """Why an algorithm cannot learn with a model: it stores no memory, or has nothing to do without."""
    remembers, kind = isinstance(model, RecurrentTorsoConfig), type(model).__name__
    if remembers and capabilities.memory == "refused":
        yield (
            f"{name} cannot learn with {kind}, which has memory: it does not look at rows in their order; use "
            f"recurrent_ppo or r2d2, or a model without memory, such as mlp"
        )
    if not remembers and capabilities.memory == "needed":
        yield f"{name} needs a model with memory, gru or lstm, not {kind}; or use ppo or dqn, which need none"


def describe_space(space: Any) -> str:
    """A space in a word or two, as errors show it: `Discrete(5)`, `Box(2,)`."""
    shape = getattr(space, "shape", None)
    return f"Box{shape}" if type(space).__name__ == "Box" else str(space)
