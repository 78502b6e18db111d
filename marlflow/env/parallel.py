"""Adapter for PettingZoo's Parallel environments: all living agents act at every env step.

A reward of a dead agent is in no row (see `sampling.segment_builder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.env.adapter import AgentEnd, StepResult
from marlflow.env.adapter_state import AdapterState, options_for
from marlflow.env.episode_location import EpisodeLocation
from marlflow.env.masking import MASK


class ParallelAdapter(AdapterState):
    """The EnvAdapter of a ParallelEnv."""

    parallel = True

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        super().__init__(env, location)
        self._live: list[str] = []
        self._lingering: set[str] = set()
        # A first reset shows which agents there are, and whether masks come in infos.
        _, infos = self._begin(0, {})
        self._agent_slots.find_info_masks(infos)
        self._any_masked = any(self._agent_slots.masked)

    def reset(self, seed: int, task: int | None = None) -> StepResult:
        observations, infos = self._begin(seed, options_for(task))
        result = self._settle(observations, {}, {}, {}, infos)
        if result.over:
            raise self._location.broken("reset() left no agents")
        return result

    def _begin(self, seed: int, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        self._location.begin(seed)
        self._live, self._lingering = [], set()
        self._appeared.clear()
        try:
            begun = self._env.reset(seed=seed, **options)
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "reset()") from error
        observations, infos = self._parts("reset()", begun, _OF_RESET)
        for agent in self._env.agents:
            self._agent_slots.slot(agent)
        return observations, infos

    def act(self, actions: Sequence[Any]) -> StepResult:
        live, env, result, location = self._live, self._env, self._result, self._location
        # Counted before the step, so that errors and reports of hangs during it have its number.
        location.env_steps += 1
        try:
            stepped = env.step(dict(zip(live, actions, strict=True)))
        except (Exception, SystemExit) as error:
            raise location.raised(error, "step()") from error
        observations, rewards, terminations, truncations, infos = self._parts("step()", stepped, _OF_STEP)
        try:
            # The common case, in which no agent ends or joins, skips _settle.
            if (
                True in terminations.values()
                or True in truncations.values()
                or env.agents != live
                or len(rewards) != len(live)
                or location.env_steps == 1
                or self._lingering
                # The dead may have costs.
                or (self.info_keys and infos.keys() - live)
            ):
                return self._settle(observations, rewards, terminations, truncations, infos)
        except ValueError as error:
            if (wrong := self._wrong_flag(terminations, truncations)) is not None:
                raise wrong from error
            raise
        try:
            result.rewards = [*map(rewards.__getitem__, live)]
        except KeyError as missing:
            raise location.broken(_NO_REWARD, missing.args[0]) from missing
        try:
            result.observations = [*map(observations.__getitem__, live)]
        except KeyError as missing:
            raise location.broken(f"step() {_NO_OBSERVATION}", missing.args[0]) from missing
        if self._any_masked or _has_mask(infos):
            self._split(infos)
        if self.info_keys:
            result.infos = [*map(infos.get, live)]
        # The same list is safe: later steps replace these lists and never change them.
        result.reward_slots = result.deciding
        result.ended = _NO_ENDS
        result.steady = True
        return result

    def _parts(self, call: str, result: Any, names: Sequence[str]) -> Any:
        """Return what a call returned, if it is a dict by agent for each of `names`; raises EnvironmentFailed."""
        if isinstance(result, tuple | list) and len(result) == len(names):
            for name, part in zip(names, result, strict=True):
                # Most are dicts, and this is done at every env step.
                if type(part) is not dict and not isinstance(part, Mapping):
                    given = f"a {type(part).__name__} as {name}"
                    break
            else:
                return result
        else:
            given = f"{len(result)} things" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        *first, last = names
        expected = f"a ParallelEnv returns {len(names)}: {', '.join(first)} and {last}, a dict by agent each"
        raise self._location.broken(f"{call} returned {given}; {expected}")

    def _wrong_flag(self, *flags: Mapping[str, Any]) -> Exception | None:
        for agent, flag in (item for of in flags for item in of.items()):
            if np.size(flag) != 1:
                reason = f"step() gave an array of {np.size(flag)} as a termination or truncation, not a bool"
                return self._location.broken(reason, agent)
        return None

    def _settle(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminations: Mapping[str, bool],
        truncations: Mapping[str, bool],
        infos: Mapping[str, Any],
    ) -> StepResult:
        result, slots, agents, before = self._result, self._agent_slots.slots, self._env.agents, self._live
        result.steady = False
        result.ended = []
        living = []
        for agent in before:
            terminated, truncated = terminations.get(agent), truncations.get(agent)
            if agent in agents and not (terminated or truncated):
                living.append(agent)
            else:
                self.vanished += not (terminated or truncated)
                info = infos.get(agent)
                final = self._agent_slots.split_final(slots[agent], observations.get(agent), info)
                result.ended.append(AgentEnd(slots[agent], bool(terminated), not terminated, *final, info))
            if agent not in rewards and (agent in agents or terminated or truncated):
                raise self._location.broken(_NO_REWARD, agent)
        self._live, joined = living, []
        if agents != living or self._lingering:
            self._lingering.update(agent for agent in before if agent not in living)
            joined = self._admit(agents, before, terminations, truncations)
        rewards = self._read_infos(before, rewards, infos)
        result.reward_slots = [slots[agent] if agent in slots else self._agent_slots.slot(agent) for agent in rewards]
        result.rewards = [*rewards.values()]
        result.deciding = [slots[agent] for agent in self._live]
        result.over = not self._live
        result.last_infos = {}
        if result.over:
            # Agents that ended earlier may learn how the episode ended, such as whether their team won.
            dead = [agent for agent in infos if agent in slots and agent not in before]
            result.last_infos = {slots[agent]: infos[agent] for agent in dead}
            self.add_final_infos(result)
        try:
            result.observations = [*map(observations.__getitem__, self._live)]
        except KeyError as missing:
            call = "step()" if self._location.env_steps else "reset()"
            raise self._location.broken(f"{call} {_NO_OBSERVATION}", missing.args[0]) from missing
        if self._any_masked or joined or _has_mask(infos):
            self._split(infos)
        for agent in [agent for agent in joined if agent not in self._lingering]:
            self._agent_slots.check(slots[agent], result.observations[self._live.index(agent)])
        return result

    def _admit(
        self,
        agents: Sequence[str],
        before: Sequence[str],
        terminations: Mapping[str, bool],
        truncations: Mapping[str, bool],
    ) -> list[str]:
        lingering = self._lingering
        joined = [agent for agent in agents if agent not in before and agent not in lingering]
        self._appeared.update([self._agent_slots.slot(agent) for agent in joined])
        # Agents that joined and ended in one step never act.
        lingering.update(agent for agent in joined if terminations.get(agent) or truncations.get(agent))
        # An ended agent may join again once it has been out of `agents`.
        lingering.intersection_update(agents)
        self._live = [agent for agent in agents if agent not in lingering]
        return joined

    def _split(self, infos: Mapping[str, Any]) -> None:
        split, result = self._agent_slots.split, self._result
        deciding = zip(result.deciding, result.observations, self._live, strict=True)
        pairs = [split(slot, observation, infos.get(agent)) for slot, observation, agent in deciding]
        result.observations = [observation for observation, _ in pairs]
        result.masks = [mask for _, mask in pairs] if self._any_masked else []

    def _read_infos(
        self, acted: Sequence[str], rewards: Mapping[str, float], infos: Mapping[str, Any]
    ) -> Mapping[str, float]:
        """Set the result's infos, if they are read; return the rewards, 0 for agents that got only such a number."""
        self._result.infos = []
        # Before an env step, as in reset(), no agent has acted, and infos have no costs.
        if not self.info_keys or not acted:
            return rewards
        # A key of a dict in an info begins with the name of the dict.
        keys = {*self.info_keys, *(key.partition(".")[0] for key in self.info_keys)}
        others = [agent for agent in self._agent_slots.slots if agent not in rewards and infos.get(agent)]
        rewards = {**rewards, **{agent: 0.0 for agent in others if not keys.isdisjoint(infos[agent])}}
        self._result.infos = [*map(infos.get, rewards)]
        return rewards


def _has_mask(infos: Mapping[str, Any]) -> bool:
    return any(MASK in info for info in infos.values() if info)


_OF_RESET = ("observations", "infos")
_OF_STEP = ("observations", "rewards", "terminations", "truncations", "infos")
_NO_ENDS: list[AgentEnd] = []
_NO_OBSERVATION = "gave no observation for an agent that is in `agents`"
_NO_REWARD = "step() gave no reward for an agent that was alive before it; give 0.0 where there is none"
