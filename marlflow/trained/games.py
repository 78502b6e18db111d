"""Plays episodes of an environment step by step: who plays each agent, players for the agents, and watchers.

Rewards and ends are counted as in training: by the adapters through which workers step environments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.env.adapter import EnvAdapter, StepResult
from marlflow.league.sides import sides_of
from marlflow.policy.actor import AskedMode
from marlflow.runs.saved_runs import unknown_agents
from marlflow.trained.team import Team


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
    comes_back: bool = False
    """Whether it is the agent's first one after its trajectory ended in this episode; it remembers nothing."""


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


class Watcher:
    """Base class of watchers of episodes; methods do nothing by default, and all may raise Stopped."""

    def began(self, episode: Episode) -> None:
        """Note that an episode was reset."""

    def decided(self, decision: Decision, action: Any) -> None:
        """Note an action, before the env step that takes it."""

    def stepped(self, result: StepResult) -> None:
        """Note the result of the reset, or of an env step."""

    def ended(self, episode: Episode) -> None:
        """Note that an episode ended."""


def play_episode(
    adapter: EnvAdapter, episode: Episode, players: Mapping[str, Player], others: Player, watchers: Sequence[Watcher]
) -> Episode:
    """Play `episode` to its end and return it; `others` acts for each agent without a player.

    Raises EnvironmentFailed if the environment breaks, and Stopped.
    """
    result = adapter.reset(episode.seed)
    for watcher in watchers:
        watcher.began(episode)
    _note(adapter, episode, result, watchers)
    gone: set[int] = set()
    while not result.over:
        actions = []
        gone.update(end.slot for end in result.ended)
        for decision in decisions(adapter, result, gone):
            actions.append(players.get(decision.agent, others)(decision))
            for watcher in watchers:
                watcher.decided(decision, actions[-1])
        gone.difference_update(result.deciding)
        result = adapter.act(actions)
        _note(adapter, episode, result, watchers)
    for watcher in watchers:
        watcher.ended(episode)
    return episode


def decisions(adapter: EnvAdapter, result: StepResult, gone: Collection[int]) -> list[Decision]:
    """Return the decisions that `result` asks for, in the order of its agents; slots `gone` ended before."""
    agents, steps = adapter.agents, adapter.env_steps
    masks = result.masks or [None] * len(result.deciding)
    return [
        Decision(agents[slot], slot, observation, mask, adapter.action_space(agents[slot]), steps, slot in gone)
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


PERSON = "you"
"""The name of the person, where other players have the name of their policy."""


def seating(
    team: Team, person: str | None, against: str | None, seats: Mapping[str, str], agents: Sequence[str]
) -> dict[str, str]:
    """Return the name of who plays each of `agents`.

    `seats` says it for some agents. `against` plays the sides that the person does not play, or that the first agent
    does not belong to. All other agents are played as in training; if a league decides that, by the first of its
    policies that can play the agent. Raises ConfigInvalid with every problem.
    """
    problems = list(unknown_agents(person, seats, agents))
    if person is not None and person in seats:
        problems.append(f"seats: you play {person} yourself, so {seats[person]!r} cannot")
    if problems:
        raise ConfigInvalid(problems)
    rivals = _rivals(team, person or agents[0], agents) if against is not None else ()
    found: dict[str, str] = {}
    for agent in agents:
        name = seats.get(agent, against if agent in rivals else None)
        try:
            found[agent] = PERSON if agent == person else _player(team, agent, name)
        except InvalidInput as error:
            problems += error.problems
    if problems:
        raise ConfigInvalid(list(dict.fromkeys(problems)))
    return found


def _rivals(team: Team, agent: str, agents: Sequence[str]) -> list[str]:
    league = team.experiment.league
    sides, _ = sides_of(None if league is None else league.sides, agents)
    own = next((role.side for role in sides.roles if agent in role.agents), None)
    others = [name for role in sides.roles if role.side != own for name in role.agents]
    # In a game of one side, all other agents.
    return others or [name for name in agents if name != agent]


def _player(team: Team, agent: str, name: str | None) -> str:
    try:
        return team.player(agent, name).name
    except ConfigInvalid:
        if name is not None:
            raise
        # The first, because a league may have hundreds of members, whose networks would all be built.
        able = next((policy for policy in team.policies if agent in team[policy].agents), None)
        if able is None:
            raise
        return able


def policy_player(team: Team, names: Mapping[str, str], mode: AskedMode) -> Player:
    """Return a player that asks the policies of `team`."""

    def act(decision: Decision) -> Any:
        info = {} if decision.mask is None else {"action_mask": decision.mask}
        if decision.comes_back:
            team.forget(decision.agent)
        return team.act(decision.agent, decision.observation, info, mode, names.get(decision.agent))

    return act
