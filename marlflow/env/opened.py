"""State that the AEC and Parallel adapters share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium import spaces

from marlflow.base.batch import Array
from marlflow.env.global_state import GlobalState
from marlflow.env.place import Place
from marlflow.env.roster import Roster
from marlflow.env.turn import Turn


class Opened:
    """An open environment with its agents, spaces and episode location."""

    def __init__(self, env: Any, place: Place) -> None:
        self._env, self._place = env, place
        self._roster = Roster(env, place)
        self._state = GlobalState(env, place)
        self._turn = Turn()
        self._appeared: set[int] = set()
        self._any_masked = False
        self.vanished = 0

    @property
    def agents(self) -> Sequence[str]:
        return self._roster.agents

    @property
    def declared(self) -> bool:
        return self._roster.declared

    @property
    def has_tasks(self) -> bool:
        return bool((getattr(self._env, "metadata", None) or {}).get("tasks", False))

    @property
    def env_steps(self) -> int:
        return self._place.env_steps

    def seat(self, agents: Sequence[str]) -> None:
        if list(agents) == self._roster.agents:
            return
        try:
            self._roster.seat(agents)
        except Exception as error:
            raise self._place.raised(error, "observation_space() or action_space()") from error

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._roster.observation_spaces[self._roster.slot(agent)]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._roster.action_spaces[self._roster.slot(agent)]

    def masked(self, agent: str) -> bool:
        return self._roster.masked[self._roster.slot(agent)]

    def state_space(self) -> spaces.Box | None:
        return self._state.space

    def state(self) -> Array:
        return self._state.read()

    def appeared(self) -> set[int]:
        return self._appeared

    def where(self, agent: str | None = None) -> str:
        return self._place.words(agent)

    def name(self) -> str:
        return f"copy {self._place.copy}"

    def close(self) -> None:
        try:
            self._env.close()
        except Exception as error:
            raise self._place.raised(error, "close()") from error


def options_for(task: int | None) -> dict[str, Any]:
    """Return what `reset` gets besides the seed."""
    # Not every environment's reset accepts `options`.
    return {} if task is None else {"options": {"task": task}}
