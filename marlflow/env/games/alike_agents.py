"""Base of games whose agents all have the same spaces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from pettingzoo import ParallelEnv


class AlikeAgents(ParallelEnv[str, Any, Any]):
    """A game whose agents all have one observation space and, unless it is overridden, one action space."""

    # Conversions to AEC warn without it.
    render_mode = None

    def __init__(
        self, agents: Sequence[str], observations: spaces.Space[Any], actions: spaces.Space[Any] | None = None
    ) -> None:
        self.possible_agents = list(agents)
        self.agents: list[str] = []
        self._observation_space, self._action_space = observations, actions

    def observation_space(self, agent: str) -> Any:
        return self._observation_space

    def action_space(self, agent: str) -> Any:
        return self._action_space
