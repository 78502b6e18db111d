"""The wrapper `black_death`: agents that have ended stay until all have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
from pettingzoo.utils import BaseParallelWrapper

from marlflow.base.info_columns import COST
from marlflow.env.agents import group_of
from marlflow.env.masking import MASK, joined
from marlflow.env.wrappers.wrapping import Stepped

KeepsReceiving: TypeAlias = bool | Literal["group"]


class BlackDeath(BaseParallelWrapper):
    """Keeps ended agents, observing zeros, until all have ended.

    Then each ends as it did, and its reward until then is what the environment gives, else 0. With `keeps_receiving`,
    ended agents continue to receive: the mean reward of the living agents (True), or of those of their group
    ("group"), 0 if none of them lives; and they end as the agents do that lived until then.

    `final_infos`: once all have ended, the last infos of those that ended earlier, with what the environment adds now.
    """

    def __init__(self, env: Any, keeps_receiving: KeepsReceiving = False) -> None:
        super().__init__(env)
        self._keeps_receiving = keeps_receiving
        self.agents: list[str] = []
        self._living: list[str] = []
        self._ends: dict[str, tuple[bool, bool]] = {}
        self._masked: dict[str, int] = {}
        self._last_infos: dict[str, Mapping[str, Any]] = {}
        self.final_infos: dict[str, Mapping[str, Any]] = {}

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._living, self._ends, self.final_infos = list(self.env.agents), {}, {}
        self.agents = list(self._living)
        self._masked = {agent: len(joined(info[MASK])) for agent, info in infos.items() if MASK in (info or ())}
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Stepped:
        before, acted, ended = list(self.env.agents), self._living, set(self._ends)
        observations, rewards, terminations, truncations, infos = self.env.step(
            {agent: actions[agent] for agent in self._living}
        )
        left = set()
        for agent in self._living:
            ends = bool(terminations.get(agent)), bool(truncations.get(agent))
            if any(ends) or agent not in self.env.agents:
                self._ends[agent] = ends
                if not any(ends):
                    # An agent that left without a flag counts as truncated.
                    self._ends[agent] = False, True
                    left.add(agent)
                self._last_infos[agent] = dict(infos.get(agent) or {})
        if back := [agent for agent in self.env.agents if agent in self._ends and agent not in before]:
            raise RuntimeError(f"agent {back[0]!r} came back after its end, which black_death cannot show")
        self._living = [agent for agent in self.env.agents if agent not in self._ends]
        self.agents += [agent for agent in self._living if agent not in self.agents]
        agents, over = list(self.agents), not self._living
        if over:
            self.agents = []
            self.final_infos = {agent: {**self._last_infos[agent], **(infos.get(agent) or {})} for agent in ended}
        # An agent that acted must get its reward and observation from the environment: adapters report missing ones.
        unpaid, unseen = ended | left, ended if over else self._ends.keys()
        posthumous = self._posthumous({agent: rewards[agent] for agent in acted if agent in rewards}, ended)
        ends_of = self._ends_after(acted) if over else dict.fromkeys(agents, (False, False))
        if not over:
            infos = {**infos, **{agent: self._acting_info(agent, infos) for agent in self._ends}}
        shown = observations.keys() - ended
        return (
            {a: observations[a] if a in shown else self._zeros(a) for a in agents if a in shown or a in unseen},
            {a: rewards.get(a, posthumous.get(a, 0.0)) for a in agents if a in rewards or a in unpaid},
            {agent: ends_of[agent][0] for agent in agents},
            {agent: ends_of[agent][1] for agent in agents},
            {agent: infos[agent] if agent in infos else self._ended_info(agent) for agent in agents},
        )

    def _posthumous(self, rewards: Mapping[str, float], ended: Iterable[str]) -> dict[str, float]:
        """Return what ended agents receive, given the rewards of the living."""
        if not self._keeps_receiving:
            return {}
        by_side: dict[str, list[float]] = {}
        for agent, reward in rewards.items():
            by_side.setdefault(self._side(agent), []).append(reward)
        means = {side: sum(own) / len(own) for side, own in by_side.items()}
        return {agent: means[side] for agent in ended if (side := self._side(agent)) in means}

    def _side(self, agent: str) -> str:
        return group_of(agent) if self._keeps_receiving == "group" else ""

    def _ends_after(self, last: Sequence[str]) -> dict[str, tuple[bool, bool]]:
        """Return how the agents end; the agents `last` lived until now."""
        if not self._keeps_receiving:
            return self._ends
        # At a time limit the rewards of ended agents would continue; after the last death they would not.
        truncated = any(self._ends[agent][1] for agent in last)
        return {agent: ends if agent in last else (not truncated, truncated) for agent, ends in self._ends.items()}

    def _acting_info(self, agent: str, infos: Mapping[str, Any]) -> Any:
        """Return the info of an ended agent, which must act until the episode ends, so a mask allows something."""
        info = infos[agent] if agent in infos else self._ended_info(agent)
        if MASK in (info or ()) and not np.any(joined(info[MASK])):
            return {**info, MASK: np.ones_like(joined(info[MASK]))}
        return info

    def _zeros(self, agent: str) -> Any:
        space = self.env.observation_space(agent)
        return np.zeros(space.shape, space.dtype)

    def _ended_info(self, agent: str) -> dict[str, Any]:
        # Amounts, such as costs, are 0 if the environment gives none, like rewards; booleans keep their last value.
        numbers = {key: value for key, value in self._last_infos[agent].items() if _kind_of(value) in "biuf"}
        shown = {key: value if _kind_of(value) == "b" else 0.0 for key, value in numbers.items()}
        info: dict[str, Any] = {COST: 0.0, **shown}
        return {**info, MASK: np.zeros(self._masked[agent], np.int8)} if agent in self._masked else info


def _kind_of(value: Any) -> str:
    """Return numpy's kind of a number, or of an array of one; "O" for all else."""
    if isinstance(value, bool | int | float | np.generic) or (isinstance(value, np.ndarray) and value.size == 1):
        return np.asarray(value).dtype.kind
    return "O"
