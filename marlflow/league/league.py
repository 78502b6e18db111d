"""The settings of a league: its players and sides, when snapshots of policies are taken, and how games are counted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from marlflow.base.ranges import Count, Range, ShareBelowOne, SomeShare, Steps, Weight
from marlflow.league.modes import PFSP, LeagueMode
from marlflow.league.payoffs import GameOutcome, Payoffs
from marlflow.policy.actor import AskedMode

_AUTO_SNAPSHOTS: Final = (1_000, 50_000)
"""Agent steps from one snapshot to the next, at least and at most."""


def share_of_run(
    steps: int | Literal["auto"] | None, env_steps: int | None, parts: int, bounds: tuple[int, int]
) -> int | None:
    """Return `steps`; for `auto`, one of `parts` equal parts of a run, within `bounds`.

    >>> share_of_run("auto", 100_000, 10, (1_000, 50_000)), share_of_run("auto", None, 10, (1_000, 50_000))
    (10000, 50000)
    """
    if steps != "auto":
        return steps
    least, most = bounds
    return most if env_steps is None else min(most, max(least, env_steps // parts))


@dataclass(frozen=True)
class SnapshotRules:
    """When a snapshot of each live policy is taken; any of the rules suffices, None turns one off.

    `at_start`: its initial parameters. `every_agent_steps`: agent steps since the last snapshot; `auto` is a tenth of
    the run's `stop.env_steps`, at least 1,000 and at most 50,000, which it is without one. `win_rate`: the
    probability to win against each snapshot that it can meet, each after at least `min_games` games, or in any case
    `timeout_agent_steps` after the last. `acts`: how snapshots choose actions in evaluation games; `auto` is as
    learned, greedy for value-based algorithms and sampled for all others.
    """

    at_start: bool = True
    every_agent_steps: Steps | Literal["auto"] | None = "auto"
    win_rate: ShareBelowOne | None = None
    min_games: Count = 20
    timeout_agent_steps: Steps | None = None
    acts: Literal["auto", "sampled", "greedy"] = "auto"

    @property
    def asked_mode(self) -> AskedMode:
        """How snapshots act, in the words of an evaluation."""
        return "as_learned" if self.acts == "auto" else self.acts

    def for_run(self, env_steps: int | None) -> SnapshotRules:
        """Return the rules with numbers, for a run of `env_steps`; None if these are not limited."""
        return replace(self, every_agent_steps=share_of_run(self.every_agent_steps, env_steps, 10, _AUTO_SNAPSHOTS))

    def holds(self, policy: str, agent_steps: int, is_first: bool, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        """Return whether a snapshot of `policy` is due, `agent_steps` after its last one, or after the start."""
        if is_first and self.at_start:
            return True
        return self._by_steps(agent_steps) or self._by_wins(policy, rivals, payoffs)

    def _by_steps(self, agent_steps: int) -> bool:
        limits = (share_of_run(self.every_agent_steps, None, 1, _AUTO_SNAPSHOTS), self.timeout_agent_steps)
        return any(limit is not None and agent_steps >= limit for limit in limits)

    def _by_wins(self, policy: str, rivals: Sequence[str], payoffs: Payoffs) -> bool:
        if self.win_rate is None or not rivals:
            return False
        return all(
            payoffs.games(policy, rival) >= self.min_games and payoffs.win_probability(policy, rival) > self.win_rate
            for rival in rivals
        )


_AUTO_MATCHES: Final = (2_000, 100_000)
"""Env steps from one set of matches to the next, at least and at most."""
Teammates = Literal["self", "past", "population"]


@dataclass(frozen=True)
class LeaguePlayer:
    """One policy of a league: the agents that it plays, as names or globs, and its share of the games.

    `plays` None: the group of its name, or else every agent. A policy whose `share` is 0 plays only as a rival of
    others.
    """

    plays: Sequence[str] | None = None
    share: Weight = 1.0


@dataclass(frozen=True)
class Pool:
    """Which snapshots of each policy are dealt: the `newest`, and the `best` by rating; all if both are None.

    The others are kept in checkpoints, and play matches. Among equal ratings, newer ones are better. The choice is made
    again with each snapshot and, unless the mode has a meta-game, after each set of matches.
    """

    newest: Count | None = None
    best: Count | None = None


@dataclass(frozen=True)
class PayoffSettings:
    """How outcomes count: `decay` is the weight of older games of learning policies after each new game.

    A win probability starts at 0.5, with the weight of `prior_games` games.
    """

    decay: SomeShare = 0.99
    prior_games: Weight = 4.0


@dataclass(frozen=True)
class RatingSettings:
    """Plackett-Luce ratings, which begin at 25: `beta` is the spread of a performance, `tau` the drift per game.

    Only learning policies drift.
    """

    beta: Annotated[float, Range(0.0, 1e3, above=True)] = 25.0 / 6
    tau: Annotated[float, Range(0.0, 1e3)] = 25.0 / 300


@dataclass(frozen=True)
class MatchRules:
    """The matches of a league without a meta-game: at most `games` games for every `every_env_steps` env steps.

    `auto` is a fifth of the run's `stop.env_steps`, at least 2,000 and at most 100,000, which it is without one.

    `pairs`: `live` plays pairs with at least one live policy. `all` also plays pairs of frozen members, with half of
    the games, because the weights of members in standings need them. Pairs with the fewest games are next. `mirrored`:
    each pair plays all seatings that fit, equally often; else only one. None for `every_env_steps` means no matches.

    With `workers`, this many processes play all matches and nothing else, also the matches of a meta-game. Training
    then does not wait for games, which count once all games of a set have been played; but a meta-game still makes it
    wait. The inline runtime has one process, so rounds wait there.
    """

    every_env_steps: Steps | Literal["auto"] | None = "auto"
    games: Count = 40
    pairs: Literal["live", "all"] = "all"
    mirrored: bool = True
    workers: Annotated[int, Range(0, 10_000)] = 0

    def for_run(self, env_steps: int | None) -> MatchRules:
        """Return the rules with numbers, for a run of `env_steps`; None if these are not limited."""
        return replace(self, every_env_steps=self.interval(env_steps))

    def interval(self, env_steps: int | None = None) -> int | None:
        """Return the env steps from one set of games to the next; None if there are no games."""
        return share_of_run(self.every_env_steps, env_steps, 5, _AUTO_MATCHES)


@dataclass(frozen=True)
class StoreSettings:
    """Limits on where parameters of snapshots are held.

    The driver has all of them in files, and the most recently dealt ones, at most `memory_bytes`, in memory. A worker
    has the snapshots that play in its running episodes, and others up to `worker_members` in all. `distinct_members` is
    the most different snapshots that a worker is dealt in a round; None: any number.
    """

    memory_bytes: Annotated[int, Range(0, 2**60)] = 256 * 2**20
    worker_members: Count = 64
    distinct_members: Count | None = None


@dataclass(frozen=True)
class League:
    """Live policies, their snapshots and fixed policies, which play each other.

    `matchmaker` chooses rivals. `sides` maps a side to its roles, each a list of agents (names or globs) that one
    member plays; None: each group of agents is a side, or each agent of a single group. `players` has settings by
    policy. `teammates` play the other roles of the side that a game is dealt for. With `symmetric`, sides are
    interchangeable, and games count for every order of them. `outcome` decides who wins a game; None: the side with the
    highest mean return, a draw if several have it. With `nash_conv_every_env_steps`, for small games of OpenSpiel, the
    NashConv of the league's solution is computed at this interval: of the mixture that is the mode's result, or if it
    has none of the live policies. None: never.

    `members` are further fixed policies as rivals, by name: a member of another run, or an exported file,
    `{"from": <folder or file>, "member": "main@3"}`, or another name for a policy of this run that does not learn,
    `{"policy": "scripted"}`. Imported networks may use marlflow's classes and the classes in `trust`.
    """

    matchmaker: LeagueMode = field(default_factory=PFSP)
    sides: Mapping[str, Sequence[Sequence[str]]] | None = None
    symmetric: bool = False
    players: Mapping[str, LeaguePlayer] = field(default_factory=dict)
    teammates: Teammates = "self"
    snapshots: SnapshotRules = field(default_factory=SnapshotRules)
    pool: Pool = field(default_factory=Pool)
    payoffs: PayoffSettings = field(default_factory=PayoffSettings)
    ratings: RatingSettings = field(default_factory=RatingSettings)
    outcome: GameOutcome | None = None
    matches: MatchRules = field(default_factory=MatchRules)
    store: StoreSettings = field(default_factory=StoreSettings)
    members: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    trust: Sequence[str] = ()
    nash_conv_every_env_steps: Steps | None = None

    def for_run(self, env_steps: int | None) -> League:
        """Return the league with the intervals of snapshots and matches for a run of `env_steps`."""
        return replace(self, snapshots=self.snapshots.for_run(env_steps), matches=self.matches.for_run(env_steps))

    def share(self, policy: str) -> float:
        """Return a policy's share of the games."""
        return self.players[policy].share if policy in self.players else 1.0
