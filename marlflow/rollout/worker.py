"""Makes experience: plays its copies of the environment and hands over what each policy decided.

`receipt, batches = RolloutWorker(...).collect(ticks=64, weights={"prey": Weights(version, flat)})`
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from marlflow.base.batch import Batch
from marlflow.base.errors import ConfigInvalid
from marlflow.base.items import Weights
from marlflow.base.random import episode_seed, key
from marlflow.base.spaces import Spaces
from marlflow.env import Window, open_window
from marlflow.policy.actor import Actor, WeightedActor
from marlflow.rollout.columns import Columns
from marlflow.rollout.fragment import EpisodeResult, Receipt
from marlflow.rollout.lockstep import Lockstep, lanes_per_copy
from marlflow.rollout.mapping import Rule, policy_of
from marlflow.rollout.player import Player
from marlflow.rollout.recorder import Recorder

# Keeps the seeds of evaluation apart from those of every copy.
_EVALUATION = -1
_EVALUATION_COPIES = 16


class RolloutWorker:
    """Plays the `copies` (numbers over all workers) in lockstep.

    `mapping` says which policy plays which agent: a dict, or rules, which also cover agents that are not declared.
    `recorded` are the policies whose rows are wanted (default: all); of the others only episode results remain.
    What the worker makes depends on `seed` and the copies' numbers, not on `worker`, its own. Raises ConfigInvalid
    with every agent that has no policy, policy that has no actor, and agent whose spaces are not its policy's.
    """

    def __init__(
        self,
        make_env: Callable[[], Any],
        copies: Sequence[int],
        mapping: Mapping[str, str] | Sequence[Rule],
        actors: Mapping[str, Actor],
        seed: int,
        worker: int = 0,
        recorded: Collection[str] | None = None,
    ) -> None:
        if not copies:
            raise ConfigInvalid([f"rollout worker {worker} has no copy to play: use fewer workers, or more copies"])
        self._make_env, self._mapping, self._actors, self._seed = make_env, mapping, actors, seed
        self._worker = worker
        self._copies = np.array(copies, np.int64)
        self._windows = [open_window(make_env(), copy) for copy in copies]
        self._spaces = policy_spaces(self._windows[0], self._policy_of, actors)
        wanted = set(actors) if recorded is None else set(recorded)
        self._players = self._make_players(wanted)
        self._recorder = Recorder(lanes_per_copy(self._windows[0]) * len(copies))
        self._evaluation: list[Window] = []
        episodes = _TrainingEpisodes(seed, copies)
        self._lockstep = Lockstep(
            self._windows, copies, self._players, self._policy_of, episodes, "explore", self._recorder
        )

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies that play."""
        return tuple(self._players)

    def _policy_of(self, agent: str) -> str | None:
        return self._mapping.get(agent) if isinstance(self._mapping, Mapping) else policy_of(agent, self._mapping)

    def _make_players(self, recorded: Collection[str]) -> dict[str, Player]:
        return {
            policy: Player(policy, self._actors[policy], spaces, Columns(spaces) if policy in recorded else None)
            for policy, spaces in self._spaces.items()
        }

    def collect(
        self,
        ticks: int,
        weights: Mapping[str, Weights] | None = None,
        schedules: Mapping[str, Mapping[str, float]] | None = None,
    ) -> tuple[Receipt, dict[str, Batch]]:
        """`ticks` env steps of every copy, acting with `weights`: a receipt, and for each policy its complete rows.

        Policies without new weights go on with their last; policies without rows get a batch without rows.
        """
        began = perf_counter()
        self._load(weights or {})
        for policy, values in (schedules or {}).items():
            self._actors[policy].set_schedule(values)
        lockstep, recorder = self._lockstep, self._recorder
        self._widen(ticks + 1)
        vanished = sum(window.vanished for window in self._windows)
        lockstep.env_steps, lockstep.agent_steps, lockstep.ticks = 0, 0, 0
        lockstep.env_s, lockstep.policy_s, lockstep.results = 0.0, 0.0, []
        for _ in range(ticks):
            lockstep.tick()
        cuts = recorder.cut(self._players.values(), lockstep.episode_of)
        receipt = Receipt(
            worker=self._worker,
            env_steps=lockstep.env_steps,
            agent_steps=lockstep.agent_steps,
            episodes=tuple(lockstep.results),
            policies={policy: cut for policy, (cut, _) in cuts.items()},
            agents_vanished=sum(window.vanished for window in self._windows) - vanished,
            env_s=lockstep.env_s,
            policy_s=lockstep.policy_s,
            bookkeeping_s=perf_counter() - began - lockstep.env_s - lockstep.policy_s,
        )
        return receipt, {policy: self._named(batch) for policy, (_, batch) in cuts.items()}

    def _widen(self, capacity: int) -> None:
        self._recorder.widen(capacity)
        for player in self._players.values():
            if player.columns is not None:
                player.columns.widen(capacity)

    def _named(self, batch: Batch) -> Batch:
        """The worker's own lanes become agent, copy, and lanes that are unique over all workers."""
        stride = self._lockstep.stride
        index, agent = np.divmod(batch.segments["lane"], stride)
        copy = self._copies[index]
        return Batch(batch.columns, {**batch.segments, "agent": agent, "copy": copy, "lane": copy * stride + agent})

    def _load(self, weights: Mapping[str, Weights]) -> None:
        for policy, new in weights.items():
            player = self._players.get(policy)
            if player is None or player.version == new.version:
                continue
            if isinstance(player.actor, WeightedActor):
                player.actor.load_flat(new.flat)
            player.version = new.version

    def _snapshot(self, policies: Iterable[str]) -> dict[str, Weights]:
        """What the actors of `policies` act with now."""
        players = [self._players[policy] for policy in policies if policy in self._players]
        return {p.policy: Weights(p.version, p.actor.flat()) for p in players if isinstance(p.actor, WeightedActor)}

    def evaluate(self, episodes: Sequence[int], weights: Mapping[str, Weights] | None = None) -> list[EpisodeResult]:
        """Greedy episodes, by number, in environments of their own; training goes on afterwards as if nothing were.

        The seed of an episode depends on the run's seed and its number alone. Results are in the order of `episodes`.
        """
        training = self._snapshot(weights or {})
        count = min(len(episodes), _EVALUATION_COPIES)
        while len(self._evaluation) < count:
            self._evaluation.append(open_window(self._make_env(), len(self._evaluation), None))
        self._load(weights or {})
        queue = _EvaluationEpisodes(self._seed, episodes)
        players = self._make_players(recorded=())
        lockstep = Lockstep(self._evaluation[:count], range(count), players, self._policy_of, queue, "greedy", None)
        while not lockstep.idle:
            lockstep.tick()
        self._load(training)
        place = {episode: number for number, episode in enumerate(episodes)}
        return sorted(lockstep.results, key=lambda result: place[result.episode])

    def close(self) -> None:
        """Closes all environments."""
        for window in (*self._windows, *self._evaluation):
            window.close()


