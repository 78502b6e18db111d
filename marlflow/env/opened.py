"""What the two windows share: who plays, what they see and do, and where the episode stands."""

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
    """An environment of either kind, with its roster and its place."""

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
        """All agents: the declared ones, or where none are declared those seen so far."""
        return self._roster.agents

    @property
    def declared(self) -> bool:
        """Whether the environment has `possible_agents`."""
        return self._roster.declared

    @property
    def has_tasks(self) -> bool:
        """Whether the environment says by `metadata["tasks"]` that its reset takes the number of a task."""
        return bool((getattr(self._env, "metadata", None) or {}).get("tasks", False))

    @property
    def env_steps(self) -> int:
        """Env steps (of an AEC environment: turns of living agents) in this episode."""
        return self._place.env_steps

    def seat(self, agents: Sequence[str]) -> None:
        """Gives `agents` the first slots, in their order; before a reset."""
        if list(agents) == self._roster.agents:
            return
        try:
            self._roster.seat(agents)
        except Exception as error:
            raise self._place.raised(error, "observation_space() or action_space()") from error

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """What `agent` observes, without the action mask."""
        return self._roster.observation_spaces[self._roster.slot(agent)]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """What `agent` does."""
        return self._roster.action_spaces[self._roster.slot(agent)]

    def masked(self, agent: str) -> bool:
        """Whether `agent` comes with an action mask."""
        return self._roster.masked[self._roster.slot(agent)]

    def state_space(self) -> spaces.Box | None:
        """What `state` lies in; None if the environment has no global state. The first look may call `env.state()`."""
        return self._state.space

    def state(self) -> Array:
        """The global state now, [*state_space.shape]; the environment may reuse the array."""
        return self._state.read()

    def appeared(self) -> set[int]:
        """The slots of the agents that took part in this episode so far."""
        return self._appeared

    def where(self, agent: str | None = None) -> str:
        """The present moment in words."""
        return self._place.words(agent)

    def name(self) -> str:
        """The copy in words."""
        return f"copy {self._place.copy}"

    def close(self) -> None:
        """Frees what the environment holds; raises EnvironmentFailed if it cannot."""
        try:
            self._env.close()
        except Exception as error:
            raise self._place.raised(error, "close()") from error


def options_for(task: int | None) -> dict[str, Any]:
    """What `reset` is given beside the seed: nothing where there are no tasks, for not every environment takes it."""
    return {} if task is None else {"options": {"task": task}}
