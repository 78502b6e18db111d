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
    """When a snapshot of each live policy is taken; any of the rules suffices, None turns one off."""

    at_start: bool = True  #: whether the initial parameters are one
    #: agent steps of the policy from one to the next; auto: a tenth of stop.env_steps, 1,000 to 50,000, which it is
    #: without one, or None for a mode that says when; None: the mode says when, or never
    every_agent_steps: Steps | Literal["auto"] | None = "auto"
    #: one when the probability to win is above this against each snapshot that it can meet
    win_rate: ShareBelowOne | None = None
    min_games: Count = 20  #: for win_rate: games against each, at least
    timeout_agent_steps: Steps | None = None  #: for win_rate: agent steps after which there is one in any case
    #: actions in evaluation games: sampled, greedy; auto: greedy for value-based policies, else sampled
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
        return self.win_rate is not None and payoffs.beats_all(policy, rivals, self.win_rate, self.min_games)


_AUTO_MATCHES: Final = (2_000, 100_000)
"""Env steps from one set of matches to the next, at least and at most."""
Teammates = Literal["self", "past", "population"]


@dataclass(frozen=True)
class LeaguePlayer:
    """One policy of a league."""

    #: agents that it plays, as names or globs; None: the group of its name, or else every agent
    plays: Sequence[str] | None = None
    share: Weight = 1.0  #: its share of the games in which it is a policy's turn; 0: it plays only as a rival of others


@dataclass(frozen=True)
class Pool:
    """Which snapshots of each policy are dealt: the newest, and the best by rating.

    The others are kept in checkpoints, and play matches. Among equal ratings, newer ones are better. The choice is made
    again with each snapshot and, unless the mode has a meta-game, after each set of matches.
    """

    newest: Count | None = None  #: of each policy the newest; newest and best None: all
    best: Count | None = None  #: of each policy those with the highest ratings, besides the newest


@dataclass(frozen=True)
class PayoffSettings:
    """How outcomes count."""

    decay: SomeShare = 0.99  #: weight of older games of a learning policy, after each new game
    prior_games: Weight = 4.0  #: weight of the 0.5 at which a probability to win starts, in games


@dataclass(frozen=True)
class RatingSettings:
    """Plackett-Luce ratings, which begin at 25; only learning policies drift."""

    beta: Annotated[float, Range(0.0, 1e3, above=True)] = 25.0 / 6  #: spread of a performance
    tau: Annotated[float, Range(0.0, 1e3)] = 25.0 / 300  #: drift of a learning policy before each game


@dataclass(frozen=True)
class MatchRules:
    """The matches of a league without a meta-game.

    With `workers`, this many processes play all matches and nothing else, also the matches of a meta-game. Training
    then does not wait for games, which count once all games of a set have been played; but a meta-game still makes it
    wait. The inline runtime has one process, so rounds wait there.
    """

    #: env steps from one set of games to the next; auto: a fifth of stop.env_steps, 2,000 to 100,000, which it is
    #: without one; None: no such games
    every_env_steps: Steps | Literal["auto"] | None = "auto"
    games: Count = 40  #: games of a set; pairs with the fewest games are next
    #: who plays: live (pairs with a learning policy), or all: also pairs without one, for half of the games, from which
    #: standings have the weights of members
    pairs: Literal["live", "all"] = "all"
    mirrored: bool = True  #: whether each pair plays all seatings that fit equally often; False: one
    #: processes that play them beside training (with Ray); 0: rollout workers do, and rounds wait
    workers: Annotated[int, Range(0, 10_000)] = 0

    def for_run(self, env_steps: int | None) -> MatchRules:
        """Return the rules with numbers, for a run of `env_steps`; None if these are not limited."""
        return replace(self, every_env_steps=self.interval(env_steps))

    def interval(self, env_steps: int | None = None) -> int | None:
        """Return the env steps from one set of games to the next; None if there are no games."""
        return share_of_run(self.every_env_steps, env_steps, 5, _AUTO_MATCHES)


@dataclass(frozen=True)
class StoreSettings:
    """Limits on where parameters of snapshots are held; the driver has all in files, and those dealt last in memory."""

    #: of all snapshots in the driver's memory, at most; the others are in files of the run's folder
    memory_bytes: Annotated[int, Range(0, 2**60)] = 256 * 2**20
    worker_members: Count = 64  #: snapshots that a worker holds at most, unless it seats more
    #: different snapshots that a worker is dealt at most in a round; None: any number
    distinct_members: Count | None = None


@dataclass(frozen=True)
class League:
    """Live policies, their snapshots and fixed policies, which play each other."""

    matchmaker: LeagueMode = field(default_factory=PFSP)  #: who plays whom, and in some modes when snapshots are taken
    #: {<side>: [[<agents of a role>, ...], ...]}: who competes, by names or globs of the agents that one member plays;
    #: None: each group of agents is a side, or each agent of a single group
    sides: Mapping[str, Sequence[Sequence[str]]] | None = None
    symmetric: bool = False  #: True: sides are interchangeable, and a game counts for every order of them
    #: <policy>: {plays: [<agents>], share: 1.0}; plays None: the group of its name, else all agents; share: of the
    #: games in which it is a policy's turn
    players: Mapping[str, LeaguePlayer] = field(default_factory=dict)
    #: who plays the other roles of one's side: self, past (snapshots) or population (everybody)
    teammates: Teammates = "self"
    #: frozen versions of each policy; any rule suffices, and None turns one off
    snapshots: SnapshotRules = field(default_factory=SnapshotRules)
    pool: Pool = field(default_factory=Pool)  #: which snapshots are dealt; the others stay in checkpoints
    payoffs: PayoffSettings = field(default_factory=PayoffSettings)  #: how outcomes count
    ratings: RatingSettings = field(default_factory=RatingSettings)  #: Plackett-Luce ratings, which begin at 25
    #: {_target_: <function>, ...}: decides who wins a game; None: the highest mean return, a draw if several have it
    outcome: GameOutcome | None = None
    #: evaluation games between members, for ratings and standings
    matches: MatchRules = field(default_factory=MatchRules)
    store: StoreSettings = field(default_factory=StoreSettings)  #: where parameters of snapshots are held
    #: further rivals, which never change: <name>: {from: <run or exported file>, member: <id, such as main@3>}, or of
    #: this run {policy: <policy that does not learn>}
    members: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    trust: Sequence[str] = ()  #: classes outside marlflow that members of other runs may be made of
    #: env steps from one NashConv to the next, in small games of OpenSpiel, of the mixture that the mode ends with,
    #: else of the live policies; None: never
    nash_conv_every_env_steps: Steps | None = None

    def for_run(self, env_steps: int | None) -> League:
        """Return the league with the intervals of snapshots and matches for a run of `env_steps`."""
        snapshots = self.snapshots
        if snapshots.every_agent_steps == "auto" and self.matchmaker.has_snapshot_rules:
            snapshots = replace(snapshots, every_agent_steps=None)
        return replace(self, snapshots=snapshots.for_run(env_steps), matches=self.matches.for_run(env_steps))

    def share(self, policy: str) -> float:
        """Return a policy's share of the games."""
        return self.players[policy].share if policy in self.players else 1.0
