"""Play random legal episodes through a rollout worker, and record in a ledger the rewards the environment issues."""

from __future__ import annotations

import copy
import itertools
import random
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium import spaces as gym
from pettingzoo import AECEnv

from marlflow.base.arrays import Array
from marlflow.base.errors import EnvironmentFailed, MarlflowError, UserCodeFailed
from marlflow.base.info_columns import COST
from marlflow.base.progress import progress
from marlflow.base.random import RowRandom, key
from marlflow.base.spaces import DISCRETE_KINDS, Spaces, choices_of, components
from marlflow.batches.batch import Batch
from marlflow.check_env.seats import Seats
from marlflow.policy.actor import Actor
from marlflow.policy.scripted import CallableActor, RandomActor
from marlflow.sampling import EpisodeResult, RolloutWorker, SamplerConfig, group
from marlflow.sampling.env_source import WrongReward, reward_values
from marlflow.sampling.watchdog import Watchdog

_SAMPLES = 256


class Dice:
    """Draws uniformly random actions, only legal ones where there is a mask."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._uniform = random.Random(seed).random
        self._samples: dict[str, list[Any]] = {}

    def choose(self, agent: str, space: spaces.Space[Any], mask: Any) -> Any:
        """Return an action of `agent`; raise EnvironmentFailed if its mask allows none."""
        if mask is not None and isinstance(space, DISCRETE_KINDS):
            return self._choose_legal(agent, space, np.asarray(mask))
        samples = self._samples.get(agent)
        if samples is None:
            # A copy, so that the generator of the environment's own space is left alone.
            seeded = copy.deepcopy(space)
            seeded.seed(key(self._seed, len(self._samples)) >> 33)
            samples = self._samples[agent] = [seeded.sample() for _ in range(_SAMPLES)]
        action = samples[int(self._uniform() * _SAMPLES)]
        # Samples are used many times, and an environment may write into an action.
        return action.copy() if isinstance(action, np.ndarray) else action

    def _choose_legal(self, agent: str, space: spaces.Space[Any], mask: Array) -> Any:
        chosen = []
        for part in components(mask[None], choices_of(space)):
            legal = np.flatnonzero(part)
            if not len(legal):
                raise EnvironmentFailed(f"agent {agent!r}", "its action mask allows no action")
            chosen.append(legal[int(self._uniform() * len(legal))])
        start = getattr(space, "start", 0)
        if isinstance(space, spaces.Discrete):
            return space.dtype.type(start + chosen[0])
        return (np.array(chosen).reshape(space.shape or ()) + start).astype(space.dtype)


@dataclass
class Account:
    """One episode: rewards in order of issue, decisions and the sum of costs by agent, and env steps."""

    seed: int | None
    issued: defaultdict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    decisions: Counter[str] = field(default_factory=Counter)
    costs: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    env_steps: int = 0
    over: bool = False


class Ledger:
    """Wraps `reset` and `step` of `env` and records what they issue.

    `accounts` has the last episode of each seed.
    """

    def __init__(self, env: Any) -> None:
        self._env = env
        self._step, self._reset = env.step, env.reset
        self.accounts: dict[int | None, Account] = {}
        self.running = Account(None)
        # Groups in which several agents received a reward in one step, and the groups in which such rewards ever
        # differed.
        self.compared: set[str] = set()
        self.unequal: set[str] = set()
        # Agents that ever acted without a cost.
        self.without_cost: set[str] = set()
        self.slowest_step_s = 0.0
        # Patched on the instance, so that the worker plays exactly the environment that learners get.
        if isinstance(env, AECEnv):
            env.reset, env.step = self._aec_reset, self._aec_step
        else:
            env.reset, env.step = self._parallel_reset, self._parallel_step

    def _begin(self, seed: int | None) -> None:
        self.running = self.accounts[seed] = Account(seed)

    def _aec_reset(self, seed: int | None = None, **options: Any) -> None:
        self._begin(seed)
        self._reset(seed=seed, **options)

    def _aec_step(self, action: Any) -> None:
        account, env = self.running, self._env
        # None is the action of a dead agent.
        if action is not None:
            account.decisions[env.agent_selection] += 1
            account.env_steps += 1
        began = perf_counter()
        self._step(action)
        self.slowest_step_s = max(self.slowest_step_s, perf_counter() - began)
        self._issued(env.rewards)

    def _parallel_reset(self, seed: int | None = None, **options: Any) -> Any:
        self._begin(seed)
        return self._reset(seed=seed, **options)

    def _parallel_step(self, actions: Any) -> Any:
        account = self.running
        account.env_steps += 1
        account.decisions.update(actions.keys())
        began = perf_counter()
        stepped = self._step(actions)
        self.slowest_step_s = max(self.slowest_step_s, perf_counter() - began)
        if not isinstance(stepped, tuple) or len(stepped) != 5:
            # The adapter raises an error for it.
            return stepped
        self._issued(stepped[1])
        self._spent(actions.keys(), stepped[-1])
        account.over = not self._env.agents
        return stepped

    def _issued(self, rewards: Any) -> None:
        first: dict[str, float] = {}
        for agent, reward in rewards.items():
            try:
                amount = float(reward_values([reward])[0])
            except WrongReward:
                # The rollout worker raises an error for it.
                continue
            self.running.issued[agent].append(amount)
            name = group(agent)
            if name in first:
                self.compared.add(name)
                if amount != first[name]:
                    self.unequal.add(name)
            first.setdefault(name, amount)

    def _spent(self, acted: Collection[str], infos: Any) -> None:
        # Anything else the rollout worker raises an error for.
        for agent in {*acted, *infos} if isinstance(infos, Mapping) else ():
            info: Any = infos.get(agent) or {}
            try:
                amount = float(info.get(COST))
            except (TypeError, ValueError, AttributeError):
                # None, or no number.
                if agent in acted:
                    self.without_cost.add(agent)
                continue
            self.running.costs[agent] += amount

    @property
    def partly_without_cost(self) -> list[str]:
        """The agents that had a cost at some env steps, and acted at others without one."""
        return sorted(a for a in self.without_cost if any(a in account.costs for account in self.accounts.values()))

    def costs_of(self, agents: Collection[str]) -> list[float]:
        """Return what each of `agents` cost in each finished episode; empty if one ever acted without a cost."""
        if not self.without_cost.isdisjoint(agents):
            return []
        finished = [account.costs for account in self.accounts.values() if account.over]
        return [costs[agent] for costs in finished for agent in agents if agent in costs]

    def has_common_reward(self, name: str) -> bool | None:
        """Return whether all agents of a group always received equal rewards; None if never two did in one step."""
        return name not in self.unequal if name in self.compared else None


def without_own_frames(failure: UserCodeFailed) -> str:
    """Return a failure's traceback from its first frame on, without a ledger's frame."""
    error = failure.__cause__
    frame = error.__traceback__ if error is not None else None
    start = None
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == __file__:
            start = frame.tb_next
        frame = frame.tb_next
    if error is None or start is None:
        return failure.user_traceback
    return "".join(traceback.format_exception(type(error), error, start, chain=False))


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
