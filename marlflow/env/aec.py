"""Adapter for PettingZoo's AEC environments: one agent acts per step; takes dead steps (`_was_dead_step`).

Methods are called on the outermost wrapper; attributes such as `rewards` are read from the innermost one. Rewards are
read step by step, so `_cumulative_rewards` is not used. Rewards of a dead agent that arrive before its dead step are
`late_rewards`: they are in its return, and in no row. `sampling.segment_builder` decides which action a reward is
credited to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pettingzoo.utils.wrappers import BaseWrapper, OrderEnforcingWrapper

from marlflow.base.arrays import Array, copied
from marlflow.env.adapter import AgentEnd, StepResult
from marlflow.env.adapter_state import AdapterState, options_for
from marlflow.env.episode_location import EpisodeLocation

_ATTRIBUTES = ("agents", "agent_selection", "rewards", "terminations", "truncations", "infos")
_FORWARDING = (BaseWrapper.__getattr__, OrderEnforcingWrapper.__getattr__)
_KNOWN_MODULES = (
    "pettingzoo.utils.wrappers.",
    "marlflow.env.wrappers.wrapping",
    "marlflow.env.wrappers.joint_state",
    "marlflow.env.wrappers.shield",
)


class AECAdapter(AdapterState):
    """The EnvAdapter of an AEC environment."""

    def __init__(self, env: Any, location: EpisodeLocation) -> None:
        super().__init__(env, location)
        self._known: list[str] = []
        self._ended_slots: set[int] = set()
        self._inner_env = env
        # A first reset shows which agents there are, and whether masks come in infos.
        self._begin(0, {})
        self._agent_slots.find_info_masks(self._inner_env.infos)
        self._any_masked = any(self._agent_slots.masked)

    def reset(self, seed: int, task: int | None = None) -> StepResult:
        self._begin(seed, options_for(task))
        self._clear()
        self._settle()
        if self._result.over:
            raise self._location.broken("reset() left no agents")
        self._agent_slots.check(self._result.deciding[0], self._result.observations[0])
        return self._result

    def _begin(self, seed: int, options: Mapping[str, Any]) -> None:
        self._location.begin(seed)
        self._known = []
        self._appeared.clear()
        try:
            self._env.reset(seed=seed, **options)
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "reset()") from error
        # A reset may replace inner objects, so look for the innermost wrapper again.
        self._inner_env = innermost_wrapper(self._env)
        for agent in self._inner_env.agents:
            self._agent_slots.slot(agent)

    def act(self, actions: Sequence[Any]) -> StepResult:
        (action,) = actions
        self._clear()
        # Counted before the step, so that errors and reports of hangs during it have its number.
        self._location.env_steps += 1
        self._step(action, self._agent_slots.agents[self._result.deciding[0]])
        rewards = self._inner_env.rewards
        # Dead agents need a reward too: only their dead step deletes it.
        for agent in self._known:
            if agent not in rewards and agent in self._inner_env.agents:
                raise self._location.broken(_NO_REWARD, agent)
        self._settle()
        return self._result

    def _clear(self) -> None:
        result = self._result
        result.reward_slots, result.rewards, result.ended = [], [], []
        result.late_slots, result.late_rewards = [], []
        result.over, result.last_infos = False, {}
        self._ended_slots.clear()

    def _step(self, action: Any, agent: str) -> None:
        result, slots = self._result, self._agent_slots.slots
        try:
            self._env.step(action)
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "step()", agent) from error
        for name, reward in self._inner_env.rewards.items():
            # Skips zeros; the exact type test is quicker than `reward != 0`, which has no single answer for arrays.
            if reward.__class__ not in _NUMBERS or reward:
                slot = slots[name] if name in slots else self._agent_slots.slot(name)
                # A reward after an agent's end belongs to no row; it is reported separately.
                late = slot in self._ended_slots
                (result.late_slots if late else result.reward_slots).append(slot)
                (result.late_rewards if late else result.rewards).append(reward)

    def _settle(self) -> None:
        # Takes dead steps until a living agent must act or no agent is left.
        inner_env, result = self._inner_env, self._result
        while True:
            agents = inner_env.agents
            # Comparing lists is quicker than reconciling, and agents rarely change.
            if agents != self._known:
                self._reconcile(agents)
            if not agents:
                result.deciding, result.observations, result.masks, result.over = [], [], [], True
                self.add_final_infos(result)
                return
            agent = inner_env.agent_selection
            try:
                terminated, truncated = inner_env.terminations[agent], inner_env.truncations[agent]
            except KeyError as missing:
                reason = "the selected agent is not in `terminations` and `truncations`"
                raise self._location.broken(reason, agent) from missing
            if agent not in agents:
                raise self._location.broken("the selected agent is not in `agents`", agent)
            if not (terminated or truncated):
                break
            self._end(agent, bool(terminated))
        slot = self._agent_slots.slots[agent]
        observation, mask = self._observe(slot, agent, final=False)
        result.deciding, result.observations = [slot], [observation]
        result.masks = [mask] if self._any_masked else []

    def _observe(self, slot: int, agent: str, final: bool) -> tuple[Any, Array | None]:
        try:
            observation = self._env.observe(agent)
        except (Exception, SystemExit) as error:
            raise self._location.raised(error, "observe()", agent) from error
        split = self._agent_slots.split_final if final else self._agent_slots.split
        return split(slot, observation, self._inner_env.infos.get(agent))

    def _end(self, agent: str, terminated: bool) -> None:
        slot = self._agent_slots.slots[agent]
        # Copied because later dead steps may change observations in place, as SuperSuit's frame_stack does.
        observation, mask = map(copied, self._observe(slot, agent, final=True))
        info = self._inner_env.infos.get(agent)
        self._step(None, agent)
        self._ended_slots.add(slot)
        self._result.ended.append(AgentEnd(slot, terminated, not terminated, observation, mask, info))
        ends = self._inner_env.terminations.get(agent) or self._inner_env.truncations.get(agent)
        # An agent that is back without flags has started a new trajectory.
        if ends and agent in self._inner_env.agents:
            raise self._location.broken("a dead agent stayed in `agents` after its dead step", agent)
        self._known.remove(agent)

    def _reconcile(self, agents: Sequence[str]) -> None:
        # Registers agents that joined, and ends agents that left without a dead step.
        for agent in [agent for agent in self._known if agent not in agents]:
            slot = self._agent_slots.slots[agent]
            terminated = bool(self._inner_env.terminations.get(agent))
            self.vanished += not (terminated or self._inner_env.truncations.get(agent))
            info = self._inner_env.infos.get(agent)
            self._result.ended.append(AgentEnd(slot, terminated, not terminated, None, None, info))
            self._ended_slots.add(slot)
        self._appeared.update(self._agent_slots.slot(agent) for agent in agents)
        self._known = list(agents)


def innermost_wrapper(env: Any) -> Any:
    """Return the innermost wrapper with the same agents, selection, rewards, ends and infos as `env`.

    Valid until the next reset. Skips only wrappers of PettingZoo and marlflow that set none of these.
    """
    # PettingZoo's wrappers forward each attribute through a `__getattr__` call per layer, and a step reads six.
    while _forwards_attributes(env):
        env = env.env
    return env


def _forwards_attributes(env: Any) -> bool:
    kind = type(env)
    if not kind.__module__.startswith(_KNOWN_MODULES) or getattr(kind, "__getattr__", None) not in _FORWARDING:
        return False
    return not any(name in env.__dict__ or hasattr(kind, name) for name in _ATTRIBUTES)


# Zeros of these types are skipped; any other type is checked where rewards are summed.
_NUMBERS = (int, float, bool)
_NO_REWARD = "step() left an agent out of `rewards` that was and is in `agents`; give 0.0 where there is none"
