"""The matchmaker of a league: which matchups are dealt, and when snapshots are taken.

A *matchup* says which member plays each agent in one episode, and to *deal* is to choose the matchup of an episode. A
*side* is a group of agents with one objective; a *role* is the agents of a side that one member plays. A *live seat* is
a live policy in one role. The matchmaker first chooses the live seat that an episode is dealt for, and then the members
of all other roles: teammates on the same side, rivals on the other sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.random import key
from marlflow.base.serialization import Tree
from marlflow.league.league import MatchRules, SnapshotRules, Teammates
from marlflow.league.matches import Matches
from marlflow.league.members import Members, Snapshot
from marlflow.league.mode_answers import matches_wanted_of, solution_of
from marlflow.league.modes import LeagueMode, LeagueView, pick
from marlflow.league.pairing import next_matches
from marlflow.league.payoffs import GameOutcome, Payoffs, Profile, game_of
from marlflow.league.ratings import Ratings
from marlflow.matchmaking.matchmakers import EpisodeId, Matchmaker, called, loaded
from marlflow.sampling.population import PopulationChange, Reset
from marlflow.sampling.protocol import EvaluationRequest
from marlflow.sampling.receipts import EpisodeResult, Evaluated

_MATCH_RULES = MatchRules()


@dataclass(frozen=True, slots=True)
class LiveSeat:
    """A live policy, and the role that it plays."""

    policy: str
    role: int


def seats_of(members: Members, shares: Mapping[str, float]) -> list[LiveSeat]:
    """Return every live policy that has a share of the games, in every role that it can play."""
    roles = range(len(members.sides.roles))
    return [
        LiveSeat(policy, role)
        for policy in members.incarnations
        if shares.get(policy, 1.0) > 0
        for role in roles
        if members.plays(policy, role)
    ]


class LeagueMatchmaker(Matchmaker):
    """Deals the matchups of a league, counts their outcomes, and takes snapshots of live policies.

    An episode is dealt for the live policy that is furthest below its share of the games, in the role that was dealt
    for it least often. So policies have games in proportion to their shares (default 1), and each policy has its roles
    equally often, both to within one game.

    `matches` has the evaluation games, chosen by `match_rules`, or by a mode with a meta-game. `outcome` decides who
    wins; without it, the returns do.
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
        seed: int = 0,
        match_rules: MatchRules = _MATCH_RULES,
        outcome: GameOutcome | None = None,
    ) -> None:
        self.members = members
        self.payoffs = payoffs
        self.ratings = ratings
        self.matches = Matches(payoffs.emptied(), ratings, outcome=outcome)
        self._outcome = outcome
        self._mode = mode
        self._rules = rules
        self._teammates = teammates
        self._match_rules = match_rules
        self._seed = seed
        self._view = LeagueView(members, payoffs)
        self._shares = {policy: float((shares or {}).get(policy, 1.0)) for policy in members.incarnations}
        # How many episodes were dealt for each live seat.
        self._deals = dict.fromkeys(seats_of(members, self._shares), 0)
        # By environment and episode: the seat that an episode without a result was dealt for.
        self._open: dict[int, dict[int, LiveSeat]] = {}
        self._snapshot_at = dict.fromkeys(members.incarnations, 0)
        # The same of the snapshots that the mode asked for.
        self._due_at = dict.fromkeys(members.incarnations, 0)
        self._resets: list[Reset] = []
        self._env_steps = 0
        self._next_matches_at = match_rules.interval() or 0
        self.games = 0
        self.epoch = 0

    def __call__(self, episode: EpisodeId, agents: Sequence[str], generator: np.random.Generator) -> dict[str, str]:
        sides = self.members.sides
        if self._mode.seats_all_roles:
            return sides.matchup(self._mode.profile(self._view, generator))
        seat = self._next_seat(episode, generator)
        own_side = sides.roles[seat.role].side
        seated = []
        for number, role in enumerate(sides.roles):
            if number == seat.role:
                seated.append(seat.policy)
            elif role.side == own_side:
                seated.append(self._teammate(seat.policy, number, generator))
            else:
                rival = self._mode.rival(self._view, seat.policy, number, generator)
                seated.append(rival if rival is not None else self._live_or_fixed(seat.policy, number, generator))
        return sides.matchup(seated)

    def _next_seat(self, episode: EpisodeId, generator: np.random.Generator) -> LiveSeat:
        if episode.env < 0:
            # Trial and evaluation episodes count for no share: their number must not change how training is dealt.
            return list(self._deals)[int(generator.integers(len(self._deals)))]
        of_env = self._open.setdefault(episode.env, {})
        if episode.episode in of_env:
            # This episode was dealt before and has not begun; the population has changed since then.
            self._deals[of_env[episode.episode]] -= 1
        deals: dict[str, int] = {}
        for seat, count in self._deals.items():
            deals[seat.policy] = deals.get(seat.policy, 0) + count
        # Webster's method of apportionment keeps to the shares game by game; random draws would do so only on average.
        policy = min(deals, key=lambda name: (deals[name] + 0.5) / self._shares[name])
        seat = min((seat for seat in self._deals if seat.policy == policy), key=self._deals.__getitem__)
        self._deals[seat] += 1
        of_env[episode.episode] = seat
        return seat

    def _teammate(self, policy: str, role: int, generator: np.random.Generator) -> str:
        snapshots = self.members.past_in(role)
        if self._teammates == "past" and snapshots:
            return pick(snapshots, generator)
        if self._teammates == "population":
            return pick([*self.members.live_in(role), *snapshots, *self.members.fixed_in(role)], generator)
        return self._live_or_fixed(policy, role, generator)

    def _live_or_fixed(self, policy: str, role: int, generator: np.random.Generator) -> str:
        found = self._view.live(policy, role, generator)
        return found if found is not None else pick(self.members.fixed_in(role), generator)

    def observe(self, results: Sequence[EpisodeResult]) -> None:
        """Count training games, in order."""
        sides = self.members.sides
        for result in results:
            self.payoffs.add(game_of(sides, sides.profile(result.matchup), result, self._outcome))
            of_env = self._open.get(result.env, {})
            # In the order of dealing; episodes before this one will have no result.
            while of_env and (first := next(iter(of_env))) <= result.episode:
                del of_env[first]
            self.games += 1
            self._env_steps += result.env_steps

    def change_population(self, published: Mapping[str, int], agent_steps: Mapping[str, int]) -> PopulationChange:
        """Take the snapshots that are due; snapshots are never forgotten, so that old rivals stay available."""
        frozen: dict[str, str] = {}
        since_due = {policy: agent_steps[policy] - self._due_at[policy] for policy in self.members.incarnations}
        due = self._mode.snapshots_due(self._view, since_due)
        for policy in self.members.incarnations:
            since = agent_steps[policy] - self._snapshot_at[policy]
            is_first = not any(one.policy == policy for one in self.members.snapshots.values())
            # Only the rule `win_rate` needs the rivals, and there may be thousands.
            rivals = self._rivals(policy) if self._rules.win_rate is not None else ()
            is_due = self._rules.holds(policy, since, is_first, rivals, self.payoffs)
            if is_due or policy in due:
                snapshot = self._take_snapshot(policy, published[policy], agent_steps[policy])
                frozen[snapshot.name] = policy
                if policy in due:
                    self._due_at[policy] = agent_steps[policy]
                # The snapshot of the initial parameters causes no reset: the policy has not trained yet.
                by_mode = policy in due or not self._mode.has_snapshot_rules
                if by_mode and not (is_first and self._rules.at_start):
                    self._decide_reset(snapshot)
        if frozen:
            self._choose_dealt()
        self.epoch += bool(frozen)
        return PopulationChange(freeze=frozen)

    def _take_snapshot(self, policy: str, version: int, agent_steps: int) -> Snapshot:
        # The dealer makes a frozen entry of its name with the policy's weights, and sends it to workers with the games
        # that need it: matchmaking.dealer, sampling.population.
        snapshot = self.members.add(policy, version, self._env_steps, agent_steps)
        self._snapshot_at[policy] = agent_steps
        self.ratings.inherit(snapshot.name, policy)
        return snapshot

    def _choose_dealt(self) -> None:
        self.members.choose_dealt(lambda name: self.ratings[name].mu)

    def _decide_reset(self, snapshot: Snapshot) -> None:
        # Seeded by the snapshot's name, so that a resumed run decides the same.
        generator = np.random.default_rng(key(self._seed, *snapshot.name.encode()))
        if (reset := self._mode.reset_after_snapshot(snapshot.policy, generator)) is not None:
            self._resets.append(reset)

    def reset_policies(self) -> list[str]:
        """Return the live policies that the mode may reset."""
        return list(filter(self._mode.may_reset, self.members.incarnations))

    def resets(self) -> Sequence[Reset]:
        """Return the live policies to reset; their outcomes so far and their ratings no longer count."""
        resets, self._resets = self._resets, []
        for reset in resets:
            incarnation = self.members.incarnations[reset.policy]
            self.payoffs.reset(reset.policy, incarnation)
            self.matches.reset(reset.policy, incarnation)
            self.members.incarnations[reset.policy] += 1
        self.epoch += bool(resets)
        return resets

    def _rivals(self, policy: str) -> list[str]:
        """Return the snapshots that `policy` can meet."""
        roles = self.members.rival_roles(policy)
        return list(dict.fromkeys(name for role in roles for name in self.members.past_in(role)))

    def solution(self) -> Sequence[Mapping[str, float]]:
        """Return the league's result: the probability of each member in the mixture of each role.

        The mode's solution if it has one; else the live policies of a role (without any, its other members), with equal
        probabilities.
        """
        members = self.members
        if (solution := solution_of(self._mode, members)) is not None:
            return solution
        roles = range(len(members.sides.roles))
        chosen = [members.live_in(role) or [*members.past_in(role), *members.fixed_in(role)] for role in roles]
        return [{name: 1 / len(names) for name in names} for names in chosen]

    @property
    def meta_strategies(self) -> Mapping[str, Mapping[str, float]]:
        """The solution of the mode by role, if it has one."""
        solution = solution_of(self._mode, self.members) or ()
        return {role.name: mixture for role, mixture in zip(self.members.sides.roles, solution, strict=False)}

    def matches_due(self) -> EvaluationRequest | None:
        """Return the matches to play now, between two rounds; None if there are none.

        Call it until it returns None: then missing games have been requested again, and a meta-game has been solved.
        """
        if (games := self.matches.due()) is not None:
            return games
        if self._mode.has_meta_game:
            wanted = matches_wanted_of(self._mode, self.members, self.matches)
            if not wanted:
                with called(self._mode, "solve"):
                    self._mode.solve(self.members, self.matches.payoffs)
        else:
            wanted = self._matches_by_rule()
        self.matches.request(wanted)
        return self.matches.due()

    def _matches_by_rule(self) -> dict[Profile, int]:
        rules = self._match_rules
        if (every := rules.interval()) is None or self._env_steps < self._next_matches_at:
            return {}
        self._next_matches_at = self._env_steps + every
        return next_matches(self.members, self.matches.payoffs, rules)

    def observe_matches(self, evaluated: Evaluated) -> None:
        self.matches.observe(evaluated)
        if evaluated.was_cut:
            # The resumed run plays matches that the end of the run cut; a meta-game asks for its own missing games.
            self._next_matches_at = self._env_steps
        # A meta-game is between the members that are dealt, so these members stay until it is solved.
        if not self._mode.has_meta_game:
            self._choose_dealt()

    def state(self) -> dict[str, Tree]:
        numbers = {seat: number for number, seat in enumerate(self._deals)}
        # Both are left out if they say nothing new, so that checkpoints of versions without them can be resumed.
        due_at = {} if self._due_at == self._snapshot_at else {"due_at": dict(self._due_at)}
        shares = {"shares": self._uneven_shares} if self._uneven_shares else {}
        with called(self._mode, "state"):
            of_mode = self._mode.state()
        return (
            due_at
            | shares
            | {
                "members": self.members.state(),
                "payoffs": self.payoffs.state(),
                "ratings": self.ratings.state(),
                "matches": self.matches.state(),
                "next_matches_at": self._next_matches_at,
                "mode": of_mode,
                "turns": [[seat.policy, seat.role, count] for seat, count in self._deals.items()],
                "open": np.array(
                    [
                        [env, episode, numbers[seat]]
                        for env, of_env in self._open.items()
                        for episode, seat in of_env.items()
                    ],
                    np.int64,
                ).reshape(-1, 3),
                "snapshot_at": dict(self._snapshot_at),
                "games": self.games,
                "env_steps": self._env_steps,
                "epoch": self.epoch,
            }
        )

    def state_shape(self) -> Tree:
        kept = self.state()
        # Not every state has all keys.
        return {key: kept[key] for key in kept.keys() - {"due_at", "shares"}} | {"mode": self._mode.state_shape()}

    @property
    def func(self) -> LeagueMode:
        """The mode, whose class messages name."""
        return self._mode

    @property
    def _uneven_shares(self) -> dict[str, float]:
        return {policy: share for policy, share in self._shares.items() if share != 1.0}

    def load_state(self, tree: Any) -> None:
        self.members.load_state(tree["members"])
        self.payoffs.load_state(tree["payoffs"])
        self.ratings.load_state(tree["ratings"])
        self.matches.load_state(tree["matches"])
        self._env_steps = tree["env_steps"]
        # Sooner, if the interval is shorter than when the state was saved.
        self._next_matches_at = min(tree["next_matches_at"], self._env_steps + (self._match_rules.interval() or 0))
        if tree["mode"] is not None:
            with loaded(self._mode):
                self._mode.load_state(tree["mode"])
        # Only seats that exist now: a resumed run may have other shares, and so other seats. Turns are in proportion to
        # shares from then on, and do not make up for others before.
        is_as_before = tree.get("shares", {}) == self._uneven_shares
        deals = {LiveSeat(policy, role): count for policy, role, count in tree["turns"] if is_as_before}
        self._deals = {seat: deals.get(seat, 0) for seat in self._deals}
        self._open = {}
        for env, episode, index in tree["open"].tolist():
            policy, role, _ = tree["turns"][index]
            if (seat := LiveSeat(policy, role)) in self._deals:
                self._open.setdefault(env, {})[episode] = seat
        self._snapshot_at.update(tree["snapshot_at"])
        self._due_at.update(tree.get("due_at", tree["snapshot_at"]))
        self.games = tree["games"]
        self.epoch = tree["epoch"]
