"""PettingZoo's AEC environments through the window: one agent decides at each turn, and the dead step by themselves.

The environment is stepped and observed through its outermost wrapper; what it says of itself is read where it is held.
Rewards are what `env.rewards` says after each step, dead steps included. An agent's end is its dead step: what it
receives until then, on whosever turn, is still its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.env.holder import attribute_holder
from marlflow.env.opened import Opened, options_for
from marlflow.env.place import Place
from marlflow.env.turn import Ending, Turn


class AECWindow(Opened):
    """The `Window` on an AEC environment."""

    def __init__(self, env: Any, place: Place) -> None:
        super().__init__(env, place)
        self._known: list[str] = []
        self._gone: set[int] = set()
        self._said = env
        self._begin(0, {})
        self._roster.find_info_masks(self._said.infos)
        self._any_masked = any(self._roster.masked)

    def reset(self, seed: int, task: int | None = None) -> Turn:
        """Begins an episode, of the task of this number if there is one."""
        self._begin(seed, options_for(task))
        self._clear()
        self._settle()
        if self._turn.over:
            raise self._place.broken("reset() left no agents")
        self._roster.check(self._turn.deciding[0], self._turn.observations[0])
        return self._turn

    def _begin(self, seed: int, options: Mapping[str, Any]) -> None:
        self._place.begin(seed)
        self._known = []
        self._appeared.clear()
        try:
            self._env.reset(seed=seed, **options)
        except Exception as error:
            raise self._place.raised(error, "reset()") from error
        self._said = attribute_holder(self._env)
        for agent in self._said.agents:
            self._roster.slot(agent)

    def act(self, actions: Sequence[Any]) -> Turn:
        """One turn of the agent in the last turn's `deciding`, and the dead steps that follow."""
        (action,) = actions
        self._clear()
        self._place.env_steps += 1  # before: what is said of this turn, while it runs and when it fails, has its number
        self._step(action, self._roster.agents[self._turn.deciding[0]])
        rewards = self._said.rewards
        for agent in self._known:  # the dead too, until their dead step, which deletes their reward
            if agent not in rewards and agent in self._said.agents:
                raise self._place.broken(_UNREWARDED, agent)
        self._settle()
        return self._turn

    def _clear(self) -> None:
        turn = self._turn
        turn.reward_slots, turn.rewards, turn.ended = [], [], []
        turn.late_slots, turn.late_rewards = [], []
        turn.over = False
        self._gone.clear()

    def _step(self, action: Any, agent: str) -> None:
        """One `env.step`, and what everybody received by it."""
        turn, slots = self._turn, self._roster.slots
        try:
            self._env.step(action)
        except Exception as error:
            raise self._place.raised(error, "step()", agent) from error
        for name, reward in self._said.rewards.items():
            if reward.__class__ not in _NUMBERS or reward:
                slot = slots[name] if name in slots else self._roster.slot(name)
                late = slot in self._gone
                (turn.late_slots if late else turn.reward_slots).append(slot)
                (turn.late_rewards if late else turn.rewards).append(reward)

    def _settle(self) -> None:
        """Lets the dead step until a living agent must decide, or nobody is left."""
        said, turn = self._said, self._turn
        while True:
            agents = said.agents
            if agents != self._known:
                self._reconcile(agents)
            if not agents:
                turn.deciding, turn.observations, turn.masks, turn.over = [], [], [], True
                return
            agent = said.agent_selection
            try:
                terminated, truncated = said.terminations[agent], said.truncations[agent]
            except KeyError as missing:
                reason = "the selected agent is not in `terminations` and `truncations`"
                raise self._place.broken(reason, agent) from missing
            if agent not in agents:
                raise self._place.broken("the selected agent is not in `agents`", agent)
            if not (terminated or truncated):
                break
            self._end(agent, bool(terminated))
        slot = self._roster.slots[agent]
        observation, mask = self._observe(slot, agent, final=False)
        turn.deciding, turn.observations = [slot], [observation]
        turn.masks = [mask] if self._any_masked else []

    def _observe(self, slot: int, agent: str, final: bool) -> tuple[Any, Array | None]:
        try:
            observation = self._env.observe(agent)
        except Exception as error:
            raise self._place.raised(error, "observe()", agent) from error
        split = self._roster.split_final if final else self._roster.split
        return split(slot, observation, self._said.infos.get(agent))

    def _end(self, agent: str, terminated: bool) -> None:
        """The dead step of `agent`."""
        slot = self._roster.slots[agent]
        # Copies: further dead steps may change in place what an environment shows (SuperSuit's frame_stack does).
        observation, mask = map(_copied, self._observe(slot, agent, final=True))
        self._step(None, agent)
        self._gone.add(slot)
        self._turn.ended.append(Ending(slot, terminated, not terminated, observation, mask))
        ends = self._said.terminations.get(agent) or self._said.truncations.get(agent)
        if ends and agent in self._said.agents:  # without its flags it has come back: a new trajectory
            raise self._place.broken("a dead agent stayed in `agents` after its dead step", agent)
        self._known.remove(agent)

    def _reconcile(self, agents: Sequence[str]) -> None:
        """Agents came, or went without a dead step."""
        for agent in [agent for agent in self._known if agent not in agents]:
            slot = self._roster.slots[agent]
            terminated = bool(self._said.terminations.get(agent))
            self.vanished += not (terminated or self._said.truncations.get(agent))
            self._turn.ended.append(Ending(slot, terminated, not terminated, None, None))
            self._gone.add(slot)
        self._appeared.update(self._roster.slot(agent) for agent in agents)
        self._known = list(agents)


def _copied(seen: Any) -> Any:
    """A copy of an observation or a mask; of a plain array twenty times as fast as `deepcopy`."""
    return seen.copy() if type(seen) is np.ndarray and not seen.dtype.hasobject else copy.deepcopy(seen)


# Zeros of these types are passed over; anything stranger is for whoever adds the rewards up to judge.
_NUMBERS = (int, float, bool)
_UNREWARDED = "step() left an agent out of `rewards` that was and is in `agents`; give 0.0 where there is none"
