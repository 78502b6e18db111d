"""The matchmaker of a league: whose turn it is, against whom, and when snapshots are taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any, Literal

import numpy as np

from marlflow.base.serialization import Tree
from marlflow.league.members import Members
from marlflow.league.modes import Mode, View, pick
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
    """Return every live policy in every role that it can play; it is dealt as often as its share says."""
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

    Turns go round: the launch that has had the smallest part of its share is next, so that policies have the games of
    their shares, and each its seats equally often, both to within one game.
    """

    def __init__(
        self,
        members: Members,
        mode: Mode,
        payoffs: Payoffs,
        ratings: Ratings,
        rules: SnapshotRules,
        shares: Mapping[str, float] | None = None,
        teammates: Teammates = "self",
    ) -> None:
        self.members, self.payoffs, self.ratings = members, payoffs, ratings
        self._mode, self._rules, self._teammates = mode, rules, teammates
        self._view = View(members, payoffs)
        self._launches = launches(members, shares or {})
        self._shares = [float((shares or {}).get(one.policy, 1.0)) for one in self._launches]
        self._turns = np.zeros(len(self._launches))
        self._snapshot_at = dict.fromkeys(members.incarnations, 0)
        self.games = self.epoch = 0

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        """Return the member of each agent."""
        launch = self._launches[self._next_turn(episode, generator)]
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

    def _next_turn(self, episode: EpisodeId, generator: np.random.Generator) -> int:
        if episode.env < 0:
            # Trial and evaluation episodes are no turns.
            return int(generator.integers(len(self._launches)))
        turn = int(np.argmin((self._turns + 0.5) / self._shares))
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
        """Count training games, in order."""
        roles = self.members.sides.roles
        for result in results:
            returns = tuple(fsum(result.returns[agent] for agent in role.agents) / len(role.agents) for role in roles)
            game = Game(self.members.sides.profile(result.matchup), returns, result.env_steps)
            self.payoffs.add(game)
            self.games += 1

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Take the snapshots that are due; frozen entries are never forgotten, so that old rivals stay available."""
        frozen = {}
        for policy in self.members.incarnations:
            since = agent_steps[policy] - self._snapshot_at[policy]
            is_first = not any(one.policy == policy for one in self.members.snapshots.values())
            if self._rules.holds(policy, since, is_first, self._rivals(policy), self.payoffs):
                total = sum(agent_steps.values())
                snapshot = self.members.add(policy, published[policy], total, agent_steps[policy])
                self._snapshot_at[policy] = agent_steps[policy]
                self.ratings.inherit(snapshot.name, policy)
                frozen[snapshot.name] = policy
        self.epoch += bool(frozen)
        return PopulationChange(freeze=frozen)

    def _rivals(self, policy: str) -> list[str]:
        """Return the snapshots that `policy` can meet."""
        roles = self.members.sides.roles
        own = {role.side for number, role in enumerate(roles) if self.members.plays(policy, number)}
        met = [number for number, role in enumerate(roles) if own - {role.side}]
        return list(dict.fromkeys(name for number in met for name in self.members.past_in(number)))

    def state(self) -> Tree:
        """Return all that later games depend on."""
        return {
            "members": self.members.state(),
            "payoffs": self.payoffs.state(),
            "ratings": self.ratings.state(),
            "turns": self._turns.copy(),
            "snapshot_at": dict(self._snapshot_at),
            "games": self.games,
            "epoch": self.epoch,
        }

    def load_state(self, tree: Any) -> None:
        """Restore what `state` returned."""
        self.members.load_state(tree["members"])
        self.payoffs.load_state(tree["payoffs"])
        self.ratings.load_state(tree["ratings"])
        self._turns = np.array(tree["turns"], np.float64)
        self._snapshot_at.update(tree["snapshot_at"])
        self.games, self.epoch = tree["games"], tree["epoch"]
