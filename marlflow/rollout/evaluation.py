"""Play evaluation episodes in environments that are separate from training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from marlflow.base.batch import Array
from marlflow.base.random import key, mix
from marlflow.policy.actor import EvaluationMode
from marlflow.rollout import closing
from marlflow.rollout.env_pool import EnvPool
from marlflow.rollout.episodes import EvaluationEpisodes
from marlflow.rollout.fragment import EpisodeResult, Fault
from marlflow.rollout.history import History
from marlflow.rollout.lanes import Lanes, PolicyOf
from marlflow.rollout.policy_slots import PolicySlots
from marlflow.rollout.protocol import Matchup
from marlflow.rollout.table import Table
from marlflow.rollout.vector_runner import SyncVectorRunner

_MOST_COPIES = 16


class EvaluationCopies:
    """The evaluation environments of a worker, opened at first use; each has `stride` lanes."""

    def __init__(
        self,
        make_copies: Callable[[Sequence[int]], EnvPool],
        make_table: Callable[[int], Table],
        stride: int,
        policy_of: PolicyOf,
    ) -> None:
        self._make_copies, self._make_table = make_copies, make_table
        self._stride, self._policy_of = stride, policy_of
        self._copies: EnvPool | None = None

    def widen(self, episodes: int) -> list[Fault]:
        """Open environments for `episodes` episodes; return faults of closing fewer earlier ones."""
        count = min(episodes, _MOST_COPIES)
        if self._copies is not None and len(self._copies.numbers) >= count:
            return []
        # All are reopened, because the lanes of a runner are numbered by its number of environments.
        faults = self.close(perf_counter() + closing.CLOSE_TIMEOUT_S)
        self._copies = self._make_copies(range(count))
        return faults

    def play(
        self,
        seed: int,
        episodes: Sequence[int],
        matchups: Sequence[Matchup] | None,
        mode: EvaluationMode,
        is_late: Callable[[], bool],
    ) -> tuple[list[EpisodeResult], bool]:
        """Return the results of `episodes` in order, and whether `is_late` ended them early.

        Broken episodes are left out. Call `widen` first.
        """
        copies = self._copies
        assert copies is not None, "widen opens them"
        table = self._make_table(len(copies.numbers))
        lanes = Lanes(self._stride, len(copies.numbers), table, self._policy_of)
        prints = _Fingerprints(lanes, len(copies.numbers))
        dealt = EvaluationEpisodes(seed, episodes, matchups)
        runner = SyncVectorRunner(copies, table.players, lanes, dealt, mode, None, prints)
        runner.begin()
        while not (runner.idle or is_late()):
            runner.tick()
        # Environments finish in any order.
        place = {episode: number for number, episode in enumerate(episodes)}
        results = sorted(runner.results, key=lambda result: place[result.episode])
        found = prints.by_episode()
        return [replace(result, fingerprint=found[result.episode]) for result in results], not runner.idle

    def close(self, deadline_s: float) -> list[Fault]:
        """Close the environments; return faults."""
        return [] if self._copies is None else self._copies.close(deadline_s)


class _Fingerprints(History):
    """A hash of every episode's observations and actions in order. Actions are not stored."""

    def __init__(self, lanes: Lanes, copies: int) -> None:
        super().__init__(copies, lanes.stride, 0)
        self._lanes, self._running = lanes, dict[int, int]()
        self._found: dict[int, int] = {}

    def begins(self, index: int, earlier: object = None) -> None:
        del earlier
        self._complete(index)
        self._running[index] = int(self._lanes.episode[self._lanes.of(index).start])
        super().begins(index)

    def took(self, player: PolicySlots, action: Array) -> None:
        self.hashes[player.lanes] = mix(self.hashes[player.lanes] + self._digests(player.policy, "action", action))

    def by_episode(self) -> dict[int, int]:
        """Return the hashes of all episodes so far, by number."""
        for index in list(self._running):
            self._complete(index)
        return self._found

    def _complete(self, index: int) -> None:
        if (episode := self._running.pop(index, None)) is not None:
            self._found[episode] = key(*self.hashes[self._lanes.of(index)].tolist())
