"""Pass the results of training episodes to a matchmaker, each exactly once.

The results of one round are in an order that does not depend on the workers' speed. With asynchronous workers, a round
has the results of one worker, so they come in the order in which workers deliver them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from marlflow.base.serialization import Tree
from marlflow.sampling.receipts import EpisodeResult, Receipt


@runtime_checkable
class ResultsMatchmaker(Protocol):
    """A matchmaker that receives the results of its matchups."""

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        """Count the training episodes that ended in one round, each once, in the order of their ends."""
        ...


class ResultLedger:
    """Takes each training episode's result once, by its environment and number.

    `stale` counts results that came too late or twice, `lost` episodes that began and had no result.
    """

    def __init__(self, num_envs: int) -> None:
        # The number of each environment's newest counted episode.
        self._newest = [-1] * num_envs
        self.stale = self.lost = 0

    def take(
        self, receipts: Sequence[Receipt], reset: Mapping[int, Collection[str]] | None = None
    ) -> list[EpisodeResult]:
        """Return the new results of a round, by tick and environment.

        `reset` has the policies that were reset while an environment's episodes were played: their results are stale.
        """
        ended = [result for receipt in receipts for result in receipt.episodes]
        taken = []
        for result in sorted(ended, key=lambda result: (result.tick, result.env, result.episode)):
            newest = self._newest[result.env]
            if result.episode <= newest:
                self.stale += 1
                continue
            # An environment begins its episodes one after the other, so those in between will have no result.
            self.lost += result.episode - newest - 1
            self._newest[result.env] = result.episode
            if reset and set(reset.get(result.env, ())).intersection(result.matchup.values()):
                self.stale += 1
                continue
            taken.append(result)
        return taken

    def expire(self, env_index: int, episode: int) -> None:
        """Mark the result of an environment's running episode as stale, for when it arrives."""
        if episode > self._newest[env_index]:
            self.lost += episode - self._newest[env_index] - 1
            self._newest[env_index] = episode

    def state(self) -> Tree:
        """Return the counts, and each environment's newest counted episode."""
        return {"newest": list(self._newest), "stale": self.stale, "lost": self.lost}

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned; new environments begin with episode 0."""
        for env_index, newest in enumerate(tree["newest"][: len(self._newest)]):
            self._newest[env_index] = newest
        self.stale, self.lost = tree["stale"], tree["lost"]
