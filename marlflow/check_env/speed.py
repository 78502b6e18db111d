"""Measures the speed of the environment, bare and in a rollout worker with untrained networks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from pettingzoo import AECEnv

from marlflow.base.random import episode_seed
from marlflow.batches.items import as_it_is
from marlflow.check_env.outcome import Speed
from marlflow.check_env.play import Dice, random_actor
from marlflow.check_env.seats import Seats, Suitable
from marlflow.env.masking import joined
from marlflow.sampling import Receipt, RolloutWorker, SamplerConfig
from marlflow.sampling.watchdog import close_within

# Rounds of each. The fastest one counts, because disturbances only slow down.
_ROUNDS = 3
_ROUND_S = 0.5
_MAX_CREATION_S = 5.0


def measure_speed(
    make_env: Callable[[], Any], seats: Seats, fits: Mapping[str, Suitable], num_envs: int, seed: int
) -> Speed:
    """Measure both speeds, with no more environments than a few seconds suffice to create."""
    began = perf_counter()
    bare = _BareEnv(make_env(), seed)
    num_envs = max(1, min(num_envs, int(_MAX_CREATION_S / max(perf_counter() - began, 1e-6))))
    with _one_thread():
        actors_by_group = {group.name: fits[group.name].actor or random_actor(group.spaces) for group in seats.groups}
        actors = {name: partial(as_it_is, actor) for name, actor in actors_by_group.items()}
        worker = RolloutWorker(SamplerConfig(make_env, range(num_envs), seats.by_group, seed), actors)
        try:
            bare_rates, receipts = _alternate(bare, worker, num_envs)
        finally:
            worker.close()
            bare.close()
    spent = [(receipt, receipt.env_s + receipt.policy_s + receipt.bookkeeping_s) for receipt in receipts]
    best, seconds = max(spent, key=lambda one: one[0].env_steps / one[1])
    shares = (part / seconds for part in (best.env_s, best.policy_s, best.bookkeeping_s))
    return Speed(
        max(bare_rates),
        best.env_steps / seconds,
        num_envs,
        ", ".join(dict.fromkeys(fit.network for fit in fits.values())),
        *shares,
    )


def _alternate(bare: _BareEnv, worker: RolloutWorker, num_envs: int) -> tuple[list[float], list[Receipt]]:
    bare_rates = [bare.rate(_ROUND_S)]
    ticks = max(1, int(bare_rates[0] * _ROUND_S / num_envs / 2))
    # Warm-up: the first collect allocates columns.
    worker.collect(max(1, ticks // 8))
    receipts = []
    for _ in range(_ROUNDS):
        receipts.append(worker.collect(ticks)[0])
        bare_rates.append(bare.rate(_ROUND_S))
    return bare_rates, receipts


class _BareEnv:
    """An environment that is played without a worker."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env = env
        self._dice, self._seed = Dice(seed), seed
        self._steps = self._forever(self._aec if isinstance(env, AECEnv) else self._parallel)

    def close(self) -> None:
        close_within(self._env.close, "the environment alone")

    def rate(self, seconds: float) -> float:
        began, elapsed, env_steps = perf_counter(), 0.0, 0
        while elapsed < seconds:
            next(self._steps)
            env_steps += 1
            elapsed = perf_counter() - began
        return env_steps / elapsed

    def _forever(self, play: Callable[[int], Iterator[None]]) -> Iterator[None]:
        for episode in itertools.count():
            # A new seed for each episode, as in a worker.
            yield from play(episode_seed(self._seed, -1, episode))

    def _aec(self, seed: int) -> Iterator[None]:
        env = self._env
        env.reset(seed=seed)
        while env.agents:
            agent = env.agent_selection
            observation, _, terminated, truncated, info = env.last()
            if terminated or truncated:
                env.step(None)
                continue
            env.step(self._action(agent, observation, info))
            yield

    def _parallel(self, seed: int) -> Iterator[None]:
        env = self._env
        observations, infos = env.reset(seed=seed)
        acting = list(env.agents)
        while acting:
            actions = {agent: self._action(agent, observations.get(agent), infos.get(agent)) for agent in acting}
            observations, _, terminations, truncations, infos = env.step(actions)
            yield
            # Some environments list agents after their end.
            acting = [agent for agent in env.agents if not (terminations.get(agent) or truncations.get(agent))]

    def _action(self, agent: str, observation: Any, info: Any) -> Any:
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        mask = (info or {}).get("action_mask") if mask is None else mask
        return self._dice.choose(agent, self._env.action_space(agent), joined(mask))


@contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    # As in a worker's process.
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
