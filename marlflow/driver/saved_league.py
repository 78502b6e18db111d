"""The league in a run's newest checkpoint: its tables and ratings, and the parameters of its members.

Nothing is unpickled or imported: a checkpoint is arrays and JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable, ConfigInvalid
from marlflow.base.near import meant
from marlflow.base.serialization import Tree, from_bytes
from marlflow.driver.checkpoint_notes import Notes, notes_of
from marlflow.driver.checkpointing import DRIVER, newest, usable
from marlflow.driver.frozen_policies import frozen_file
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.runtime.checkpoint_files import learner_file
from marlflow.runtime.checkpoints import Checkpoint


@dataclass(frozen=True, slots=True)
class SavedLeague:
    """A league as it was at a checkpoint.

    `algorithms` has the name of each policy's, `agent_steps` the number that each live policy has sampled. `games` and
    `env_steps` are those of training games.
    """

    checkpoint: Checkpoint
    notes: Notes
    members: Members
    train: Payoffs
    matches: Payoffs
    ratings: Ratings
    algorithms: Mapping[str, str]
    agent_steps: Mapping[str, int]
    games: int
    env_steps: int
    epoch: int

    @property
    def tables(self) -> Mapping[str, Payoffs]:
        """Both payoff tables by name."""
        return {"train": self.train, "match": self.matches}

    @property
    def payoffs(self) -> Payoffs:
        """The table that standings are made of: that of matches, or of training games if none were played."""
        return self.matches if self.matches.cells else self.train

    def versions(self) -> dict[str, int]:
        """Return the version of each live policy; raises CheckpointUnusable."""
        versions: dict[str, int] = {}
        with usable(self.checkpoint):
            for learner, about in self.notes.identity["learners"].items():
                version = int(self.learner_state(learner)["version"])
                versions |= {policy: version for policy in about["policies"] if self.members.is_live(policy)}
        return versions

    def learner_state(self, learner: str) -> Tree:
        """Return the saved state of a learner."""
        return from_bytes(self.checkpoint.read(learner_file(learner)))


@dataclass(frozen=True, slots=True)
class MemberParameters:
    """A member's parameters, float32 [P], and its description as plain data."""

    flat: Array
    description: Mapping[str, Any]


def saved_league(run_dir: Path) -> SavedLeague:
    """Read the newest whole checkpoint of a run.

    Raises CheckpointUnusable if there is none or it is malformed, ConfigInvalid if the run has no league.
    """
    checkpoint = newest(run_dir)
    notes = notes_of(checkpoint)
    with usable(checkpoint):
        driver = from_bytes(checkpoint.read(DRIVER))
        dealer = driver.get("dealer") or {}
        state = dealer.get("matchmaker")
        if not (isinstance(state, Mapping) and {"members", "payoffs", "ratings"} <= set(state)):
            raise ConfigInvalid(
                [
                    f"{run_dir} has no league: who plays whom was "
                    f"{'dealt by a matchmaker of another kind' if dealer else 'fixed'}; start a run with one: "
                    "marlflow train env=connect_four league=pfsp"
                ]
            )
        return _league(checkpoint, notes, driver["tally"]["policies"], state)


def matchmaker_state(checkpoint: Checkpoint) -> Tree:
    """Return the state of the league's matchmaker in a checkpoint of `saved_league`."""
    state: Tree = from_bytes(checkpoint.read(DRIVER))["dealer"]["matchmaker"]
    return state


def _league(checkpoint: Checkpoint, notes: Notes, totals: Mapping[str, Any], state: Mapping[str, Any]) -> SavedLeague:
    members = Members.from_state(state["members"])
    live = list(members.incarnations)
    is_symmetric = bool(notes.identity.get("league", {}).get("symmetric", False))
    train = Payoffs(members.sides, live, symmetric=is_symmetric)
    matches = Payoffs(members.sides, live, symmetric=is_symmetric)
    ratings = Ratings(live)
    train.load_state(state["payoffs"])
    if state.get("matches") is not None:
        matches.load_state(state["matches"]["payoffs"])
    ratings.load_state(state["ratings"])
    if problems := [text for payoffs in (train, matches) for text in _problems(members, payoffs)]:
        raise ValueError(problems[0])
    return SavedLeague(
        checkpoint,
        notes,
        members,
        train,
        matches,
        ratings,
        {name: str(policy["algorithm"]) for name, policy in notes.identity["policies"].items()},
        {policy: int(totals[policy]["agent_steps_sampled"]) for policy in live},
        int(state["games"]),
        int(state["env_steps"]),
        int(state["epoch"]),
    )


