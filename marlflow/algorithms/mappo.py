"""Multi-agent PPO, MAPPO (Yu et al., 2021, arXiv:2103.01955): PPO with a central critic.

The critic sees the global state, the agent's own observation and its id; values are normalized. Dead agents have no
rows, so nothing of them has to be masked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from marlflow.algorithms.part import Part
from marlflow.algorithms.pop_art import PopArt
from marlflow.algorithms.ppo import PPO
from marlflow.base.ranges import LearningRate, Steps
from marlflow.base.schedules import OrSchedule
from marlflow.batches.critic_input import CriticSees


@dataclass(frozen=True)
class MAPPO(PPO):
    """MAPPO's settings: PPO's, with defaults for teams."""

    name: ClassVar[str] = "mappo"

    minibatch_agent_steps: Steps = 2_000
    learning_rate: OrSchedule[LearningRate] = 5e-4
    critic_sees: Sequence[CriticSees] = ("state", "obs", "agent")
    parts: Mapping[str, Part | None] = field(default_factory=lambda: {"values": PopArt()}, kw_only=True, hash=False)