class _TrainingEpisodes:
    """Copy after copy, episode after episode."""

    def __init__(self, seed: int, copies: Sequence[int]) -> None:
        self._seed, self._copies = seed, copies
        self._next = [0] * len(copies)

    def next(self, index: int) -> int:
        self._next[index] += 1
        return self._next[index] - 1

    def seed(self, index: int, episode: int) -> int:
        return episode_seed(self._seed, self._copies[index], episode)

    def stream(self, index: int, episode: int, slot: int) -> int:
        return key(self._seed, self._copies[index], episode, slot)


class _EvaluationEpisodes:
    """A list of episode numbers, dealt to whichever copy is free."""

    def __init__(self, seed: int, episodes: Sequence[int]) -> None:
        self._seed = seed
        self._queue = list(reversed(episodes))

    def next(self, index: int) -> int | None:
        del index
        return self._queue.pop() if self._queue else None

    def seed(self, index: int, episode: int) -> int:
        del index
        return episode_seed(self._seed, _EVALUATION, episode)

    def stream(self, index: int, episode: int, slot: int) -> int:
        del index
        return key(self._seed, _EVALUATION, episode, slot)


def policy_spaces(
    window: Window, policy_of_agent: Callable[[str], str | None], actors: Mapping[str, Actor]
) -> dict[str, Spaces]:
    """What the agents of each policy see and do; raises ConfigInvalid with every contradiction."""
    found: dict[str, tuple[str, Spaces]] = {}
    masked = {policy_of_agent(agent) for agent in window.agents if window.masked(agent)}
    problems = []
    for agent in window.agents:
        policy = policy_of_agent(agent)
        if policy is None or policy not in actors:
            problem = "no policy" if policy is None else f"policy {policy!r}, which has no actor"
            problems.append(f"agent {agent!r} is mapped to {problem}; the policies are {', '.join(actors) or 'none'}")
            continue
        spaces = Spaces(window.observation_space(agent), window.action_space(agent), policy in masked)
        first, expected = found.setdefault(policy, (agent, spaces))
        if spaces != expected:
            problems.append(
                f"policy {policy!r} plays {first!r} ({expected.observation}, {expected.action}) and "
                f"{agent!r} ({spaces.observation}, {spaces.action}): agents of one policy need the same spaces"
            )
    if problems:
        raise ConfigInvalid(problems)
    return {policy: spaces for policy, (_, spaces) in found.items()}
