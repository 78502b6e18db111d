"""PettingZoo's Parallel environments through the window: everybody who is alive decides at every env step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marlflow.env.opened import Opened, options_for
from marlflow.env.place import Place
from marlflow.env.roster import MASK
from marlflow.env.turn import Ending, Turn


class ParallelWindow(Opened):
    """The `Window` on a Parallel environment."""

    def __init__(self, env: Any, place: Place) -> None:
        super().__init__(env, place)
        self._live: list[str] = []
        self._lingering: set[str] = set()
        _, infos = self._begin(0, {})
        self._roster.find_info_masks(infos)
        self._any_masked = any(self._roster.masked)

    def reset(self, seed: int, task: int | None = None) -> Turn:
        """Begins an episode, of the task of this number if there is one."""
        observations, infos = self._begin(seed, options_for(task))
        turn = self._settle(observations, {}, {}, {}, infos)
        if turn.over:
            raise self._place.broken("reset() left no agents")
        return turn

    def _begin(self, seed: int, options: Mapping[str, Any]) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        self._place.begin(seed)
        self._live, self._lingering = [], set()
        self._appeared.clear()
        try:
            observations, infos = self._env.reset(seed=seed, **options)
        except Exception as error:
            raise self._place.raised(error, "reset()") from error
        for agent in self._env.agents:
            self._roster.slot(agent)
        return observations, infos

    def act(self, actions: Sequence[Any]) -> Turn:
        """One env step with the actions of the agents in the last turn's `deciding`."""
        live, env, turn, place = self._live, self._env, self._turn, self._place
        place.env_steps += 1  # before: what is said of this step, while it runs and when it fails, has its number
        try:
            stepped = env.step(dict(zip(live, actions, strict=True)))
        except Exception as error:
            raise place.raised(error, "step()") from error
        if not isinstance(stepped, tuple) or len(stepped) != 5:
            raise place.broken(f"step() returned {_counted(stepped)}; {_FIVE}")
        observations, rewards, terminations, truncations, infos = stepped
        if (
            True in terminations.values()
            or True in truncations.values()
            or env.agents != live
            or len(rewards) != len(live)
            or place.env_steps == 1
            or self._lingering
        ):
            return self._settle(observations, rewards, terminations, truncations, infos)
        try:
            turn.rewards = [*map(rewards.__getitem__, live)]
        except KeyError as missing:
            raise place.broken(_UNREWARDED, missing.args[0]) from missing
        try:
            turn.observations = [*map(observations.__getitem__, live)]
        except KeyError as missing:
            raise place.broken(_NOTHING, missing.args[0]) from missing
        if self._any_masked or _has_mask(infos):
            self._split(infos)
        turn.reward_slots = turn.deciding
        turn.ended = _NOBODY
        turn.steady = True
        return turn

    def _settle(
        self,
        observations: Mapping[str, Any],
        rewards: Mapping[str, float],
        terminations: Mapping[str, bool],
        truncations: Mapping[str, bool],
        infos: Mapping[str, Any],
    ) -> Turn:
        """The turn after a step in which somebody may have ended, come, or vanished."""
        turn, slots, agents, before = self._turn, self._roster.slots, self._env.agents, self._live
        turn.steady = False
        turn.ended = []
        living = []
        for agent in before:
            terminated, truncated = terminations.get(agent), truncations.get(agent)
            if agent in agents and not (terminated or truncated):
                living.append(agent)
            else:
                self.vanished += not (terminated or truncated)
                final = self._roster.split_final(slots[agent], observations.get(agent), infos.get(agent))
                turn.ended.append(Ending(slots[agent], bool(terminated), not terminated, *final))
            if agent not in rewards and (agent in agents or terminated or truncated):
                raise self._place.broken(_UNREWARDED, agent)
        self._live, joined = living, []
        if agents != living or self._lingering:
            self._lingering.update(agent for agent in before if agent not in living)
            joined = self._admit(agents, before, terminations, truncations)
        turn.reward_slots = [slots[agent] if agent in slots else self._roster.slot(agent) for agent in rewards]
        turn.rewards = [*rewards.values()]
        turn.deciding = [slots[agent] for agent in self._live]
        turn.over = not self._live
        try:
            turn.observations = [*map(observations.__getitem__, self._live)]
        except KeyError as missing:
            raise self._place.broken(_NOTHING, missing.args[0]) from missing
        if self._any_masked or joined or _has_mask(infos):
            self._split(infos)
        for agent in joined:
            if agent not in self._lingering:
                self._roster.check(slots[agent], turn.observations[self._live.index(agent)])
        return turn

    def _admit(
        self,
        agents: Sequence[str],
        before: Sequence[str],
        terminations: Mapping[str, bool],
        truncations: Mapping[str, bool],
    ) -> list[str]:
        """Who of `agents` joins; from now on all of them live but those that ended and have not left since."""
        gone = self._lingering
        joined = [agent for agent in agents if agent not in before and agent not in gone]
        self._appeared.update([self._roster.slot(agent) for agent in joined])
        gone.update(agent for agent in joined if terminations.get(agent) or truncations.get(agent))
        gone.intersection_update(agents)
        self._live = [agent for agent in agents if agent not in gone]
        return joined

    def _split(self, infos: Mapping[str, Any]) -> None:
        """Takes the masks out of the turn's observations, or out of `infos`."""
        split, turn = self._roster.split, self._turn
        shown = zip(turn.deciding, turn.observations, self._live, strict=True)
        seen = [split(slot, observation, infos.get(agent)) for slot, observation, agent in shown]
        turn.observations = [observation for observation, _ in seen]
        turn.masks = [mask for _, mask in seen] if self._any_masked else []


def _has_mask(infos: Mapping[str, Any]) -> bool:
    return any(MASK in info for info in infos.values() if info)


def _counted(stepped: Any) -> str:
    return f"{len(stepped)} things" if isinstance(stepped, tuple) else f"a {type(stepped).__name__}"


_FIVE = "a ParallelEnv returns 5: observations, rewards, terminations, truncations and infos, a dict by agent each"
_NOBODY: list[Ending] = []
_NOTHING = "step() gave no observation for an agent that is in `agents`"
_UNREWARDED = "step() gave no reward for an agent that was alive before it; give 0.0 where there is none"
