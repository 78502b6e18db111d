"""Policies that do not learn: uniformly random, or a user's function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from marlflow.algorithms.algorithm import Capabilities, Member, action_problems
from marlflow.base.errors import Problem
from marlflow.base.spaces import Spaces
from marlflow.batches.items import Fragment
from marlflow.flow import Flow, Plan
from marlflow.flow.relocate import Where
from marlflow.learner.compute import Compute
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Learner
from marlflow.policy.actor import Actor
from marlflow.policy.scripted import CallableActor, RandomActor, import_path
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay


class ActsOnly:
    """Base of algorithms that only act."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities] = Capabilities(("Discrete", "MultiDiscrete", "MultiBinary", "Box"), "none")
    stages: ClassVar[Mapping[str, Where]] = {}
    actor_only_settings: ClassVar[frozenset[str]] = frozenset()
    replay_shards: ClassVar[int] = 0

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        return list(action_problems(self.name, self.capabilities, spaces))

    def learner(self, name: str, members: Mapping[str, Member], seed: int, compute: Compute) -> TorchLearner:
        raise TypeError(f"policy {name!r} does not learn")

    def trains_on(self, members: Mapping[str, Member]) -> type:
        return self.capabilities.trains_on

    def replay(self, name: str, members: Mapping[str, Member], seed: int) -> ReplayBuffer:
        raise TypeError(f"policy {name!r} does not learn")

    def plan(self, experience: Flow[Fragment], learner: Learner, replays: Sequence[Replay]) -> Plan:
        raise TypeError("a policy that does not learn has no plan")

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        return {}


@dataclass(frozen=True)
class Random(ActsOnly):
    """Acts uniformly at random over the legal actions."""

    name: ClassVar[str] = "random"

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        return RandomActor(spaces.action)


@dataclass(frozen=True)
class Scripted(ActsOnly):
    """Acts by a user's function: `choose(obs, action_mask, generator)` returns an action per row.

    obs: [N, ...]. action_mask: bool [N, A] or None. generator: a RowRandom with one stream per row. Spaces other than a
    single Box come as flat vectors: `base.observations.layout(space).read(obs)` returns their parts.
    """

    name: ClassVar[str] = "scripted"

    choose: Callable[..., Any]  #: import path of choose(obs, action_mask, generator), which returns one action per row

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        try:
            inspect.signature(self.choose, follow_wrapped=False).bind(None, None, None)
        except TypeError:
            message = "calls choose(obs, action_mask, generator)"
            problems.append(Problem(f"{message}, which {import_path(self.choose)} does not take", self.name))
        except ValueError:
            pass  # A function in C may have no signature.
        return problems

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        return CallableActor(self.choose, spaces.action)
