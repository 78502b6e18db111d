"""How fast the environment is alone, and in a rollout worker with untrained networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from pettingzoo import AECEnv

from marlflow.base.items import as_it_is
from marlflow.base.random import episode_seed
from marlflow.check_env.dice import Dice
from marlflow.check_env.outcome import Speed
from marlflow.check_env.play import random_actor
from marlflow.check_env.seats import Seats
from marlflow.check_env.suitable import Suitable
from marlflow.sampling import Receipt, RolloutWorker, SamplerConfig
from marlflow.sampling.env_closing import close_within

_ROUNDS = 3  # of each in turn, of which the fastest counts: what disturbs only ever slows down
_ROUND_S = 0.5
_MAKING_S = 5.0


def measured(
    make_env: Callable[[], Any], seats: Seats, fits: Mapping[str, Suitable], num_envs: int, seed: int
) -> Speed:
    """Both speeds, with all that a worker does beside them; as many environments as are made in a few seconds."""
    began = perf_counter()
    bare = _Bare(make_env(), seed)
    num_envs = max(1, min(num_envs, int(_MAKING_S / max(perf_counter() - began, 1e-6))))
    with _one_thread():
        found = {of.name: fits[of.name].actor or random_actor(of.spaces) for of in seats.groups}
        actors = {name: partial(as_it_is, actor) for name, actor in found.items()}
        worker = RolloutWorker(SamplerConfig(make_env, range(num_envs), seats.by_group, seed), actors)
        try:
            alone, receipts = _in_turn(bare, worker, num_envs)
        finally:
            worker.close()
            bare.close()
    rate, best = max(((_rate(receipt), receipt) for receipt in receipts), key=lambda measured: measured[0])
    seconds = best.env_s + best.policy_s + best.bookkeeping_s
    shares = (part / seconds for part in (best.env_s, best.policy_s, best.bookkeeping_s))
    return Speed(max(alone), rate, num_envs, ", ".join(dict.fromkeys(fit.network for fit in fits.values())), *shares)


def _in_turn(bare: _Bare, worker: RolloutWorker, num_envs: int) -> tuple[list[float], list[Receipt]]:
    """Env steps per second of the environment alone, and what the worker collected."""
    alone = [bare.rate(_ROUND_S)]
    ticks = max(1, int(alone[0] * _ROUND_S / num_envs / 2))
    worker.collect(max(1, ticks // 8))  # the first has columns to allocate
    receipts = []
    for _ in range(_ROUNDS):
        receipts.append(worker.collect(ticks)[0])
        alone.append(bare.rate(_ROUND_S))
    return alone, receipts


def _rate(receipt: Receipt) -> float:
    return receipt.env_steps / (receipt.env_s + receipt.policy_s + receipt.bookkeeping_s)


class _Bare:
    """An environment that is played by hand, each episode with a seed of its own, as in a worker."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._dice, self._seed = env, Dice(seed), seed
        self._steps = self._forever(self._aec if isinstance(env, AECEnv) else self._parallel)

    def close(self) -> None:
        close_within(self._env.close, "the environment alone")

    def rate(self, seconds: float) -> float:
        """Env steps per second, over that many seconds; goes on where the last ended."""
        began, elapsed, env_steps = perf_counter(), 0.0, 0
        while elapsed < seconds:
            next(self._steps)
            env_steps += 1
            elapsed = perf_counter() - began
        return env_steps / elapsed

    def _forever(self, play: Callable[[int], Iterator[None]]) -> Iterator[None]:
        for episode in itertools.count():
            yield from play(episode_seed(self._seed, -1, episode))

    def _aec(self, seed: int) -> Iterator[None]:
        """An item after each env step of one episode."""
        env = self._env
        env.reset(seed=seed)
        while env.agents:
            agent = env.agent_selection
            observation, _, terminated, truncated, info = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            env.step(self._choose(agent, observation, info))
            yield

    def _parallel(self, seed: int) -> Iterator[None]:
        """An item after each env step of one episode."""
        env = self._env
        observations, infos = env.reset(seed=seed)
        while env.agents:
            agents = env.agents
            actions = {agent: self._choose(agent, observations.get(agent), infos.get(agent)) for agent in agents}
            observations, _, _, _, infos = env.step(actions)
            yield

    def _choose(self, agent: str, observation: Any, info: Any) -> Any:
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        mask = (info or {}).get("action_mask") if mask is None else mask
        return self._dice.choose(agent, self._env.action_space(agent), mask)


@contextmanager
def _one_thread() -> Iterator[None]:
    """As in a worker's process: torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
