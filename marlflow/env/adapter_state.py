"""State shared by the AEC and Parallel adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.adapter import StepResult
from marlflow.env.agent_slots import AgentSlots
from marlflow.env.episode_location import EpisodeLocation
from marlflow.env.global_state import GlobalState
from marlflow.env.wrappers.shield import correcting_wrappers


class AdapterState:
    """An open environment with its agents, spaces and episode location."""

    parallel = False
    info_keys: Sequence[str] = ()

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location
        self._agent_slots = AgentSlots(env, location)
        self._state = GlobalState(env, location)
        self._result = StepResult()
        self._appeared: set[int] = set()
        self._any_masked = False
        self.vanished = 0
        self._correcting = correcting_wrappers(env)
        # Wrappers may have played before, to find the scale of rewards.
        self._corrected_before = sum(wrapper.actions_corrected for wrapper in self._correcting)

    @property
    def agents(self) -> Sequence[str]:
        return self._agent_slots.agents

    @property
    def declared(self) -> bool:
        return self._agent_slots.declared

    @property
    def has_tasks(self) -> bool:
        return bool((getattr(self._env, "metadata", None) or {}).get("tasks", False))

    @property
    def reproducible(self) -> bool:
        return bool((getattr(self._env, "metadata", None) or {}).get("reproducible", True))

    @property
    def actions_corrected(self) -> int:
        return sum(wrapper.actions_corrected for wrapper in self._correcting) - self._corrected_before

    @property
    def env_steps(self) -> int:
        return self._location.env_steps

    def seat(self, agents: Sequence[str]) -> None:
        if list(agents) == self._agent_slots.agents:
            return
        try:
            self._agent_slots.seat(agents)
        except Exception as error:
            raise self._location.raised(error, "observation_space() or action_space()") from error

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._agent_slots.observation_spaces[self._agent_slots.slot(agent)]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._agent_slots.action_spaces[self._agent_slots.slot(agent)]

    def masked(self, agent: str) -> bool:
        return self._agent_slots.masked[self._agent_slots.slot(agent)]

    def state_space(self) -> spaces.Box | None:
        return self._state.space

    def state(self) -> Array:
        return self._state.read()

    def appeared(self) -> set[int]:
        return self._appeared

    def where(self, agent: str | None = None) -> str:
        return self._location.words(agent)

    def name(self) -> str:
        return f"env {self._location.env}"

    def close(self) -> None:
        try:
            self._env.close()
        except Exception as error:
            raise self._location.raised(error, "close()") from error


def options_for(task: int | None) -> dict[str, Any]:
    """Return the `reset` arguments besides the seed."""
    # Not every environment's reset accepts `options`.
    return {} if task is None else {"options": {"task": task}}
