"""Gives one environment of a batched environment the interface of a PettingZoo one: for spaces, checks and play."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.adapter import AgentEnd, StepResult
from marlflow.env.adapter_state import LocatedEnv, state_space_of
from marlflow.env.agents import name_problem
from marlflow.env.batched.protocol import BatchedEnv, BatchedStep, agents_of, as_numpy
from marlflow.env.episode_location import EpisodeLocation

_FIRST = np.zeros(1, np.int64)
_OBSERVATIONS = spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary


class BatchedAdapter(LocatedEnv):
    """The EnvAdapter of environment 0 of `env`; `reset` and `act` are for a `num_envs` of 1.

    Resets the environment once (seed 0), to find whether it has action masks.
    """

    _env: BatchedEnv
    declared = True
    has_tasks = False
    vanished = 0
    actions_corrected = 0

    def __init__(self, env: BatchedEnv, location: EpisodeLocation) -> None:
        super().__init__(env, location)
        self.info_keys: Sequence[str] = ()
        self._agents = agents_of(env)
        self._place = {agent: (name, i) for name, agents in env.groups.items() for i, agent in enumerate(agents)}
        self._alive = [True] * len(self._agents)
        self._check_agents()
        self.masked_groups = frozenset(self._begin(0).action_masks)

    def _check_agents(self) -> None:
        for number, agent in enumerate(self._agents):
            if problem := name_problem(agent, self._agents[:number], "possible_agents and groups"):
                raise self._location.broken(problem)
        if sorted(self._place) != sorted(self._agents) or sum(map(len, self._env.groups.values())) != len(self._agents):
            reason = f"each of possible_agents {self._agents} must be in exactly one of groups {dict(self._env.groups)}"
            raise self._location.broken(reason)

        for name, agents in self._env.groups.items():
            space = self._env.observation_space(agents[0])
            if not isinstance(space, _OBSERVATIONS):
                raise self._location.broken(
                    f"agents of group {name!r} observe a {type(space).__name__}, and batched environments have Box, "
                    "Discrete, MultiDiscrete and MultiBinary observations: flatten it in the environment (an action "
                    "mask goes into BatchedStep.action_masks)"
                )

    @property
    def agents(self) -> Sequence[str]:
        return self._agents

    @property
    def parallel(self) -> bool:
        return not self._env.turn_based

    def forget_agents(self) -> None:
        return

    def seat(self, agents: Sequence[str]) -> None:
        assert list(agents) == self._agents, "agents are declared"

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self._env.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self._env.action_space(agent)

    def masked(self, agent: str) -> bool:
        return self._place[agent][0] in self.masked_groups

    def state_space(self) -> spaces.Box | None:
        return state_space_of(getattr(self._env, "state_space", None))

    def state(self) -> Array:
        try:
            state = as_numpy(self._env.state()[:1])[0]  # type: ignore[attr-defined]
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "state()") from error
        space = self.state_space()
        assert space is not None, "only environments with a state are asked for it"
        if state.shape != space.shape or not np.isfinite(state).all():
            raise self._location.broken(f"state() must be [{self._env.num_envs}, *{space.shape}] without NaN")
        row: Array = state.astype(space.dtype)
        return row

    def appeared(self) -> set[int]:
        return set(range(len(self._agents)))

    def reset(self, seed: int, task: int | None = None) -> StepResult:
        assert task is None, "batched environments have no tasks"
        self._alive = [True] * len(self._agents)
        result = StepResult()
        self._see(self._begin(seed), result)
        return result

    def _begin(self, seed: int) -> BatchedStep:
        self._location.begin(seed)
        try:
            return self._env.reset(_FIRST, np.array([seed], np.int64))
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "reset()") from error

    def act(self, actions: Sequence[Any]) -> StepResult:
        self._location.env_steps += 1
        result = StepResult()
        try:
            step = self._env.step(self._arrays(actions))
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "step()") from error
        result.reward_slots = list(range(len(self._agents)))
        result.rewards = [self._entry(step.rewards, slot).item() for slot in result.reward_slots]
        if self.info_keys:
            result.infos = [self._info(step, slot) for slot in result.reward_slots]
        for slot in [slot for slot, lives in enumerate(self._alive) if lives]:
            terminated = bool(step.terminated and self._entry(step.terminated, slot))
            if terminated or (step.truncated and self._entry(step.truncated, slot)):
                self._alive[slot] = False
                mask = self._mask(step, slot)
                final = self._entry(step.observations, slot).copy(), mask if mask is not None and mask.any() else None
                result.ended.append(AgentEnd(slot, terminated, not terminated, *final, self._info(step, slot)))
        self._see(step, result)
        if result.over:
            ended = {ending.slot for ending in result.ended}
            dead = [slot for slot in range(len(self._agents)) if slot not in ended]
            # A 0 may say that there is none.
            result.last_infos = {slot: {k: of for k, of in self._info(step, slot).items() if of} for slot in dead}
        return result

    def _arrays(self, actions: Sequence[Any]) -> dict[str, Array]:
        arrays = empty_actions(self._env, self._env.num_envs)
        for slot, action in zip(self._deciding, actions, strict=True):
            name, at = self._place[self._agents[slot]]
            arrays[name][0, at] = action
        return arrays

    def _see(self, step: BatchedStep, result: StepResult) -> None:
        deciding = [slot for slot, lives in enumerate(self._alive) if lives]
        if step.decides:
            deciding = [slot for slot in deciding if self._entry(step.decides, slot)]
        self._deciding = result.deciding = deciding
        result.over = not any(self._alive)
        if not (deciding or result.over):
            raise self._location.broken(NOBODY_DECIDES)
        result.observations = [self._entry(step.observations, slot).copy() for slot in deciding]
        result.masks = [self._mask(step, slot) for slot in deciding] if self.masked_groups else []

    def _mask(self, step: BatchedStep, slot: int) -> Array | None:
        return self._entry(step.action_masks, slot).astype(bool) if self.masked(self._agents[slot]) else None

    def _info(self, step: BatchedStep, slot: int) -> dict[str, Any]:
        return {key: self._entry(arrays, slot).item() for key, arrays in step.infos.items()}

    def _entry(self, arrays: Any, slot: int) -> Array:
        name, at = self._place[self._agents[slot]]
        try:
            entry: Array = as_numpy(arrays[name])[0, at, ...]
        except (KeyError, IndexError) as error:
            reason = f"a step must have an array [B, A, ...] for each group; {name!r} has none for agent {at}"
            raise self._location.broken(reason) from error
        return entry


NOBODY_DECIDES = "no agent decides, and not all have ended: an episode would never end"


def empty_actions(env: BatchedEnv, num_envs: int) -> dict[str, Array]:
    """Return zeros for the actions of each group, [num_envs, A, *action shape]."""
    arrays = {}
    for name, agents in env.groups.items():
        space = env.action_space(agents[0])
        shape = space.shape
        assert shape is not None, "spaces of actions were checked"
        # numpy indexes quickest by int64.
        dtype = np.int64 if isinstance(space, spaces.Discrete) else space.dtype
        arrays[name] = np.zeros((num_envs, len(agents), *shape), dtype)
    return arrays
