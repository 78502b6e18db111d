"""Plays random episodes through a rollout worker, as learners would get them."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed, MarlflowError
from marlflow.base.progress import progress
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.check_env.ledger import Ledger
from marlflow.check_env.seats import Seats
from marlflow.policy.actor import Actor
from marlflow.policy.scripted import CallableActor, RandomActor
from marlflow.sampling import EpisodeResult, RolloutWorker, SamplerConfig
from marlflow.sampling.watchdog import Watchdog

# Many sizes, because segments that are open at the end of a fragment are continued in the next one.
_FRAGMENT_TICKS = (1, 2, 3, 50, 7, 1, 20, 100)
_COLLECT_S = 1.0


@dataclass
class Played:
    """Random episodes; rows and rewards by episode and policy, decisions also by agent slot."""

    results: list[EpisodeResult] = field(default_factory=list)
    decisions: Counter[tuple[int, str, int]] = field(default_factory=Counter)
    rewards: defaultdict[tuple[int, str], list[float]] = field(default_factory=lambda: defaultdict(list))
    unattributed: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    shared: set[tuple[int, str]] = field(default_factory=set)
    """Episodes and policies with unattributed reward in the same collect, which may belong to another episode."""
    terminated: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    legal: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    vanished: int = 0
    env_steps: int = 0
    out_of_time: bool = False
    failure: MarlflowError | None = None
    ledger: Ledger | None = None
    not_closed: EnvironmentFailed | None = None


def play(
    make_env: Callable[[], Any],
    seats: Seats,
    seed: int,
    episodes: int,
    budget_s: float,
    step_timeout_s: float | None,
) -> Played:
    """Play `episodes` episodes, or fewer within `budget_s` seconds or until an error."""
    played = Played()

    def recorded_env() -> Any:
        env = make_env()
        played.ledger = Ledger(env)
        return env

    worker = None
    try:
        actors = {policy: partial(random_actor, spaces) for policy, spaces in seats.spaces.items()}
        config = SamplerConfig(recorded_env, (0,), seats.mapping, seed)
        worker = RolloutWorker(config, actors, Watchdog(step_timeout_s))
        _collect_episodes(worker, played, episodes, budget_s)
    except MarlflowError as error:
        played.failure = error
    finally:
        for fault in worker.close() if worker is not None else ():
            played.not_closed = EnvironmentFailed(fault.where, fault.reason, fault.user_traceback)
    return played


def random_actor(spaces: Spaces) -> Actor:
    """Return an actor that is uniform over legal actions; standard normal in an unbounded space."""
    space = spaces.action
    if isinstance(space, gym.Box) and not space.is_bounded():
        shape, size = space.shape, int(np.prod(space.shape))

        def normal(obs: Array, mask: Array | None, generator: RowRandom) -> Array:
            del mask
            drawn = np.stack([generator.normal() for _ in range(size)], axis=-1)
            return np.asarray(np.clip(drawn.reshape(len(obs), *shape), space.low, space.high), np.float32)

        return CallableActor(normal)
    return RandomActor(space)


def _collect_episodes(worker: RolloutWorker, played: Played, episodes: int, budget_s: float) -> None:
    began = perf_counter()
    ticks_done = running = 0
    for wanted in itertools.cycle(_FRAGMENT_TICKS):
        elapsed = perf_counter() - began
        # As many ticks as take about a second, so that the time budget and progress are checked often.
        affordable = int(_COLLECT_S * ticks_done / elapsed) if ticks_done else 1
        # A tick ends at most one episode of an environment, so the last collect ends with the last episode.
        ticks = max(1, min(wanted, affordable, episodes - len(played.results)))
        receipt, batches = worker.collect(ticks)
        ticks_done += ticks
        played.results += receipt.episodes
        played.env_steps += receipt.env_steps
        played.vanished += receipt.agents_vanished
        touched = range(running, len(played.results) + 1)
        running = len(played.results)
        for policy, batch in batches.items():
            _count_rows(played, policy, batch)
            amount = receipt.policies[policy].reward_unattributed
            if amount:
                played.unattributed[policy].append(amount)
                played.shared.update((episode, policy) for episode in touched)
        progress("random episodes", len(played.results), episodes)
        if len(played.results) >= episodes:
            return
        if perf_counter() - began > budget_s:
            played.out_of_time = True
            return


def _count_rows(played: Played, policy: str, batch: Batch) -> None:
    segments, start = batch.segments, 0
    for number, length in enumerate(segments["length"].tolist()):
        episode, slot = int(segments["episode"][number]), int(segments["agent"][number])
        played.decisions[episode, policy, slot] += length
        played.rewards[episode, policy] += batch.columns["reward"][start : start + length].tolist()
        start += length
    played.terminated[policy] += int(segments["terminated"].sum())
    played.truncated[policy] += int(segments["truncated"].sum())
    if "action_mask" in batch.columns and batch.rows:
        played.legal[policy] += batch.columns["action_mask"].sum(axis=1).tolist()
