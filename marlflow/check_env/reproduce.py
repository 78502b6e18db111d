"""Whether the same seed and the same actions give the same episode, in the same instance and in another.

It is what an exact resume needs: an environment for which this holds can be brought back to where it stood.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from marlflow.base.random import episode_seed
from marlflow.check_env.dice import Dice
from marlflow.env import EnvAdapter, StepResult, open_adapter
from marlflow.sampling.env_closing import close_adapter

_EPISODES = 3
_ENV_STEPS = 400  # of each
_RECORD_S = 3.0

Moment = list[tuple[str, Any]]
"""What a turn shows, thing by thing: its name in words, and its value or a digest of it."""


class RecordedEpisode(NamedTuple):
    """An episode: its seed, the actions of each turn, and what was seen at reset and after each."""

    seed: int
    actions: list[list[Any]]
    moments: list[Moment]


def difference(make_env: Callable[[], Any], seed: int) -> str | None:
    """What differs when episodes are played again, and where; None if nothing does.

    Raises EnvironmentFailed if the environment does.
    """
    first = open_adapter(make_env())
    try:
        deadline = perf_counter() + _RECORD_S
        recorded = [_record(first, episode_seed(seed, 0, e), Dice(e), deadline) for e in range(_EPISODES)]
        differs = _replayed(first, recorded, "played again in the same instance")
        if differs is not None:
            return differs
    finally:
        close_adapter(first)
    second = open_adapter(make_env())
    try:
        return _replayed(second, recorded, "played in another instance")
    finally:
        close_adapter(second)


def _record(adapter: EnvAdapter, seed: int, dice: Dice, deadline: float) -> RecordedEpisode:
    turn = adapter.reset(seed)
    moments, actions = [_moment(adapter, turn)], list[list[Any]]()
    while not turn.over and len(actions) < _ENV_STEPS and perf_counter() < deadline:
        masks = turn.masks or [None] * len(turn.deciding)
        chosen = []
        for slot, mask in zip(turn.deciding, masks, strict=True):
            agent = adapter.agents[slot]
            chosen.append(dice.choose(agent, adapter.action_space(agent), mask))
        actions.append(chosen)
        turn = adapter.act(chosen)
        moments.append(_moment(adapter, turn))
    return RecordedEpisode(seed, actions, moments)


def _replayed(adapter: EnvAdapter, recorded: Sequence[RecordedEpisode], how: str) -> str | None:
    for episode in recorded:
        turn = adapter.reset(episode.seed)
        for env_step, moment in enumerate(episode.moments):
            differs = _first_difference(moment, _moment(adapter, turn))
            if differs is not None:
                return f"{how}, episode seed {episode.seed} differs at env step {env_step}: {differs}"
            if env_step < len(episode.actions):
                turn = adapter.act(episode.actions[env_step])
    return None


def _first_difference(before: Moment, after: Moment) -> str | None:
    for (name, was), (other, now) in zip(before, after, strict=False):
        if name != other:
            return f"{name} then, {other} now"
        if was != now:
            return name if isinstance(was, bytes) else f"{name} was {was}, is {now}"
    return None if len(before) == len(after) else "not as much happened"


def _moment(adapter: EnvAdapter, turn: StepResult) -> Moment:
    agents = adapter.agents
    moment: Moment = [("who decides", [agents[slot] for slot in turn.deciding])]
    for slot, observation in zip(turn.deciding, turn.observations, strict=True):
        moment.append((f"the observation of {agents[slot]!r}", _digest(observation)))
    for slot, mask in zip(turn.deciding, turn.masks, strict=False):
        moment.append((f"the action mask of {agents[slot]!r}", _digest(mask)))
    for slot, reward in zip(turn.reward_slots, turn.rewards, strict=True):
        moment.append((f"the reward of {agents[slot]!r}", float(reward)))
    for ending in turn.ended:
        moment.append((f"how {agents[ending.slot]!r} ended", (ending.terminated, ending.truncated)))
        moment.append((f"the final observation of {agents[ending.slot]!r}", _digest(ending.observation)))
    return moment


def _digest(value: Any) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    _add(found, value)
    return found.digest()


def _add(found: Any, value: Any) -> None:
    if isinstance(value, Mapping):
        for name in sorted(value):
            found.update(str(name).encode())
            _add(found, value[name])
    elif isinstance(value, tuple | list):
        for part in value:
            _add(found, part)
    else:
        array = np.asarray(value)
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else repr(value).encode())