def _problems(members: Members, payoffs: Payoffs) -> Iterator[str]:
    """Yield profiles and pairs of members or roles that the league does not have."""
    known, roles = set(members.names), len(members.sides.roles)
    for profile in payoffs.cells:
        if len(profile) != roles or not known.issuperset(profile):
            yield f"a profile is {profile!r:.80}"
    for role, member, other_role, other in payoffs.pairs:
        if not (0 <= role < roles and 0 <= other_role < roles and {member, other} <= known):
            yield f"a pair is {(role, member, other_role, other)!r:.80}"


def member_parameters(league: SavedLeague, member: str, run_dir: Path) -> MemberParameters:
    """Return a member's parameters as its policy's workers have them, and what describes them.

    Raises ConfigInvalid for a member that the league does not have or that has no parameters, CheckpointUnusable for a
    malformed checkpoint.
    """
    members = league.members
    if member not in members.names:
        raise ConfigInvalid(
            [f"the league of {run_dir} has no member {member!r}{meant(member, members.names, 'its members are')}"]
        )
    policy, snapshot = members.policy_of(member), members.snapshots.get(member)
    with usable(league.checkpoint):
        if snapshot is not None:
            version, scheduled, flat = _frozen(league, member)
        elif members.is_live(member):
            version, scheduled, flat = _live(league, member)
        else:
            raise ConfigInvalid([f"member {member!r} never learned, so it has no parameters to export"])
        about = league.notes.identity["policies"][policy]
        return MemberParameters(
            flat,
            {
                "member": member,
                "policy": policy,
                "version": version,
                "incarnation": members.incarnations[member] if snapshot is None else snapshot.incarnation,
                "env_steps": league.env_steps if snapshot is None else snapshot.env_steps,
                "agent_steps": league.agent_steps[policy] if snapshot is None else snapshot.agent_steps,
                "run": league.notes.run,
                "algorithm": about["algorithm"],
                "model": about["model"],
                "observation_space": about["observes"],
                "action_space": about["acts"],
                "roles": [role.name for i, role in enumerate(members.sides.roles) if members.plays(member, i)],
                "scheduled": scheduled,
            },
        )


def _frozen(league: SavedLeague, member: str) -> tuple[int, dict[str, float], Array]:
    name = frozen_file(member)
    if name not in league.checkpoint.names:
        raise CheckpointUnusable([f"it does not have the parameters of {member}, which the run has forgotten"])
    tree = from_bytes(league.checkpoint.read(name))
    return int(tree["version"]), dict(tree["scheduled"]), _as_parameters(tree["flat"])


def _live(league: SavedLeague, policy: str) -> tuple[int, dict[str, float], Array]:
    learners = league.notes.identity["learners"]
    learner = next(name for name, one in learners.items() if policy in one["policies"])
    if len(learners[learner]["policies"]) > 1:
        others = [name for name, one in league.members.snapshots.items() if one.policy == policy]
        instead = f"; export a snapshot: {others[-1]}" if others else ""
        raise ConfigInvalid(
            [f"learner {learner!r} keeps the parameters of several policies together, {policy!r} among them{instead}"]
        )
    state = league.learner_state(learner)
    return int(state["version"]), {}, _as_parameters(state["published"])


def _as_parameters(flat: Any) -> Array:
    if not isinstance(flat, np.ndarray) or flat.ndim != 1 or flat.dtype != np.float32:
        raise ValueError("parameters are no float32 vector")
    return flat
