"""The episodes of each environment: their order, matchups, and random seeds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.random import episode_seed, key, keys
from marlflow.sampling.protocol import Matchup

# Replaces an environment's number, so that seeds of evaluation and tasks never equal a training seed.
EVALUATION = -1
_TASKS = -2
# Seeds are below 2**31.
_S33 = np.uint64(33)
# One by one, few are quicker.
_FEW = 4
RESTARTED_EPISODE = 1 << 40
"""Added to an episode's number at each restart: the same seeds, but separate rows."""


class EpisodeSource(ABC):
    """A worker's episodes, by the environment's index in it; seeds are computed from `env_numbers`."""

    def __init__(self, seed: int, env_numbers: Sequence[int]) -> None:
        self._seed, self._env_numbers = seed, [*map(int, env_numbers)]
        self._numbers = np.array(env_numbers, np.int64)

    @abstractmethod
    def next(self, index: int) -> int | None:
        """Return an environment's next episode; None leaves it idle."""

    @abstractmethod
    def matchup(self, index: int, episode: int) -> Matchup | None:
        """Return an episode's matchup; None: agents keep their policies."""

    def task(self, index: int) -> int | None:
        """Return the environment's task number; None if it has none or draws its own."""
        del index
        return None

    def seeds(self, indices: Array, episodes: Array) -> Array:
        """Return the seeds of N resets, int64 [N]."""
        envs = self._numbers[indices]
        if len(indices) <= _FEW:
            pairs = zip(envs.tolist(), episodes.tolist(), strict=True)
            return np.array([episode_seed(self._seed, env, episode) for env, episode in pairs], np.int64)
        return (keys(self._seed, envs, episodes) >> _S33).astype(np.int64)

    def stream(self, index: int, episode: int, agent: int) -> int:
        """Return the key of an agent's random stream."""
        return key(self._seed, self._env_numbers[index], episode, agent)

    def streams(self, indices: Array, episodes: Array, agents: int) -> Array:
        """Return the keys of the first `agents` agents in N episodes, uint64 [N, agents]."""
        return keys(self._seed, self._numbers[indices, None], episodes[:, None], np.arange(agents))


class TrainingEpisodes(EpisodeSource):
    """Training episodes in order, per environment; if `dealt`, only as far as there are matchups."""

    def __init__(self, seed: int, env_indices: Sequence[int], dealt: bool) -> None:
        super().__init__(seed, env_indices)
        self.is_dealt = dealt
        """Whether each episode has a matchup of its own."""
        self._next = [0] * len(env_indices)
        # The episode of each environment's first matchup.
        self._first = list(self._next)
        self._matchups: list[Sequence[Matchup]] = [()] * len(env_indices)
        self.tasks: list[int] = []
        """The number of each environment's task, in [0, 2**31); empty if no policy adapts."""

    def deal(self, matchups: Mapping[int, Sequence[Matchup]]) -> None:
        """Set the matchups of the next episodes, replacing unused ones."""
        self._first = list(self._next)
        self._matchups = [matchups.get(env_index, ()) for env_index in self._env_numbers]

    def begin_tasks(self) -> None:
        """Draw each environment's task for its next episodes."""
        numbered = zip(self._env_numbers, self._next, strict=True)
        self.tasks = [key(self._seed, _TASKS, env_index, episode) >> 33 for env_index, episode in numbered]

    def task(self, index: int) -> int | None:
        return self.tasks[index] if self.tasks else None

    def resume_at(self, following: Mapping[int, int]) -> None:
        """Set the next episode of the environments in `following`."""
        self._next = [
            following.get(env_index, current) for env_index, current in zip(self._env_numbers, self._next, strict=True)
        ]
        self._first = list(self._next)

    def dealt_after(self, index: int) -> Sequence[Matchup]:
        """Return the matchups of an environment's next episodes."""
        return self._matchups[index][self._next[index] - self._first[index] :]

    def advance(self, begun: Array) -> None:
        """Count episodes that have begun elsewhere, int64 [environments]."""
        self._next = (np.array(self._next, np.int64) + begun).tolist()

    @property
    def next_episodes(self) -> dict[int, int]:
        """Each environment's first episode that has not begun."""
        return dict(zip(self._env_numbers, self._next, strict=True))

    def next(self, index: int) -> int | None:
        if self.is_dealt and self._next[index] - self._first[index] >= len(self._matchups[index]):
            return None
        self._next[index] += 1
        return self._next[index] - 1

    def matchup(self, index: int, episode: int) -> Matchup | None:
        return self._matchups[index][episode - self._first[index]] if self.is_dealt else None

    # A restarted episode repeats the agents' random numbers.
    def stream(self, index: int, episode: int, agent: int) -> int:
        return super().stream(index, episode % RESTARTED_EPISODE, agent)

    def streams(self, indices: Array, episodes: Array, agents: int) -> Array:
        return super().streams(indices, episodes % RESTARTED_EPISODE, agents)


class EvaluationEpisodes(EpisodeSource):
    """A queue of episode numbers for the next free one of `num_envs` environments."""

    def __init__(self, seed: int, num_envs: int, episodes: Sequence[int], matchups: Sequence[Matchup] | None) -> None:
        super().__init__(seed, [EVALUATION] * num_envs)
        self._queue = list(reversed(episodes))
        self._matchups = None if matchups is None else dict(zip(episodes, matchups, strict=True))

    def next(self, index: int) -> int | None:
        del index
        return self._queue.pop() if self._queue else None

    def matchup(self, index: int, episode: int) -> Matchup | None:
        del index
        return None if self._matchups is None else self._matchups[episode]
