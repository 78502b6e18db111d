"""State shared by the AEC and Parallel adapters, with `env.state()`, checked for a constant shape and dtype."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.arrays import Array
from marlflow.base.encoder import Encoder, ObservationOutside
from marlflow.base.errors import EnvironmentFailed
from marlflow.env.adapter import StepResult
from marlflow.env.agents import AgentSlots
from marlflow.env.episode_location import EpisodeLocation
from marlflow.env.wrappers.shield import ShieldParallel


class LocatedEnv:
    """An open environment, and the location of its episode."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location

    @property
    def reproducible(self) -> bool:
        return bool((getattr(self._env, "metadata", None) or {}).get("reproducible", True))

    @property
    def env_steps(self) -> int:
        return self._location.env_steps

    def where(self, agent: str | None = None) -> str:
        return self._location.words(agent)

    def name(self) -> str:
        return f"env {self._location.env}"

    def close(self) -> None:
        try:
            self._env.close()
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "close()") from error


class AdapterState(LocatedEnv):
    """An open environment with its agents, spaces and episode location."""

    parallel = False
    info_keys: Sequence[str] = ()

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        super().__init__(env, location)
        self._agent_slots = AgentSlots(env, location)
        self._state = GlobalState(env, location)
        self._result = StepResult()
        self._appeared: set[int] = set()
        self._any_masked = False
        self.vanished = 0
        self._correcting = [one for one in layers(env) if isinstance(one, ShieldParallel) and one.corrects]
        # Outer ones first.
        self._know_final_infos = [one for one in layers(env) if "final_infos" in vars(one)]
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
    def actions_corrected(self) -> int:
        return sum(wrapper.actions_corrected for wrapper in self._correcting) - self._corrected_before

    def final_infos(self) -> dict[str, Mapping[str, Any]]:
        """Return what is known at the end of an episode about agents that ended earlier, the environment's word first.

        A wrapper or environment says it by an attribute `final_infos`, if the infos of its last step do not.
        """
        return {agent: info for one in self._know_final_infos for agent, info in one.final_infos.items()}

    def add_final_infos(self, result: StepResult) -> None:
        """Add the `final_infos` to the result of an episode's last step."""
        slots = self._agent_slots.slots
        # Wrappers around the environment may have other names for its agents.
        final = {slots[agent]: info for agent, info in self.final_infos().items() if agent in slots}
        if final:
            result.ended = [end._replace(info=final.pop(end.slot, end.info)) for end in result.ended]
            result.last_infos = {**final, **result.last_infos}

    def forget_agents(self) -> None:
        """Forget the agents of earlier episodes, between two, of an environment that does not declare its agents."""
        self._agent_slots.forget()

    def seat(self, agents: Sequence[str]) -> None:
        if list(agents) == self._agent_slots.agents:
            return
        try:
            self._agent_slots.seat(agents)
        except (Exception, SystemExit) as error:
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


def layers(env: Any) -> Iterator[Any]:
    """Yield a PettingZoo environment and those in it, outer wrappers first."""
    while isinstance(env, AECEnv | ParallelEnv):
        yield env
        inside = vars(env)
        # PettingZoo's conversion to Parallel has another name for it.
        env = inside.get("env", inside.get("aec_env"))


def options_for(task: int | None) -> dict[str, Any]:
    """Return the `reset` arguments besides the seed."""
    # Not every environment's reset accepts `options`.
    return {} if task is None else {"options": {"task": task}}


class GlobalState:
    """Reads the state of `env`, lazily: not every environment's `state()` works."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        self._env, self._location = env, location
        self._space: spaces.Box | None = None
        self._encoder: Encoder | None = None
        self._has_looked = False

    @property
    def space(self) -> spaces.Box | None:
        """An unbounded Box of the state's shape and dtype (floats as float32), or None if there is no state.

        Reset first. Raises EnvironmentFailed if state() raises anything but NotImplementedError.
        """
        if not self._has_looked:
            self._space = self._find_space()
            self._encoder = None if self._space is None else Encoder(self._space)
            self._has_looked = True
        return self._space

    def read(self) -> Array:
        """Return a copy of the state, [*space.shape].

        Raises EnvironmentFailed if there is no state, its shape changed, it has a NaN, or the dtype cannot hold it.
        """
        if self.space is None or self._encoder is None:
            raise self._location.broken("the environment has no state(), which PettingZoo leaves to it")
        state = self._call_state()
        try:
            row: Array = self._encoder.stack([state])[0]
        except ObservationOutside as outside:
            raise self._location.broken(f"the {outside.reason.replace('observation', 'state', 1)}") from outside
        return row

    def _find_space(self) -> spaces.Box | None:
        # In some environments the attribute of this name is not a method.
        if not callable(getattr(self._env, "state", None)):
            return None
        try:
            state = self._call_state()
        except EnvironmentFailed as failure:
            # PettingZoo's environments without state raise it.
            if isinstance(failure.__cause__, NotImplementedError):
                return None
            raise
        declared = state_space_of(getattr(self._env, "state_space", None))
        return _unbounded_space(state.shape, state.dtype) if declared is None else declared

    def _call_state(self) -> Array:
        try:
            state = np.asarray(self._env.state())
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "state()") from error
        if state.dtype.kind not in "biuf":
            raise self._location.broken(f"state() gave {state.dtype} instead of numbers")
        return state


def state_space_of(declared: Any) -> spaces.Box | None:
    """Return the space of a state whose `state_space` is `declared`: without bounds, floats as float32; else None."""
    return _unbounded_space(declared.shape, np.dtype(declared.dtype)) if isinstance(declared, spaces.Box) else None


def _unbounded_space(shape: tuple[int, ...], dtype: np.dtype[Any]) -> spaces.Box:
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, shape, np.float32)
    # States of bools are stored as 0 and 1.
    if dtype.kind == "b":
        return spaces.Box(0, 1, shape, np.uint8)
    bounds = np.iinfo(dtype)
    return spaces.Box(bounds.min, bounds.max, shape, dtype.type)
