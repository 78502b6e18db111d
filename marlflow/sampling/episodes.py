"""The episodes of each environment: their order, matchups, and random seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.random import episode_seed, key, keys
from marlflow.sampling.protocol import Matchup

# Stands in for an environment's number, so that seeds of evaluation and tasks never equal a training seed.
EVALUATION = -1
_TASKS = -2
# Seeds are below 2**31.
_S33 = np.uint64(33)
# One by one, few are quicker.
_FEW = 4
RESTARTED_EPISODE = 1 << 40
"""Added to an episode's number at each restart: the same seeds, but separate rows."""


class EpisodeSource(Protocol):
    """A worker's episodes, by the environment's index in it."""

    def next(self, index: int) -> int | None:
        """Return an environment's next episode; None leaves it idle."""
        ...

    def matchup(self, index: int, episode: int) -> Matchup | None:
        """Return an episode's matchup; None: agents keep their policies."""
        ...

    def seed(self, index: int, episode: int) -> int:
        """Return the seed of the reset."""
        ...

    def seeds(self, indices: Array, episodes: Array) -> Array:
        """Return the seeds of N resets, int64 [N]."""
        ...

    def task(self, index: int) -> int | None:
        """Return the environment's task number; None if it has none or draws its own."""
        ...

    def stream(self, index: int, episode: int, agent: int) -> int:
        """Return the key of an agent's random stream."""
        ...

    def streams(self, indices: Array, episodes: Array, agents: int) -> Array:
        """Return the keys of the first `agents` agents in N episodes, uint64 [N, agents]."""
        ...


class TrainingEpisodes:
    """Training episodes in order, per environment; if `dealt`, only as far as there are matchups."""

    def __init__(self, seed: int, env_indices: Sequence[int], dealt: bool) -> None:
        self._seed = seed
        self._env_indices = env_indices
        self._dealt = dealt
        self._next = [0] * len(env_indices)
        # The episode of each environment's first matchup.
        self._first = list(self._next)
        self._matchups: list[Sequence[Matchup]] = [()] * len(env_indices)
        self.tasks: list[int] = []
        """The number of each environment's task, in [0, 2**31); empty if no policy adapts."""

    def deal(self, matchups: Mapping[int, Sequence[Matchup]]) -> None:
        """Set the matchups of the next episodes, replacing unused ones."""
        self._first = list(self._next)
        self._matchups = [matchups.get(env_index, ()) for env_index in self._env_indices]

    def begin_tasks(self) -> None:
        """Draw each environment's task for its next episodes."""
        numbered = zip(self._env_indices, self._next, strict=True)
        self.tasks = [key(self._seed, _TASKS, env_index, episode) >> 33 for env_index, episode in numbered]

    def task(self, index: int) -> int | None:
        return self.tasks[index] if self.tasks else None

    def resume_at(self, following: Mapping[int, int]) -> None:
        """Set the next episode of the environments in `following`."""
        self._next = [
            following.get(env_index, current) for env_index, current in zip(self._env_indices, self._next, strict=True)
        ]
        self._first = list(self._next)

    @property
    def is_dealt(self) -> bool:
        """Whether each episode has a matchup of its own."""
        return self._dealt

    def dealt_after(self, index: int) -> Sequence[Matchup]:
        """Return the matchups of an environment's next episodes."""
        return self._matchups[index][self._next[index] - self._first[index] :]

    def advance(self, begun: Array) -> None:
        """Count episodes that have begun elsewhere, int64 [environments]."""
        self._next = (np.array(self._next, np.int64) + begun).tolist()

    @property
    def next_episodes(self) -> dict[int, int]:
        """Each environment's first episode that has not begun."""
        return dict(zip(map(int, self._env_indices), self._next, strict=True))

    def next(self, index: int) -> int | None:
        if self._dealt and self._next[index] - self._first[index] >= len(self._matchups[index]):
            return None
        self._next[index] += 1
        return self._next[index] - 1

    def matchup(self, index: int, episode: int) -> Matchup | None:
        return self._matchups[index][episode - self._first[index]] if self._dealt else None

    def seed(self, index: int, episode: int) -> int:
        return episode_seed(self._seed, self._env_indices[index], episode)

    def stream(self, index: int, episode: int, agent: int) -> int:
        # A restarted episode repeats the agents' random numbers.
        return key(self._seed, self._env_indices[index], episode % RESTARTED_EPISODE, agent)

    def seeds(self, indices: Array, episodes: Array) -> Array:
        if len(indices) <= _FEW:
            return np.array([*map(self.seed, indices.tolist(), episodes.tolist())], np.int64)
        return (keys(self._seed, np.asarray(self._env_indices)[indices], episodes) >> _S33).astype(np.int64)

    def streams(self, indices: Array, episodes: Array, agents: int) -> Array:
        env_indices = np.asarray(self._env_indices)[indices, None]
        return keys(self._seed, env_indices, episodes[:, None] % RESTARTED_EPISODE, np.arange(agents))


class EvaluationEpisodes:
    """A queue of episode numbers for the next free environment."""

    def __init__(self, seed: int, episodes: Sequence[int], matchups: Sequence[Matchup] | None) -> None:
        self._seed = seed
        self._queue = list(reversed(episodes))
        self._matchups = None if matchups is None else dict(zip(episodes, matchups, strict=True))

    def next(self, index: int) -> int | None:
        del index
        return self._queue.pop() if self._queue else None

    def matchup(self, index: int, episode: int) -> Matchup | None:
        del index
        return None if self._matchups is None else self._matchups[episode]

    def seed(self, index: int, episode: int) -> int:
        del index
        return episode_seed(self._seed, EVALUATION, episode)

    def task(self, index: int) -> int | None:
        del index
        return None

    def stream(self, index: int, episode: int, agent: int) -> int:
        del index
        return key(self._seed, EVALUATION, episode, agent)

    def seeds(self, indices: Array, episodes: Array) -> Array:
        del indices
        return (keys(self._seed, EVALUATION, episodes) >> _S33).astype(np.int64)

    def streams(self, indices: Array, episodes: Array, agents: int) -> Array:
        del indices
        return keys(self._seed, EVALUATION, episodes[:, None], np.arange(agents))
