"""AlphaStar's league: main policies, and exploiters that find their weaknesses and are then reset.

Vinyals et al., "Grandmaster level in StarCraft II using multi-agent reinforcement learning", 2019, Nature 575, Methods.
The branches follow the pseudocode in its supplement. Where the paper's text is reported to differ, the defaults are the
text's numbers, and comments give the pseudocode's. The pseudocode also takes no snapshot of an exploiter in a phase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.ranges import Count, Share, Steps
from marlflow.league.members import Members
from marlflow.league.modes import NEGLIGIBLE, LeagueMode, LeagueView, Weighting, pfsp_weights, pick
from marlflow.sampling.population import Reset

AlphaStarRole = Literal["main", "main_exploiter", "league_exploiter"]


@dataclass(frozen=True)
class AlphaStar(LeagueMode):
    """Matchmaking, snapshots and resets of AlphaStar; `roles` has the role of each live policy, `main` if not named.

    Rivals of a main: with probability `pfsp`, all snapshots by PFSP. With probability `verify`, snapshots of main
    exploiters if it beats one of them with a probability below `exploited`, or forgotten snapshots of a main. Else a
    live main, or snapshots of this main if it beats it with a probability of at most `self_play_weak`.

    Rivals of a main_exploiter: a live main; with probability `exploiter_past`, and always if it beats this main with a
    probability below `exploiter_weak`, snapshots of it. Rivals of a league_exploiter: all snapshots by PFSP.

    A snapshot of a main is taken every `phase_agent_steps`. A snapshot of an exploiter is taken when it beats each of
    its rivals (mains for a main_exploiter, snapshots for a league_exploiter) with a probability above `strong`, after
    `min_games` against each, and at the latest after 2 phases (main_exploiter) or 1 (league_exploiter). Then a
    main_exploiter is reset, and a league_exploiter with probability `reset_probability`.
    """

    #: <policy>: main, main_exploiter or league_exploiter; main if not named
    roles: Mapping[str, AlphaStarRole] = field(default_factory=dict)
    phase_agent_steps: Steps = 100_000  #: agent steps from one snapshot of a main to the next
    pfsp: Share = 0.5  #: share of a main's games against all snapshots, more often those that are hard to beat
    verify: Share = 0.15  #: share of a main's games against exploiters that beat it, and forgotten snapshots
    exploiter_past: Share = 0.5  #: share of a main exploiter's games against snapshots of a main
    exploiter_weak: Share = 0.2  #: below this probability to beat a main, a main exploiter meets its snapshots only
    strong: Share = 0.7  #: probability to beat everybody, above which an exploiter has a snapshot
    min_games: Count = 20  #: for strong: games against each, at least
    exploited: Share = 0.3  #: below this probability to beat an exploiter's snapshot, a main meets these
    self_play_weak: Share = 0.3  #: up to this probability to beat another main, a main meets its snapshots instead
    #: what an exploiter begins again with: initial, fresh, or the first snapshot of a policy, such as main@1
    reset_to: str = "initial"
    reset_probability: Share = 0.25  #: of a league exploiter to begin again after its snapshot

    def role_of(self, policy: str) -> AlphaStarRole:
        """Return the role of a live policy."""
        return self.roles.get(policy, "main")

    def problems(self, members: Members) -> list[str]:
        live = list(members.incarnations)
        problems = [
            f"roles names policy {policy!r}, which does not learn here; the policies that learn are {', '.join(live)}"
            for policy in self.roles
            if not members.is_live(policy)
        ]
        if self.pfsp + self.verify > 1.0 + NEGLIGIBLE:
            problems.append(
                f"pfsp ({self.pfsp:g}) and verify ({self.verify:g}) are shares of the same games, and sum to "
                f"{self.pfsp + self.verify:g}; lower one, so that they sum to at most 1"
            )
        if not any(self.role_of(policy) == "main" for policy in live):
            return [
                *problems,
                f"all policies that learn are exploiters ({', '.join(live)}), so there is no main to exploit; leave "
                "one out of league.matchmaker.roles, which makes it a main",
            ]
        return problems + [
            f"policy {policy!r} is a main_exploiter, and no main plays against it; leave a rival of it out of "
            "league.matchmaker.roles, or make it a league_exploiter"
            for policy in live
            if self.role_of(policy) == "main_exploiter" and not self._rival_mains(members, policy)
        ]

    def _rival_mains(self, members: Members, policy: str) -> list[str]:
        rivals = [one for role in members.rival_roles(policy) for one in members.live_in(role)]
        return [one for one in rivals if self.role_of(one) == "main"]

    def solution(self, members: Members) -> Sequence[Mapping[str, float]] | None:
        """Return the mains of each role, each as likely as any other; None if a role has none."""
        mains = [
            [policy for policy in members.live_in(role) if self.role_of(policy) == "main"]
            for role in range(len(members.sides.roles))
        ]
        return [{name: 1 / len(names) for name in names} for names in mains] if all(mains) else None

    def rival(self, view: LeagueView, policy: str, role: int, generator: np.random.Generator) -> str | None:
        frozen = [*view.members.added_in(role), *view.members.past_in(role)]
        kind, draw = self.role_of(policy), generator.random()
        if kind == "league_exploiter" or (kind == "main" and draw < self.pfsp):
            # The paper leaves the league exploiter's weighting open; `capped` is the pseudocode's.
            weighting: Weighting = "hard" if kind == "main" else "capped"
            return _prioritized(view, policy, frozen, weighting, generator) if frozen else None
        mains = [one for one in view.members.live_in(role) if self.role_of(one) == "main"]
        if not mains:
            return None
        main = pick(mains, generator)
        if kind == "main_exploiter":
            return self._exploited(view, policy, main, role, draw, generator)
        if draw < self.pfsp + self.verify and (lost := self._lost_ground_to(view, policy, main, role)):
            return _prioritized(view, policy, lost, "hard", generator)
        return self._in_self_play(view, policy, main, role, generator)

    def _exploited(
        self, view: LeagueView, policy: str, main: str, role: int, draw: float, generator: np.random.Generator
    ) -> str:
        """Return the rival of a main exploiter: `main`, or a snapshot of it, which is weaker.

        The pseudocode has no `exploiter_past`, and 0.1 for `exploiter_weak`.
        """
        snapshots = _snapshots_of(view, main, role)
        weak = view.payoffs.win_probability(policy, main) < self.exploiter_weak
        if snapshots and (weak or draw < self.exploiter_past):
            return _prioritized(view, policy, snapshots, "variance", generator)
        return main

    def _lost_ground_to(self, view: LeagueView, policy: str, main: str, role: int) -> list[str]:
        """Return snapshots of main exploiters if one often beats `policy`, else snapshots of `main` that it forgot.

        Empty if there are neither.
        """
        members = view.members
        exploiters = [one for one in members.past_in(role) if self.role_of(members.policy_of(one)) == "main_exploiter"]
        if exploiters and view.chances(policy, exploiters).min() < self.exploited:
            return exploiters
        snapshots = _snapshots_of(view, main, role)
        chances = view.chances(policy, snapshots)
        kept = without_monotonic_suffix(chances)
        return snapshots[:kept] if kept and chances[:kept].min() < self.strong else []

    def _in_self_play(self, view: LeagueView, policy: str, main: str, role: int, generator: np.random.Generator) -> str:
        snapshots = _snapshots_of(view, main, role)
        if not snapshots or view.payoffs.win_probability(policy, main) > self.self_play_weak:
            return main
        return _prioritized(view, policy, snapshots, "variance", generator)

    def snapshots_due(self, view: LeagueView, agent_steps: Mapping[str, int]) -> list[str]:
        return [policy for policy, since in agent_steps.items() if self.snapshot_due(view, policy, since)]

    def snapshot_due(self, view: LeagueView, policy: str, agent_steps: int) -> bool:
        """Return whether to take a snapshot of `policy`, `agent_steps` after its last one, or after the start."""
        kind = self.role_of(policy)
        phases = 2 if kind == "main_exploiter" else 1
        return agent_steps >= phases * self.phase_agent_steps or (kind != "main" and self._beats_all(view, policy))

    def _beats_all(self, view: LeagueView, policy: str) -> bool:
        members = view.members
        if self.role_of(policy) == "main_exploiter":
            rivals = self._rival_mains(members, policy)
        else:
            rivals = [one for role in members.rival_roles(policy) for one in members.past_in(role)]
        return view.payoffs.beats_all(policy, rivals, self.strong, self.min_games)

    def may_reset(self, policy: str) -> bool:
        return self.role_of(policy) != "main"

    def reset_after_snapshot(self, policy: str, generator: np.random.Generator) -> Reset | None:
        """Return the reset of `policy`, whose trained parameters are in its new snapshot, or None."""
        kind, draw = self.role_of(policy), generator.random()
        if kind == "main_exploiter" or (kind == "league_exploiter" and draw < self.reset_probability):
            return Reset(policy, self.reset_to)
        return None


def without_monotonic_suffix(chances: Array) -> int:
    """Return the number of snapshots before the longest suffix in which each snapshot is at least as hard to beat.

    `chances` [N] are the probabilities to beat snapshots, oldest first. A newer snapshot is usually harder to beat. If
    an older one is harder than a newer one, the policy may have forgotten how to beat it. Without such a snapshot the
    result is 0, as in the pseudocode; else it includes the last older snapshot that is harder, and the one after it.

    >>> without_monotonic_suffix(np.array([0.5, 0.9, 0.8, 0.6])), without_monotonic_suffix(np.array([0.9, 0.8, 0.6]))
    (2, 0)
    """
    rises = np.flatnonzero(chances[:-1] < chances[1:])
    return int(rises[-1]) + 2 if len(rises) else 0


def _snapshots_of(view: LeagueView, policy: str, role: int) -> list[str]:
    return [one for one in view.members.past_in(role) if view.members.policy_of(one) == policy]


def _prioritized(
    view: LeagueView, policy: str, rivals: Sequence[str], weighting: Weighting, generator: np.random.Generator
) -> str:
    return pick(rivals, generator, pfsp_weights(view.chances(policy, rivals), weighting))
