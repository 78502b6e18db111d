"""Play evaluation episodes in environments that are separate from training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter

from marlflow.base.arrays import Array
from marlflow.base.progress import progress
from marlflow.base.random import key, mix
from marlflow.policy.actor import EvaluationModes
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.action_history import History
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.episodes import EvaluationEpisodes
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.mapping import PolicyOf
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import Evaluated, Fault
from marlflow.sampling.runner import Runner
from marlflow.sampling.watchdog import close_by
from marlflow.sampling.weights_table import WeightsTable

_MOST_ENVS = 16


class EvaluationEnvs:
    """A worker's evaluation environments, opened at first use; each has `stride` lanes."""

    def __init__(
        self,
        make_envs: Callable[[Sequence[int]], EnvSource],
        make_table: Callable[[int, EvaluationModes], WeightsTable],
        stride: int,
        policy_of: PolicyOf,
    ) -> None:
        self._make_envs, self._make_table = make_envs, make_table
        self._stride, self._policy_of = stride, policy_of
        self._envs: EnvSource | None = None

    def widen(self, episodes: int) -> list[Fault]:
        """Open environments for `episodes` episodes; return faults of closing earlier ones."""
        count = min(episodes, _MOST_ENVS)
        if not count or (self._envs is not None and len(self._envs.env_indices) >= count):
            return []
        # All are reopened, because the lanes of a runner are numbered by its number of environments.
        faults = self.close(close_by())
        self._envs = self._make_envs(range(count))
        return faults

    def play_episodes(self, seed: int, request: EvaluationRequest, is_late: Callable[[], bool]) -> Evaluated:
        """Play the evaluation episodes of `request`; `is_late` ends evaluation early. Call `widen` first.

        Results are in order and without faults. Broken episodes are left out.
        """
        began_s, compiled_s = self._clock_s(), self._compile_s
        left, played = request, Evaluated(())
        # If running episodes were stopped, long ones would be missing, so the number is chosen before they begin.
        count = len(left.episodes) if request.within_s is None else 1
        while left.episodes and count and not played.was_cut:
            part_began_s = self._clock_s()
            played += self._play(seed, _part(left, slice(count)), is_late)
            now_s, left = self._clock_s(), _part(left, slice(count, None))
            if request.within_s is not None:
                episode_s = (now_s - part_began_s) / count
                room = max(0.0, began_s + request.within_s - now_s)
                count = len(left.episodes) if room >= episode_s * len(left.episodes) else int(room / episode_s)
        return replace(played, not_begun=len(left.episodes), compile_s=self._compile_s - compiled_s)

    def _clock_s(self) -> float:
        """Return seconds of time.perf_counter, without those in which environments were compiled."""
        return perf_counter() - self._compile_s

    @property
    def _compile_s(self) -> float:
        return 0.0 if self._envs is None else self._envs.compile_s

    def _play(self, seed: int, request: EvaluationRequest, is_late: Callable[[], bool]) -> Evaluated:
        envs = self._envs
        assert envs is not None, "widen opens them"
        table = self._make_table(len(envs.env_indices), request.mode)
        lanes = Lanes(self._stride, len(envs.env_indices), table, self._policy_of, envs.columns)
        history = _Fingerprints(lanes, len(envs.env_indices))
        dealt = EvaluationEpisodes(seed, len(envs.env_indices), request.episodes, request.matchups)
        runner = Runner(envs, lanes, dealt, None, history)
        runner.begin()
        while not (runner.idle or is_late()):
            progress("playing episodes", len(runner.results), len(request.episodes))
            runner.tick()
        # Environments finish in any order.
        order = {episode: number for number, episode in enumerate(request.episodes)}
        results = sorted(runner.results, key=lambda result: order[result.episode])
        fingerprints = history.by_episode()
        complete = tuple(replace(result, fingerprint=fingerprints[result.episode]) for result in results)
        return Evaluated(complete, was_cut=not runner.idle, acted=table.acted())

    def close(self, deadline_s: float) -> list[Fault]:
        """Close the environments; return faults."""
        return [] if self._envs is None else self._envs.close(deadline_s)


def _part(request: EvaluationRequest, part: slice) -> EvaluationRequest:
    matchups = None if request.matchups is None else request.matchups[part]
    return replace(request, episodes=request.episodes[part], matchups=matchups)


class _Fingerprints(History):
    def __init__(self, lanes: Lanes, num_envs: int) -> None:
        super().__init__(num_envs, lanes.stride, 0)
        self._lanes, self._running = lanes, dict[int, int]()
        self._finished: dict[int, int] = {}

    def begin_episode(self, index: int, earlier: object = None) -> None:
        del earlier
        self._complete(index)
        self._running[index] = int(self._lanes.episode[self._lanes.of(index).start])
        super().begin_episode(index)

    def record_actions(self, acting: ActingPolicy, action: Array) -> None:
        self.hashes[acting.lanes] = mix(self.hashes[acting.lanes] + self._digests(acting.policy, "action", action))

    def by_episode(self) -> dict[int, int]:
        for index in list(self._running):
            self._complete(index)
        return self._finished

    def _complete(self, index: int) -> None:
        if (episode := self._running.pop(index, None)) is not None:
            self._finished[episode] = key(*self.hashes[self._lanes.of(index)].tolist())
