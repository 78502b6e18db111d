"""Checks reproducibility: whether a seed and the same actions give the same episode again, also if it is drawn.

Exact resume needs this: it replays running episodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from marlflow.base.random import episode_seed
from marlflow.check_env.play import Dice
from marlflow.env import EnvAdapter, StepResult, open_adapter
from marlflow.sampling.env_source import WrongReward, reward_values
from marlflow.sampling.watchdog import close_within

_EPISODES = 3
_ENV_STEPS = 400  # of each episode
_RECORD_S = 3.0

Moment = list[tuple[str, Any]]
"""The contents of a step as pairs: a name in words, and the value or a digest of it."""


class PlayedEpisode(NamedTuple):
    """Seed and actions of an episode, and the contents of reset and of each step."""

    seed: int
    actions: list[list[Any]]
    moments: list[Moment]


def difference(make_env: Callable[[], Any], seed: int) -> str | None:
    """Describe the first difference in replayed episodes; None without one. Raises EnvironmentFailed."""
    with _opened(make_env) as first:
        recorded = _record(first, seed)
        differs = _replay_difference(first, recorded, "played again in the same instance")
        if differs is not None:
            return differs
    # For example, a layout drawn at construction is the same in one instance and differs in another.
    with _opened(make_env) as second:
        return _replay_difference(second, recorded, "played in another instance")


def difference_if_drawn(make_env: Callable[[], Any], make_drawn: Callable[[], Any], seed: int) -> str | None:
    """Describe the first difference between episodes of a reproducible environment and the same, drawn; None without.

    Raises EnvironmentFailed.
    """
    with _opened(make_env) as first:
        recorded = _record(first, seed)
    with _opened(make_drawn) as drawn:
        return _replay_difference(drawn, recorded, "made with render_mode=rgb_array, which it is not")


@contextmanager
def _opened(make_env: Callable[[], Any]) -> Iterator[EnvAdapter]:
    adapter = open_adapter(make_env())
    try:
        yield adapter
    finally:
        close_within(adapter.close, adapter.where())


def _record(adapter: EnvAdapter, seed: int) -> list[PlayedEpisode]:
    deadline = perf_counter() + _RECORD_S
    return [_play(adapter, episode_seed(seed, 0, e), Dice(e), deadline) for e in range(_EPISODES)]


def _play(adapter: EnvAdapter, seed: int, dice: Dice, deadline: float) -> PlayedEpisode:
    step = adapter.reset(seed)
    moments, actions = [_moment(adapter, step)], list[list[Any]]()
    while not step.over and len(actions) < _ENV_STEPS and perf_counter() < deadline:
        masks = step.masks or [None] * len(step.deciding)
        step_actions = []
        for slot, mask in zip(step.deciding, masks, strict=True):
            agent = adapter.agents[slot]
            step_actions.append(dice.choose(agent, adapter.action_space(agent), mask))
        actions.append(step_actions)
        step = adapter.act(step_actions)
        moments.append(_moment(adapter, step))
    return PlayedEpisode(seed, actions, moments)


def _replay_difference(adapter: EnvAdapter, recorded: Sequence[PlayedEpisode], how: str) -> str | None:
    for episode in recorded:
        step = adapter.reset(episode.seed)
        for env_step, moment in enumerate(episode.moments):
            differs = _first_difference(moment, _moment(adapter, step))
            if differs is not None:
                return f"{how}, episode seed {episode.seed} differs at env step {env_step}: {differs}"
            if env_step < len(episode.actions):
                step = adapter.act(episode.actions[env_step])
    return None


def _first_difference(before: Moment, after: Moment) -> str | None:
    for (name, before_value), (other, after_value) in zip(before, after, strict=False):
        if name != other:
            return f"{name} then, {other} now"
        if before_value != after_value:
            return name if isinstance(before_value, bytes) else f"{name} was {before_value}, is {after_value}"
    return None if len(before) == len(after) else "not as much happened"


def _moment(adapter: EnvAdapter, step: StepResult) -> Moment:
    agents = adapter.agents
    moment: Moment = [("who decides", [agents[slot] for slot in step.deciding])]
    for slot, observation in zip(step.deciding, step.observations, strict=True):
        moment.append((f"the observation of {agents[slot]!r}", _digest(observation)))
    for slot, mask in zip(step.deciding, step.masks, strict=False):
        moment.append((f"the action mask of {agents[slot]!r}", _digest(mask)))
    for slot, reward in zip(step.reward_slots, step.rewards, strict=True):
        moment.append((f"the reward of {agents[slot]!r}", _amount(reward)))
    for ending in step.ended:
        moment.append((f"how {agents[ending.slot]!r} ended", (ending.terminated, ending.truncated)))
        moment.append((f"the final observation of {agents[ending.slot]!r}", _digest(ending.observation)))
    return moment


def _amount(reward: Any) -> float | str:
    try:
        return float(reward_values([reward])[0])
    except WrongReward:
        return repr(reward)


def _digest(value: Any) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    _update(digest, value)
    return digest.digest()


def _update(digest: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name in sorted(value):
            digest.update(str(name).encode())
            _update(digest, value[name])
    elif isinstance(value, tuple | list):
        for part in value:
            _update(digest, part)
    else:
        # Objects have no bytes that are comparable between instances.
        array = np.asarray(value)
        digest.update(f"{array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(value).encode())
