"""Which episodes each copy plays, who plays in them, and the randomness that belongs to each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from marlflow.base.random import episode_seed, key
from marlflow.rollout.protocol import Matchup

# Keeps the seeds of evaluation apart from those of every copy.
EVALUATION = -1
_TASKS = -2
BEGUN_ANEW = 1 << 40
"""Added to the number of an episode each time that it begins anew: the same seed and choices, but rows of its own."""


class Episodes(Protocol):
    """The episodes of a worker's copies, by the index of the copy in that worker."""

    def next(self, index: int) -> int | None:
        """The next episode of a copy; None leaves the copy idle."""
        ...

    def matchup(self, index: int, episode: int) -> Matchup | None:
        """Who plays in it; None: as in every other."""
        ...

    def seed(self, index: int, episode: int) -> int:
        """What the environment is reset with."""
        ...

    def task(self, index: int) -> int | None:
        """The number of the task that a copy has now; None where environments have no tasks, or draw their own."""
        ...

    def stream(self, index: int, episode: int, agent: int) -> int:
        """The key of the random stream of one agent's choices."""
        ...


class TrainingEpisodes:
    """Copy after copy, episode after episode; where matchups are `dealt`, as far as those go."""

    def __init__(self, seed: int, copies: Sequence[int], dealt: bool) -> None:
        self._seed, self._copies, self._dealt = seed, copies, dealt
        self._next = [0] * len(copies)
        self._first = list(self._next)  # the episode that the first matchup is for
        self._matchups: list[Sequence[Matchup]] = [()] * len(copies)
        self.tasks: list[int] = []
        """The number of each copy's task, in [0, 2**31); empty where nobody adapts to any."""

    def deal(self, matchups: Mapping[int, Sequence[Matchup]]) -> None:
        """Those of each copy's next episodes, in order; what was dealt before and not used is dealt anew."""
        self._first = list(self._next)
        self._matchups = [matchups.get(copy, ()) for copy in self._copies]

    def begin_tasks(self) -> None:
        """Each copy has a new task, of the run's seed, the copy, and the next episode: no worker is in it."""
        numbered = zip(self._copies, self._next, strict=True)
        self.tasks = [key(self._seed, _TASKS, copy, episode) >> 33 for copy, episode in numbered]

    def task(self, index: int) -> int | None:
        """That of the copy since `begin_tasks`; None before."""
        return self.tasks[index] if self.tasks else None

    def go_on(self, following: Mapping[int, int]) -> None:
        """Each copy's next episode is that of this number; copies that are not in `following` stay where they are."""
        self._next = [following.get(copy, now) for copy, now in zip(self._copies, self._next, strict=True)]
        self._first = list(self._next)

    @property
    def not_begun(self) -> dict[int, int]:
        """For each copy, the first episode that it has not begun."""
        return dict(zip(map(int, self._copies), self._next, strict=True))

    def next(self, index: int) -> int | None:
        """The next episode of a copy; None if there is no matchup for it."""
        if self._dealt and self._next[index] - self._first[index] >= len(self._matchups[index]):
            return None
        self._next[index] += 1
        return self._next[index] - 1

    def matchup(self, index: int, episode: int) -> Matchup | None:
        """What was dealt for the episode."""
        return self._matchups[index][episode - self._first[index]] if self._dealt else None

    def seed(self, index: int, episode: int) -> int:
        """Of the run's seed, the copy and the episode."""
        return episode_seed(self._seed, self._copies[index], episode)

    def stream(self, index: int, episode: int, agent: int) -> int:
        """Of the run's seed, the copy, the episode and the agent."""
        return key(self._seed, self._copies[index], episode % BEGUN_ANEW, agent)


class EvaluationEpisodes:
    """A list of episode numbers, dealt to whichever copy is free."""

    def __init__(self, seed: int, episodes: Sequence[int], matchups: Sequence[Matchup] | None) -> None:
        self._seed = seed
        self._queue = list(reversed(episodes))
        self._matchups = None if matchups is None else dict(zip(episodes, matchups, strict=True))

    def next(self, index: int) -> int | None:
        """The next episode, whichever copy plays it."""
        del index
        return self._queue.pop() if self._queue else None

    def matchup(self, index: int, episode: int) -> Matchup | None:
        """What was dealt for the episode."""
        del index
        return None if self._matchups is None else self._matchups[episode]

    def seed(self, index: int, episode: int) -> int:
        """Of the run's seed and the episode."""
        del index
        return episode_seed(self._seed, EVALUATION, episode)

    def task(self, index: int) -> int | None:
        """The environment draws it."""
        del index
        return None

    def stream(self, index: int, episode: int, agent: int) -> int:
        """Of the run's seed, the episode and the agent."""
        del index
        return key(self._seed, EVALUATION, episode, agent)
