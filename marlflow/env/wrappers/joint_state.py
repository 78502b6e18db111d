"""A global state for environments without one: the observations of all declared agents, side by side.

For central critics (`critic_sees: [state, ...]`). It is a Markov state only if all agents together observe one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import BaseParallelWrapper, BaseWrapper

from marlflow.base.arrays import Array
from marlflow.base.encoder import Encoder
from marlflow.base.observations import BRIGHTEST, ObservationLayout, layout
from marlflow.env.masking import MaskedView


class JointObservations:
    """The rows of a joint state, one per agent: its observation as float32 numbers, then a presence bit."""

    def __init__(self, observation_spaces: Mapping[str, spaces.Space[Any]]) -> None:
        self._parts = {agent: _AgentPart(space) for agent, space in observation_spaces.items()}
        self._rows: dict[str, Array] = {}
        self.clear()

    @property
    def space(self) -> spaces.Box:
        """The state's space, float32 [sum over agents of observation size + 1]."""
        size = sum(part.size + 1 for part in self._parts.values())
        return spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def clear(self) -> None:
        """Make all agents absent: zeros."""
        self._rows = {agent: np.zeros(part.size + 1, np.float32) for agent, part in self._parts.items()}

    def set(self, present: Iterable[tuple[str, Any]], unchanged: Iterable[str] = ()) -> None:
        """Set the observations of agents that are present; others become absent, except `unchanged` agents.

        Each observation is read before the next one is made, because environments may reuse arrays.
        """
        kept = {agent: self._rows[agent] for agent in unchanged}
        self.clear()
        self._rows |= kept
        for agent, observation in present:
            self._rows[agent][:-1] = self._parts[agent].numbers(observation)
            self._rows[agent][-1] = 1.0

    def state(self) -> Array:
        """Return the state, a copy."""
        return np.concatenate(list(self._rows.values()))


class _AgentPart:
    """Converts one agent's observations, without action mask, to float32 numbers; pixels to [0, 1]."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._view = MaskedView(space)
        self._layout: ObservationLayout = layout(self._view.space)
        self._encoder = Encoder(self._view.space)
        self.size = sum(leaf.size for leaf in self._layout.leaves)

    def numbers(self, observation: Any) -> Array:
        read = self._layout.read(self._encoder.stack([self._view.bare(observation)]))
        scales = [1.0 / BRIGHTEST if leaf.pixels else 1.0 for leaf in self._layout.leaves]
        parts = [
            array.reshape(-1).astype(np.float32) * scale for array, scale in zip(read.values(), scales, strict=True)
        ]
        return np.concatenate(parts)


class JointStateParallel(BaseParallelWrapper):
    """Adds `state()` to a Parallel environment.

    An agent is present from its first observation until it terminates. One that is truncated is present, with its final
    observation, at that env step, whose state others may be bootstrapped from.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._joint = JointObservations({agent: env.observation_space(agent) for agent in env.possible_agents})
        self._live: list[str] = []
        self._ended: set[str] = set()

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        observations, infos = self.env.reset(seed=seed, options=options)
        self._live, self._ended = list(self.env.agents), set()
        self._joint.set((agent, observations[agent]) for agent in self._live)
        return observations, infos

    def step(self, actions: Mapping[str, Any]) -> Any:
        observations, rewards, terminations, truncations, infos = self.env.step(actions)
        agents = self.env.agents
        ends = {agent for agent in {*self._live, *agents} if terminations.get(agent) or truncations.get(agent)}
        ends |= {agent for agent in self._live if agent not in agents}
        living = [agent for agent in agents if agent not in ends and agent not in self._ended]
        cut_short = [agent for agent in self._live if agent in ends and not terminations.get(agent)]
        present = {agent: observations[agent] for agent in (*living, *cut_short) if agent in observations}
        self._joint.set(present.items(), unchanged=[agent for agent in cut_short if agent not in present])
        self._live = living
        # An agent that the environment keeps in `agents` after its end is absent until it has been out of them.
        self._ended = (self._ended | ends).intersection(agents)
        return observations, rewards, terminations, truncations, infos

    @property
    def state_space(self) -> spaces.Box:
        return self._joint.space

    def state(self) -> Array:
        return self._joint.state()


class JointStateAEC(BaseWrapper):
    """Adds `state()` to an AEC environment; presence is as in JointStateParallel.

    The state has the observations of all agents after each turn, not only of the agent that acts next.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._joint = JointObservations({agent: env.observation_space(agent) for agent in env.possible_agents})
        self._live: list[str] = []

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.env.reset(seed=seed, options=options)
        self._live = []
        self._observe()

    def step(self, action: Any) -> None:
        agent = self.env.agent_selection
        is_dead_step = self.env.terminations.get(agent) or self.env.truncations.get(agent)
        self.env.step(action)
        # The dead step of an ended agent changes nothing: the state stays as at the turn in which the agent ended.
        if not is_dead_step:
            self._observe()

    def _observe(self) -> None:
        agents, terminations, truncations = self.env.agents, self.env.terminations, self.env.truncations
        vanished = [agent for agent in self._live if agent not in agents and not terminations.get(agent)]
        living = [agent for agent in agents if not (terminations.get(agent) or truncations.get(agent))]
        cut_short = [agent for agent in self._live if truncations.get(agent) and not terminations.get(agent)]
        observed = [agent for agent in (*living, *cut_short) if agent in agents]
        self._joint.set(((agent, self.env.observe(agent)) for agent in observed), unchanged=vanished)
        self._live = living

    @property
    def state_space(self) -> spaces.Box:
        return self._joint.space

    def state(self) -> Array:
        return self._joint.state()


def with_joint_state(env: Any) -> Any:
    """Add `state()` to an environment of either API that declares its agents."""
    return (JointStateAEC if isinstance(env, AECEnv) else JointStateParallel)(env)
