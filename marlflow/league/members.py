"""The members of a league: live policies, which learn; snapshots, their frozen versions; and fixed policies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from marlflow.base.serialization import Tree
from marlflow.league.sides import Role, Sides


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A published version of a live policy that the league keeps; `number` counts over all resets of the policy.

    `env_steps` counts the env steps of all games, `agent_steps` the policy's agent steps, when it was taken.
    `incarnation` is the number of resets of the policy before. Its parameters are the frozen entry of the same name, in
    `driver.stored_members`.
    """

    policy: str
    number: int
    version: int
    incarnation: int
    env_steps: int
    agent_steps: int

    @property
    def name(self) -> str:
        """Its id, `main@3`."""
        return f"{self.policy}@{self.number}"


class Members:
    """All members that can be seated, by role.

    `fits` has the agents that each policy can play, `live` the policies that learn; all others are fixed policies,
    which never change. Of each policy the `newest` snapshots are dealt, and the `best` when `choose_dealt` was last
    called; all if both are None. `added` are the fixed policies that modes deal as rivals in addition to snapshots,
    such as members of other runs.

    >>> from marlflow.league.sides import default_sides
    >>> agents = ["player_0", "player_1"]
    >>> members = Members(default_sides(agents), {"main": agents, "random": agents}, live=["main"])
    >>> members.add("main", version=7, env_steps=100, agent_steps=90).name
    'main@1'
    >>> members.live_in(0), members.past_in(1), members.fixed_in(1)
    (['main'], ['main@1'], ['random'])
    """

    def __init__(
        self,
        sides: Sides,
        fits: Mapping[str, Collection[str]],
        live: Sequence[str],
        newest: int | None = None,
        best: int | None = None,
        added: Sequence[str] = (),
    ) -> None:
        self.sides, self._newest, self._best = sides, newest, best
        self.snapshots: dict[str, Snapshot] = {}
        self.incarnations = dict.fromkeys(live, 0)
        self._numbers = dict.fromkeys(live, 0)
        plays = {name: [set(role.agents) <= set(agents) for role in sides.roles] for name, agents in fits.items()}
        self._plays = plays
        roles = range(len(sides.roles))
        self._live = [[name for name in live if plays[name][role]] for role in roles]
        self._fixed = [[name for name in fits if name not in live and plays[name][role]] for role in roles]
        self._added = [[name for name in added if plays[name][role]] for role in roles]
        # By role: the snapshots that are dealt, oldest first.
        self._dealt: list[list[str]] = [[] for _ in roles]

    def __len__(self) -> int:
        return len(self._plays) + len(self.snapshots)

    def plays(self, member: str, role: int) -> bool:
        """Return whether there is this member, and it can play a role."""
        plays = self._plays.get(self.policy_of(member))
        return plays is not None and plays[role]

    def policy_of(self, member: str) -> str:
        """Return the policy that a member is, or is a snapshot of."""
        return self.snapshots[member].policy if member in self.snapshots else member

    @property
    def names(self) -> list[str]:
        """All members: live policies, fixed policies, and snapshots, oldest first."""
        fixed = [policy for policy in self._plays if not self.is_live(policy) and any(self._plays[policy])]
        return [*self.incarnations, *fixed, *self.snapshots]

    def is_live(self, member: str) -> bool:
        """Return whether a member learns."""
        return member in self.incarnations

    def live_in(self, role: int) -> list[str]:
        """Return the live policies that can play a role."""
        return self._live[role]

    def fixed_in(self, role: int) -> list[str]:
        """Return the fixed policies that can play a role."""
        return self._fixed[role]

    def past_in(self, role: int) -> list[str]:
        """Return the snapshots that are dealt for a role, oldest first."""
        return self._dealt[role]

    def added_in(self, role: int) -> list[str]:
        """Return the `added` fixed policies that can play a role."""
        return self._added[role]

    def rival_roles(self, policy: str) -> list[int]:
        """Return the roles in which rivals of a policy can play: all roles of other sides."""
        own = {role.side for number, role in enumerate(self.sides.roles) if self._plays[policy][number]}
        return [number for number, role in enumerate(self.sides.roles) if own - {role.side}]

    def add(self, policy: str, version: int, env_steps: int, agent_steps: int) -> Snapshot:
        """Take a snapshot of a live policy."""
        self._numbers[policy] += 1
        number, incarnation = self._numbers[policy], self.incarnations[policy]
        snapshot = Snapshot(policy, number, version, incarnation, env_steps, agent_steps)
        self._include(snapshot)
        return snapshot

    def _include(self, snapshot: Snapshot) -> None:
        self.snapshots[snapshot.name] = snapshot
        for role, names in enumerate(self._dealt):
            if self._plays[snapshot.policy][role]:
                names.append(snapshot.name)
                of_policy = [name for name in names if self.snapshots[name].policy == snapshot.policy]
                if self._best is None and self._newest is not None and len(of_policy) > self._newest:
                    names.remove(of_policy[0])

    def choose_dealt(self, rating: Callable[[str], float]) -> None:
        """Choose again which snapshots are dealt, by their present ratings."""
        if self._best is None:
            return
        dealt: set[str] = set()
        for policy in self.incarnations:
            names = [name for name, snapshot in self.snapshots.items() if snapshot.policy == policy]
            newest = names[max(0, len(names) - (self._newest or 0)) :]
            best_first = sorted(names, key=lambda name: (rating(name), self.snapshots[name].number), reverse=True)
            dealt.update(newest, best_first[: self._best])
        for role, names_of_role in enumerate(self._dealt):
            names_of_role[:] = [name for name in self.snapshots if name in dealt and self.plays(name, role)]

    def state(self) -> Tree:
        """Return the roles, their players, all snapshots in order, and the counts of live policies."""
        return {
            "sides": list(self.sides.names),
            "roles": [[role.name, role.side, list(role.agents)] for role in self.sides.roles],
            "plays": {policy: list(roles) for policy, roles in self._plays.items()},
            "snapshots": [asdict(snapshot) for snapshot in self.snapshots.values()],
            "incarnations": dict(self.incarnations),
            "numbers": dict(self._numbers),
            "dealt": [list(names) for names in self._dealt],
        }

    @classmethod
    def from_state(cls, tree: Any) -> Members:
        """Return members as saved by `state`, for use without their run."""
        roles = tuple(Role(name, side, tuple(agents)) for name, side, agents in tree["roles"])
        fits = {
            policy: [agent for role, is_played in zip(roles, plays, strict=True) if is_played for agent in role.agents]
            for policy, plays in tree["plays"].items()
        }
        members = cls(Sides(tuple(tree["sides"]), roles), fits, live=list(tree["incarnations"]))
        members.load_state(tree)
        return members

    def load_state(self, tree: Any) -> None:
        """Restore the snapshots and counts that `state` returned."""
        self.snapshots.clear()
        for names in self._dealt:
            names.clear()
        for values in tree["snapshots"]:
            self._include(Snapshot(**values))
        if self._best is not None:
            # As they were chosen before, since the ratings may have changed since then.
            for names, dealt in zip(self._dealt, tree["dealt"], strict=True):
                names[:] = dealt
        self.incarnations.update(tree["incarnations"])
        self._numbers.update(tree["numbers"])
