"""B worlds of particles at once: the physics of mpe2 (Lowe et al., 2017, arXiv:1706.02275), in its order of operations.

Names, spaces, and constants come from the mpe2 environment that a scenario is made from, so that the numbers are the
same for the same seeds and actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.env.batched.generators import FewGenerators, Generators, generators
from marlflow.env.batched.protocol import BatchedStep

Rows = Array | slice
"""Environments: their numbers, or all."""

# The directions of the five discrete actions: none, left, right, down, up.
_DIRECTIONS = np.array([[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])
_SENSITIVITY = 5.0
_ALL = slice(None)


class BatchedParticles:
    """B copies of the world of `original`, an mpe2 environment; a group has the agents of one name.

    Positions are [B, entities, 2], agents first; velocities [B, agents, 2]; words [B, agents, size of a word].
    """

    turn_based = False

    def __init__(self, num_envs: int, original: Any, draws: int = 0) -> None:
        world = original.world
        self.num_envs, self.max_cycles, self._is_continuous = num_envs, original.max_cycles, original.continuous_actions
        self.metadata = {"name": original.metadata["name"]}
        self.possible_agents: list[str] = list(original.possible_agents)
        self.groups: dict[str, list[str]] = {}
        for agent in self.possible_agents:
            self.groups.setdefault(agent.rpartition("_")[0], []).append(agent)
        self.observation_space, self.action_space = original.observation_space, original.action_space
        self.state_space = original.state_space
        self.world, agents, entities = world, world.agents, world.entities
        self.num_agents, self.num_landmarks = len(agents), len(world.landmarks)
        self._movable = np.array([agent.movable for agent in agents])
        self._speaks = [not agent.silent for agent in agents]
        self._sensitivity = np.array([agent.accel or _SENSITIVITY for agent in agents])
        self.sizes = np.array([entity.size for entity in entities])
        self._pairs = [
            (a, b)
            for b in range(len(entities))
            for a in range(b)
            if entities[a].collide and entities[b].collide and (entities[a].movable or entities[b].movable)
        ]
        # The order in which mpe2 adds up forces.
        self._pairs.sort()
        # Environments that were never reset have no two particles in one place.
        self.positions = np.arange(num_envs * len(entities) * 2, dtype=np.float64).reshape(num_envs, len(entities), 2)
        self.velocities = np.zeros((num_envs, len(agents), 2))
        self.words = np.zeros((num_envs, len(agents), world.dim_c))
        self.goals = np.zeros((num_envs, draws), np.int64)
        self._cycles = np.zeros(num_envs, np.int64)
        # All agents but one, by agent.
        self.others = np.array([[j for j in range(len(agents)) if j != i] for i in range(len(agents))], np.int64)
        self.observations = {
            name: np.zeros((num_envs, len(of), *self.observation_space(of[0]).shape), np.float32)
            for name, of in self.groups.items()
        }

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        self.draw(envs, generators(seeds))
        self.velocities[envs] = 0.0
        self.words[envs] = 0.0
        self._cycles[envs] = 0
        self.observe(envs)
        return BatchedStep(dict(self.observations))

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        with np.errstate(invalid="ignore", divide="ignore"):
            # Two particles in one place have no direction between them: as in mpe2, the result is NaN, and the episode
            # ends as a fault.
            self._move(self._act(actions))
        self._cycles += 1
        over = np.repeat((self._cycles >= self.max_cycles)[:, None], self.num_agents, axis=1)
        self.observe(_ALL)
        none = np.zeros_like(over)
        return BatchedStep(
            dict(self.observations), self.by_group(self.rewards()), self.by_group(none), self.by_group(over)
        )

    def by_group(self, values: Array) -> dict[str, Array]:
        """Return the columns of `values` [B, agents, ...] by group."""
        columns, first = {}, 0
        for name, agents in self.groups.items():
            columns[name] = values[:, first : first + len(agents)]
            first += len(agents)
        return columns

    def _act(self, actions: Mapping[str, Array]) -> Array:
        """Take the words of all agents; return their forces, [B, agents, 2]."""
        forces, agent = np.zeros((self.num_envs, self.num_agents, 2)), 0
        for name, of_group in self.groups.items():
            for number in range(len(of_group)):
                action = actions[name][:, number]
                push = self._push(action, agent) if self._is_continuous else self._direction(action, agent)
                if self._movable[agent]:
                    forces[:, agent] = push * self._sensitivity[agent]
                agent += 1
        return forces

    def _direction(self, action: Array, agent: int) -> Array:
        count = len(_DIRECTIONS)
        if self._speaks[agent]:
            word = action // count if self._movable[agent] else action
            self.words[:, agent] = np.eye(self.words.shape[2])[word]
        directions: Array = _DIRECTIONS[action % count]
        return directions

    def _push(self, action: Array, agent: int) -> Array:
        action = np.clip(action, 0.0, 1.0)
        if self._speaks[agent]:
            self.words[:, agent] = action[:, len(_DIRECTIONS) :] if self._movable[agent] else action
        if not self._movable[agent]:
            return np.zeros((len(action), 2))
        return np.stack([action[:, 2] - action[:, 1], action[:, 4] - action[:, 3]], axis=1).astype(np.float64)

    def _move(self, forces: Array) -> None:
        world = self.world
        if self._pairs:
            self._add_contacts(forces)
        for agent, entity in enumerate(world.agents):
            if not entity.movable:
                continue
            velocity = self.velocities[:, agent]
            self.positions[:, agent] += velocity * world.dt
            velocity *= 1 - world.damping
            velocity += (forces[:, agent] / entity.mass) * world.dt
            if entity.max_speed is not None:
                speed = _lengths(velocity)
                fast = np.flatnonzero(speed > entity.max_speed)
                velocity[fast] = velocity[fast] / speed[fast, None] * entity.max_speed

    def _add_contacts(self, forces: Array) -> None:
        world, entities = self.world, self.world.entities
        first, second = np.array(self._pairs).T
        delta = self.positions[:, first] - self.positions[:, second]
        distance = _lengths(delta)
        margin = world.contact_margin
        penetration = np.logaddexp(0, -(distance - (self.sizes[first] + self.sizes[second])) / margin) * margin
        force = world.contact_force * delta / distance[..., None] * penetration[..., None]
        for number, (a, b) in enumerate(self._pairs):
            if entities[a].movable:
                forces[:, a] += force[:, number]
            if entities[b].movable:
                forces[:, b] -= force[:, number]

    def relative(self, envs: Rows) -> Array:
        """Return the positions of all entities as agents see them, [N, agents, entities, 2]."""
        positions = self.positions[envs]
        seen: Array = positions[:, None] - positions[:, : self.num_agents, None]
        return seen

    def of_others(self, values: Array) -> Array:
        """Return for each agent the `values` [N, agents, agents, ...] of the others, [N, agents, agents - 1, ...]."""
        of_others: Array = values[:, np.arange(self.num_agents)[:, None], self.others]
        return of_others

    def distances(self, first: Array, second: Array) -> Array:
        """Return the distances of entities `first` [P] from `second` [P], [B, P]."""
        return _lengths(self.positions[:, first] - self.positions[:, second])

    def touches(self, first: Array, second: Array) -> Array:
        """Return whether entities `first` [P] touch `second` [P], bool [B, P]."""
        touching: Array = self.distances(first, second) < self.sizes[first] + self.sizes[second]
        return touching

    def draw(self, envs: Array, random: Generators | FewGenerators) -> None:
        """Draw goals and positions of `envs`, in the order in which the scenario draws them."""
        self.place(envs, random, 1.0)

    def place(self, envs: Array, random: Generators | FewGenerators, landmarks_within: float) -> None:
        """Draw positions: agents in [-1, 1), landmarks in [-landmarks_within, landmarks_within)."""
        high = np.array([1.0] * self.num_agents + [landmarks_within] * self.num_landmarks)[:, None]
        drawn = random.uniforms(2 * len(high)).reshape(-1, len(high), 2)
        self.positions[envs] = -high + (high - -high) * drawn

    def rewards(self) -> Array:
        """Return the agents' rewards, [B, agents]."""
        raise NotImplementedError

    def observe(self, envs: Rows) -> None:
        """Write the observations of `envs`."""
        raise NotImplementedError

    def state(self) -> Array:
        """Return all observations side by side, [B, sum of their sizes]."""
        return np.concatenate([array.reshape(self.num_envs, -1) for array in self.observations.values()], axis=1)

    def get_state(self, envs: Array) -> dict[str, Array]:
        return {
            "positions": self.positions[envs],
            "velocities": self.velocities[envs],
            "words": self.words[envs],
            "goals": self.goals[envs],
            "cycles": self._cycles[envs],
        }

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        self.positions[envs], self.velocities[envs] = state["positions"], state["velocities"]
        self.words[envs], self.goals[envs] = state["words"], state["goals"]
        self._cycles[envs] = state["cycles"]
        self.observe(envs)
        return BatchedStep(dict(self.observations))

    def close(self) -> None:
        """Do nothing."""


def _lengths(vectors: Array) -> Array:
    lengths: Array = np.sqrt(np.square(vectors[..., 0]) + np.square(vectors[..., 1]))
    return lengths
