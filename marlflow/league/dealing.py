"""The matchmaker of a league: whose turn it is, against whom, and when snapshots are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

import numpy as np

from marlflow.base.serialization import Tree
from marlflow.league.members import Members
from marlflow.league.modes import LeagueMode, LeagueView, SnapshottingMode, pick
from marlflow.league.payoffs import Game, Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.snapshots import SnapshotRules
from marlflow.sampling.matchmaking import EpisodeId
from marlflow.sampling.population import PopulationChange
from marlflow.sampling.receipts import EpisodeResult

Teammates = Literal["self", "past", "population"]


@dataclass(frozen=True, slots=True)
class Launch:
    """A live policy whose turn it is, and the role that it takes."""

    policy: str
    role: int


def launches(members: Members, shares: Mapping[str, float]) -> list[Launch]:
    """Return every live policy that has a share of the games, in every role that it can play."""
    roles = range(len(members.sides.roles))
    return [
        Launch(policy, role)
        for policy in members.incarnations
        if shares.get(policy, 1.0) > 0
        for role in roles
        if members.plays(policy, role)
    ]


class LeagueMatchmaker:
    """Deals the games of a league, counts their outcomes, and takes snapshots of live policies.

    The policy that has had the smallest part of its share is next, in the role that it has had least often. So policies
    have games in proportion to their shares (default 1), and each its roles equally often, both to within one game.
    """

    def __init__(
        self,
        members: Members,
        mode: LeagueMode,
        payoffs: Payoffs,
        ratings: Ratings,
        rules: SnapshotRules,
        shares: Mapping[str, float] | None = None,
        teammates: Teammates = "self",
    ) -> None:
        self.members = members
        self.payoffs = payoffs
        self.ratings = ratings
        self._mode = mode
        self._rules = rules
        self._teammates = teammates
        self._view = LeagueView(members, payoffs)
        self._shares = {policy: float((shares or {}).get(policy, 1.0)) for policy in members.incarnations}
        self._launches = launches(members, self._shares)
        self._turns = dict.fromkeys(self._launches, 0)
        self._snapshot_at = dict.fromkeys(members.incarnations, 0)
        # The last episode counted of each environment.
        self._counted: dict[int, int] = {}
        self._env_steps = 0
        self.games = 0
        self.epoch = 0

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        """Return the member of each agent."""
        launch = self._next_turn(episode, generator)
        sides = self.members.sides
        own_side = sides.roles[launch.role].side
        profile = []
        for number, role in enumerate(sides.roles):
            if number == launch.role:
                profile.append(launch.policy)
            elif role.side == own_side:
                profile.append(self._teammate(launch.policy, number, generator))
            else:
                rival = self._mode.rival(self._view, launch.policy, number, generator)
                profile.append(rival if rival is not None else self._anybody(launch.policy, number, generator))
        return sides.matchup(profile)

    def _next_turn(self, episode: EpisodeId, generator: np.random.Generator) -> Launch:
        if episode.env < 0:
            # Trial and evaluation episodes are no turns.
            return self._launches[int(generator.integers(len(self._launches)))]
        turns: dict[str, int] = {}
        for launch, count in self._turns.items():
            turns[launch.policy] = turns.get(launch.policy, 0) + count
        # Webster's method of apportionment.
        policy = min(turns, key=lambda name: (turns[name] + 0.5) / self._shares[name])
        turn = min((launch for launch in self._launches if launch.policy == policy), key=self._turns.__getitem__)
        self._turns[turn] += 1
        return turn

    def _teammate(self, launcher: str, role: int, generator: np.random.Generator) -> str:
        past = self.members.past_in(role)
        if self._teammates == "past" and past:
            return pick(past, generator)
        if self._teammates == "population":
            return pick([*self.members.live_in(role), *past, *self.members.fixed_in(role)], generator)
        return self._anybody(launcher, role, generator)

    def _anybody(self, launcher: str, role: int, generator: np.random.Generator) -> str:
        found = self._view.live(launcher, role, generator)
        return found if found is not None else pick(self.members.fixed_in(role), generator)

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        """Count a round's training games, each once, in an order that does not depend on which worker was faster."""
        roles = self.members.sides.roles
        for result in sorted(results, key=lambda one: (one.tick, one.env, one.episode)):
            if result.episode <= self._counted.get(result.env, -1):
                continue
            self._counted[result.env] = result.episode
            returns = tuple(fsum(result.returns[agent] for agent in role.agents) / len(role.agents) for role in roles)
            game = Game(self.members.sides.profile(result.matchup), returns, result.env_steps)
            self.payoffs.add(game)
            self.games += 1
            self._env_steps += result.env_steps

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Take the snapshots that are due; frozen entries are never forgotten, so that old rivals stay available."""
        frozen = {}
        for policy in self.members.incarnations:
            since = agent_steps[policy] - self._snapshot_at[policy]
            is_first = not any(one.policy == policy for one in self.members.snapshots.values())
            is_due = self._rules.holds(policy, since, is_first, self._rivals(policy), self.payoffs)
            if is_due or (
                isinstance(self._mode, SnapshottingMode) and self._mode.snapshot_due(self._view, policy, since)
            ):
                snapshot = self.members.add(policy, published[policy], self._env_steps, agent_steps[policy])
                self._snapshot_at[policy] = agent_steps[policy]
                self.ratings.inherit(snapshot.name, policy)
                frozen[snapshot.name] = policy
        self.epoch += bool(frozen)
        return PopulationChange(freeze=frozen)

    def _rivals(self, policy: str) -> list[str]:
        """Return the snapshots that `policy` can meet."""
        roles = self.members.rival_roles(policy)
        return list(dict.fromkeys(name for role in roles for name in self.members.past_in(role)))

    def state(self) -> Tree:
        """Return all that later games depend on."""
        return {
            "members": self.members.state(),
            "payoffs": self.payoffs.state(),
            "ratings": self.ratings.state(),
            "turns": [[launch.policy, launch.role, count] for launch, count in self._turns.items()],
            "snapshot_at": dict(self._snapshot_at),
            "counted": [[env, episode] for env, episode in self._counted.items()],
            "games": self.games,
            "env_steps": self._env_steps,
            "epoch": self.epoch,
        }

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned."""
        self.members.load_state(tree["members"])
        self.payoffs.load_state(tree["payoffs"])
        self.ratings.load_state(tree["ratings"])
        turns = {Launch(policy, role): count for policy, role, count in tree["turns"]}
        self._turns = {launch: turns.get(launch, 0) for launch in self._launches}
        self._snapshot_at.update(tree["snapshot_at"])
        self._counted = dict(tree["counted"])
        self._env_steps = tree["env_steps"]
        self.games = tree["games"]
        self.epoch = tree["epoch"]
