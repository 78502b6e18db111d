"""Scenarios of mpe2 that step many worlds at once; arguments are as in mpe2's `parallel_env`.

Other settings of mpe2 (neighbors, curriculum, termination on success) work only in mpe2's own version.
"""

from __future__ import annotations

import numpy as np

from marlflow.base.arrays import Array
from marlflow.env.batched.generators import FewGenerators, Generators
from marlflow.env.batched.particles import BatchedParticles, Rows

_AGENT, _ADVERSARY = "agent", "adversary"


def _join(buffer: Array, envs: Rows, *parts: Array) -> None:
    """Write `parts` [N, agents, ...] side by side into the rows `envs` of `buffer` [B, agents, size]."""
    first = 0
    for part in parts:
        flat = part.reshape(*part.shape[:2], -1)
        buffer[envs, :, first : first + flat.shape[2]] = flat
        first += flat.shape[2]


class SimpleSpread(BatchedParticles):
    """simple_spread: N agents cover N landmarks together, without touching each other."""

    def __init__(
        self,
        num_envs: int,
        N: int = 3,
        local_ratio: float = 0.5,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ) -> None:
        from mpe2.simple_spread import simple_spread  # late: an extra

        original = simple_spread.raw_env(N, local_ratio, max_cycles, continuous_actions)
        super().__init__(num_envs, original)
        self._local_ratio = local_ratio

    def rewards(self) -> Array:
        agents, landmarks = np.arange(self.num_agents), np.arange(self.num_landmarks) + self.num_agents
        nearest = self.distances(np.tile(agents, self.num_landmarks), np.repeat(landmarks, self.num_agents)).reshape(
            self.num_envs, self.num_landmarks, -1
        )
        shared = np.zeros(self.num_envs)
        # One by one, because sums of floats depend on their order.
        for landmark in range(self.num_landmarks):
            shared -= nearest[:, landmark].min(axis=1)
        own = np.repeat(agents, self.num_agents - 1)
        touched = self.touches(self.others.reshape(-1), own).reshape(self.num_envs, self.num_agents, -1)
        own_rewards = -1.0 * touched.sum(axis=2)
        rewards: Array = shared[:, None] * (1 - self._local_ratio) + own_rewards * self._local_ratio
        return rewards

    def observe(self, envs: Rows) -> None:
        seen = self.relative(envs)
        agents = self.num_agents
        words = np.broadcast_to(self.words[envs, None], (len(seen), agents, *self.words.shape[1:]))
        _join(
            self.observations[_AGENT],
            envs,
            self.velocities[envs],
            self.positions[envs, :agents],
            seen[:, :, agents:],
            self.of_others(seen[:, :, :agents]),
            self.of_others(words),
        )


class SimpleTag(BatchedParticles):
    """simple_tag: adversaries chase faster agents around obstacles."""

    def __init__(
        self,
        num_envs: int,
        num_good: int = 1,
        num_adversaries: int = 3,
        num_obstacles: int = 2,
        max_cycles: int = 25,
        continuous_actions: bool = False,
    ) -> None:
        from mpe2.simple_tag import simple_tag  # late: an extra

        super().__init__(
            num_envs, simple_tag.raw_env(num_good, num_adversaries, num_obstacles, max_cycles, continuous_actions)
        )
        self._adversaries = num_adversaries

    def draw(self, envs: Array, random: Generators | FewGenerators) -> None:
        self.place(envs, random, 0.9)

    def rewards(self) -> Array:
        adversaries, good = np.arange(self._adversaries), np.arange(self._adversaries, self.num_agents)
        caught = self.touches(np.repeat(good, len(adversaries)), np.tile(adversaries, len(good)))
        caught = caught.reshape(self.num_envs, len(good), len(adversaries))
        rewards = np.zeros((self.num_envs, self.num_agents))
        rewards[:, adversaries] = 10.0 * caught.sum(axis=(1, 2))[:, None]
        rewards[:, good] = -10.0 * caught.sum(axis=2)
        outside = np.abs(self.positions[:, good])
        penalty = np.where(outside < 1.0, (outside - 0.9) * 10, np.minimum(np.exp(2 * outside - 2), 10))
        penalty[outside < 0.9] = 0.0
        for axis in range(2):
            rewards[:, good] -= penalty[..., axis]
        return rewards

    def observe(self, envs: Rows) -> None:
        seen, agents, chasing = self.relative(envs), self.num_agents, self._adversaries
        velocities, positions = self.velocities[envs], self.positions[envs]
        others = self.of_others(seen[:, :, :agents])
        of_good = velocities[:, chasing:]
        count = agents - chasing
        # Adversaries see the velocities of all good agents, and these of each other.
        for_adversaries = np.broadcast_to(of_good[:, None], (len(seen), chasing, count, 2))
        for_good = of_good[:, np.array([[j for j in range(count) if j != i] for i in range(count)], np.int64)]
        for name, which, of_others in (
            (_ADVERSARY, slice(0, chasing), for_adversaries),
            (_AGENT, slice(chasing, agents), for_good),
        ):
            if name in self.observations:
                _join(
                    self.observations[name],
                    envs,
                    velocities[:, which],
                    positions[:, :agents][:, which],
                    seen[:, which, agents:],
                    others[:, which],
                    of_others,
                )


