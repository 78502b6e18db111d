"""Plays episodes of an environment step by step, with players for its agents and watchers.

Rewards and ends are counted as in training: by the adapters through which workers step environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.env.adapter import EnvAdapter, StepResult


class Stopped(Exception):
    """The person ended the games."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The input of a decision: `observation` is without its `mask` (bool [A], or None)."""

    agent: str
    slot: int
    observation: Any
    mask: Array | None
    space: spaces.Space[Any]
    env_steps: int
    """Env steps in the episode before this one."""


Player = Callable[[Decision], Any]
"""Returns the action that the environment takes."""


@dataclass(slots=True)
class Episode:
    """An episode: its `number` from 0 of `of`, the seed of its reset, and its results so far."""

    number: int
    of: int
    seed: int
    env_steps: int = 0
    returns: dict[str, float] = field(default_factory=dict)
    """Undiscounted sum of rewards, of each agent that took part."""
    truncated: bool = False
    """Whether any agent's trajectory was truncated."""


class Watcher(Protocol):
    """Sees episodes from outside; all methods may raise Stopped."""

    def began(self, episode: Episode) -> None:
        """Note that an episode was reset."""
        ...

    def decided(self, decision: Decision, action: Any) -> None:
        """Note an action, before the env step that takes it."""
        ...

    def stepped(self, result: StepResult) -> None:
        """Note the result of the reset, or of an env step."""
        ...

    def ended(self, episode: Episode) -> None:
        """Note that an episode ended."""
        ...


def play_episode(
    adapter: EnvAdapter, episode: Episode, players: Mapping[str, Player], others: Player, watchers: Sequence[Watcher]
) -> Episode:
    """Play `episode` to its end and return it; `others` acts for each agent that has no player of its own.

    Raises EnvironmentFailed if the environment breaks, and Stopped.
    """
    result = adapter.reset(episode.seed)
    for watcher in watchers:
        watcher.began(episode)
    _note(adapter, episode, result, watchers)
    while not result.over:
        actions = []
        for decision in decisions(adapter, result):
            actions.append(players.get(decision.agent, others)(decision))
            for watcher in watchers:
                watcher.decided(decision, actions[-1])
        result = adapter.act(actions)
        _note(adapter, episode, result, watchers)
    for watcher in watchers:
        watcher.ended(episode)
    return episode


def decisions(adapter: EnvAdapter, result: StepResult) -> list[Decision]:
    """Return the decisions that `result` asks for, in the order of its agents."""
    agents, steps = adapter.agents, adapter.env_steps
    masks = result.masks or [None] * len(result.deciding)
    return [
        Decision(agents[slot], slot, observation, mask, adapter.action_space(agents[slot]), steps)
        for slot, observation, mask in zip(result.deciding, result.observations, masks, strict=True)
    ]


def _note(adapter: EnvAdapter, episode: Episode, result: StepResult, watchers: Sequence[Watcher]) -> None:
    agents, returns = adapter.agents, episode.returns
    for slot in sorted(adapter.appeared()):
        returns.setdefault(agents[slot], 0.0)
    for slots, rewards in ((result.reward_slots, result.rewards), (result.late_slots, result.late_rewards)):
        for slot, reward in zip(slots, rewards, strict=True):
            returns[agents[slot]] = returns.get(agents[slot], 0.0) + float(reward)
    episode.truncated |= any(end.truncated for end in result.ended)
    episode.env_steps = adapter.env_steps
    for watcher in watchers:
        watcher.stepped(result)
