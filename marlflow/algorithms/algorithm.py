"""What an algorithm is: a config that knows which spaces it fits, what it learns with, and its plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from marlflow.base.items import Fragment
from marlflow.base.spaces import Spaces
from marlflow.flow import Flow, Plan
from marlflow.learn.compute import Compute
from marlflow.learn.learner import TorchLearner
from marlflow.learn.protocol import Learner
from marlflow.policy.actor import Actor
from marlflow.policy.torso import TorsoConfig
from marlflow.replay.buffer import ReplayBuffer
from marlflow.replay.protocol import Replay


@runtime_checkable
class Algorithm(Protocol):
    """The settings of an algorithm, and how its parts are made from them.

    A class of a user's own is as good as one of marlflow's: the configuration's `_target_` names it.
    """

    name: ClassVar[str]
    learns: ClassVar[bool]
    """False for policies that only act: no learner, no plan, no rows."""
    remembers: ClassVar[bool]
    """Whether it has a replay."""
    trains_on: ClassVar[type]
    """The type of item its loss is for, which `Learn` then asks of the stage before it."""
    needs_state: ClassVar[bool]
    """Whether its rows are to have the column `state`, the environment's global state."""

    def problems(self, spaces: Spaces) -> list[str]:
        """Why it cannot be used in these spaces, or with these settings; empty if it can."""
        ...

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """What acts on the workers."""
        ...

    def learner(self, name: str, spaces: Spaces, model: TorsoConfig, seed: int, compute: Compute) -> TorchLearner:
        """What learns; called where the learner lives."""
        ...

    def replay(self, name: str, seed: int) -> ReplayBuffer:
        """What remembers, if it does; called where the replay lives."""
        ...

    def plan(self, experience: Flow[Fragment], learner: Learner, replay: Replay | None) -> Plan:
        """The dataflow from experience to weights."""
        ...

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        """What its actors are set to after `agent_steps` of the policy's own were sampled, sent with each collect."""
        ...


def describe_space(space: Any) -> str:
    """A space in a word or two, as errors show it: `Discrete(5)`, `Box(2,)`."""
    shape = getattr(space, "shape", None)
    return f"Box{shape}" if type(space).__name__ == "Box" else str(space)
