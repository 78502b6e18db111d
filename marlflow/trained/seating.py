"""Assigns policies to agents when a run is watched, or when a person plays against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from marlflow.base.errors import ConfigInvalid, InvalidInput
from marlflow.base.spaces import Spaces
from marlflow.config.experiment import Experiment
from marlflow.league.sides import sides_of
from marlflow.policy.actor import AskedMode
from marlflow.runs.saved_runs import unknown_agents
from marlflow.trained.games import Decision, Player

PERSON = "you"
"""The name of the person, where others have that of their policy."""


class LoadedPolicy(Protocol):
    """A policy of a loaded run."""

    @property
    def name(self) -> str:
        """Its name, or that of a member of a league."""
        ...

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it can play."""
        ...

    @property
    def spaces(self) -> Spaces:
        """Its observation and action spaces."""
        ...


class LoadedTeam(Protocol):
    """The policies of a run, as `mf.load` returns them."""

    @property
    def run_dir(self) -> Path:
        """The run's folder."""
        ...

    @property
    def checkpoint(self) -> int:
        """Env steps of the checkpoint."""
        ...

    @property
    def experiment(self) -> Experiment:
        """The description of the run."""
        ...

    @property
    def agents(self) -> Sequence[str]:
        """The agents that the environment declares."""
        ...

    @property
    def policies(self) -> Sequence[str]:
        """The names of the run's policies, and of the members of its league."""
        ...

    def __getitem__(self, name: str) -> LoadedPolicy:
        """Return a policy; raises InvalidInput if there is none of this name."""
        ...

    def make_env(self, render_mode: str | None = None) -> Any:
        """Make the environment of the run; raises ConfigInvalid."""
        ...

    def reset(self, seed: int | None = None, episode: int = 0) -> int:
        """Begin an episode, and return a seed for the environment's reset."""
        ...

    def act(self, agent: str, observation: Any, info: Mapping[str, Any], mode: AskedMode, policy: str | None) -> Any:
        """Return an agent's action."""
        ...

    def player(self, agent: str, policy: str | None = None) -> LoadedPolicy:
        """Return who plays an agent; raises ConfigInvalid."""
        ...


def seating(
    team: LoadedTeam, person: str | None, against: str | None, seats: Mapping[str, str], agents: Sequence[str]
) -> dict[str, str]:
    """Return the name of who plays each of `agents`.

    `seats` says it for some agents. `against` plays the sides that the person does not play, or that the first agent
    does not belong to. Everybody else plays as in training; where a league decides that, the first of its policies that
    can play the agent does. Raises ConfigInvalid with every problem.
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


def _rivals(team: LoadedTeam, agent: str, agents: Sequence[str]) -> list[str]:
    league = team.experiment.league
    sides, _ = sides_of(None if league is None else league.sides, agents)
    own = next((role.side for role in sides.roles if agent in role.agents), None)
    others = [name for role in sides.roles if role.side != own for name in role.agents]
    # In a game of one side, all other agents.
    return others or [name for name in agents if name != agent]


def _player(team: LoadedTeam, agent: str, name: str | None) -> str:
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


def policy_player(team: LoadedTeam, names: Mapping[str, str], mode: AskedMode) -> Player:
    """Return a player that asks the policies of `team`."""

    def act(decision: Decision) -> Any:
        info = {} if decision.mask is None else {"action_mask": decision.mask}
        return team.act(decision.agent, decision.observation, info, mode, names.get(decision.agent))

    return act
