"""Policies that do not learn: uniformly random ones, and a user's own function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import describe_space
from marlflow.base.items import Fragment
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.learn.compute import Compute
from marlflow.learn.learner import TorchLearner
from marlflow.learn.protocol import Learner
from marlflow.policy.actor import Actor
from marlflow.policy.scripted import CallableActor, RandomActor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay


class _ActsOnly:
    """What policies without a learner have in common: they ask for nothing."""

    name: ClassVar[str]
    learns: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    trains_on: ClassVar[type] = type(None)
    needs_state: ClassVar[bool] = False

    def problems(self, spaces: Spaces) -> list[str]:
        """It acts in whatever the `action` column can hold."""
        if isinstance(spaces.action, gym.Discrete | gym.MultiDiscrete | gym.MultiBinary | gym.Box):
            return []
        action = describe_space(spaces.action)
        return [f"{self.name} cannot act in {action}; it needs Discrete, MultiDiscrete, MultiBinary or Box actions"]

    def learner(self, name: str, spaces: Spaces, model: TorsoConfig, seed: int, compute: Compute) -> TorchLearner:
        """There is none."""
        raise TypeError(f"policy {name!r} does not learn")

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """There is none."""
        raise TypeError(f"policy {name!r} does not learn")

    def plan(self, experience: Flow[Fragment], learner: Learner, replay: Replay | None) -> Plan:
        """There is none."""
        raise TypeError("a policy that does not learn has no plan")

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """Nothing changes."""
        return {}


@dataclass(frozen=True)
class Random(_ActsOnly):
    """Uniform over the legal actions."""

    name: ClassVar[str] = "random"

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Draws from the space."""
        return RandomActor(spaces.action)


@dataclass(frozen=True)
class Scripted(_ActsOnly):
    """A function of the user's: `choose(obs, action_mask, generator)` returns an action for each row.

    `obs` is [N, ...], `action_mask` bool [N, A] or None, `generator` a RowRandom with one stream for each row.
    What is not one Box comes as vectors: `base.observations.layout(space).read(obs)` has their parts.
    """

    name: ClassVar[str] = "scripted"

    choose: Callable[..., Any]

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Asks the function."""
        return CallableActor(self.choose)