class SimpleAdversary(BatchedParticles):
    """simple_adversary: agents hide from an adversary which landmark is their goal."""

    def __init__(self, num_envs: int, N: int = 2, max_cycles: int = 25, continuous_actions: bool = False) -> None:
        from mpe2.simple_adversary import simple_adversary  # late: an extra

        super().__init__(num_envs, simple_adversary.raw_env(N, max_cycles, continuous_actions), draws=1)

    def draw(self, envs: Array, random: Generators | FewGenerators) -> None:
        self.goals[envs, 0] = random.integers(self.num_landmarks)
        self.place(envs, random, 1.0)

    def _goal_positions(self) -> Array:
        positions: Array = self.positions[np.arange(self.num_envs), self.num_agents + self.goals[:, 0]]
        return positions

    def rewards(self) -> Array:
        to_goal = self.positions[:, : self.num_agents] - self._goal_positions()[:, None]
        distance = np.sqrt(np.square(to_goal[..., 0]) + np.square(to_goal[..., 1]))
        rewards = np.empty((self.num_envs, self.num_agents))
        rewards[:, 0] = -distance[:, 0]
        rewards[:, 1:] = (-distance[:, 1:].min(axis=1) + distance[:, 0])[:, None]
        return rewards

    def observe(self, envs: Rows) -> None:
        seen, agents = self.relative(envs), self.num_agents
        landmarks, others = seen[:, :, agents:], self.of_others(seen[:, :, :agents])
        goal = landmarks[np.arange(len(seen)), :, self.goals[envs, 0]]
        _join(self.observations[_ADVERSARY], envs, landmarks[:, :1], others[:, :1])
        _join(self.observations[_AGENT], envs, goal[:, 1:], landmarks[:, 1:], others[:, 1:])


class SimpleSpeakerListener(BatchedParticles):
    """simple_speaker_listener: a speaker that cannot move tells a listener which landmark is the goal."""

    def __init__(self, num_envs: int, max_cycles: int = 25, continuous_actions: bool = False) -> None:
        from mpe2.simple_speaker_listener import simple_speaker_listener  # late: an extra

        super().__init__(num_envs, simple_speaker_listener.raw_env(max_cycles, continuous_actions), draws=1)
        self._colors = np.stack([landmark.color for landmark in self.world.landmarks])

    def draw(self, envs: Array, random: Generators | FewGenerators) -> None:
        self.goals[envs, 0] = random.integers(self.num_landmarks)
        self.place(envs, random, 1.0)

    def rewards(self) -> Array:
        goal = self.positions[np.arange(self.num_envs), self.num_agents + self.goals[:, 0]]
        delta = np.square(self.positions[:, 1] - goal)
        return np.repeat(-(delta[:, 0] + delta[:, 1])[:, None], self.num_agents, axis=1)

    def observe(self, envs: Rows) -> None:
        seen = self.relative(envs)[:, 1:, self.num_agents :]
        _join(self.observations["speaker"], envs, self._colors[self.goals[envs, 0]][:, None])
        _join(self.observations["listener"], envs, self.velocities[envs, 1:], seen, self.words[envs, :1])


class SimpleReference(BatchedParticles):
    """simple_reference: each of two agents tells the other which landmark is its goal."""

    def __init__(
        self, num_envs: int, local_ratio: float = 0.5, max_cycles: int = 25, continuous_actions: bool = False
    ) -> None:
        from mpe2.simple_reference import simple_reference  # late: an extra

        super().__init__(num_envs, simple_reference.raw_env(local_ratio, max_cycles, continuous_actions), draws=2)
        self._local_ratio = local_ratio
        self._colors = np.stack([landmark.color for landmark in self.world.landmarks])

    def draw(self, envs: Array, random: Generators | FewGenerators) -> None:
        for agent in range(2):
            self.goals[envs, agent] = random.integers(self.num_landmarks)
        self.place(envs, random, 1.0)

    def rewards(self) -> Array:
        envs = np.arange(self.num_envs)[:, None]
        # Agent i knows where the other one is to go.
        to_goal = self.positions[:, [1, 0]] - self.positions[envs, self.num_agents + self.goals]
        own = -np.sqrt(np.square(to_goal[..., 0]) + np.square(to_goal[..., 1]))
        shared = (own[:, 0] + own[:, 1]) / 2
        rewards: Array = shared[:, None] * (1 - self._local_ratio) + own * self._local_ratio
        return rewards

    def observe(self, envs: Rows) -> None:
        landmarks = self.relative(envs)[:, :, self.num_agents :]
        colors, words = self._colors[self.goals[envs]], self.words[envs][:, [1, 0]]
        _join(self.observations[_AGENT], envs, self.velocities[envs], landmarks, colors, words)
