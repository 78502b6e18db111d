"""A run's newest checkpoint, with the tables and ratings of its league.

Nothing is unpickled or imported: a checkpoint is arrays and JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marlflow.base.errors import ConfigInvalid
from marlflow.base.serialization import Tree, from_bytes
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.runs.checkpoint_format import Checkpoint, Notes, learner_file, notes_of
from marlflow.runs.saved_runs import DRIVER, chosen, frozen_names, usable


@dataclass(frozen=True, slots=True)
class SavedLeague:
    """A league as it was at a checkpoint.

    `algorithms` has the name of each policy's algorithm, `agent_steps` the agent steps that each live policy has
    sampled. `games` and `env_steps` count training games. `meta` has the meta-strategy of each role, if the mode has
    one.
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
    meta: tuple[Mapping[str, float], ...] = ()

    @property
    def tables(self) -> Mapping[str, Payoffs]:
        """Both payoff tables by name."""
        return {"train": self.train, "match": self.matches}

    @property
    def payoffs(self) -> Payoffs:
        """The table that standings are made of: the matches, or training games if no matches were played."""
        return self.matches if self.matches.cells else self.train

    def versions(self) -> dict[str, int]:
        """Return the version of each live policy; raises CheckpointUnusable."""
        versions: dict[str, int] = {}
        with usable(self.checkpoint):
            for learner, about in self.notes.identity["learners"].items():
                version = int(learner_state(self.checkpoint, learner)["version"])
                versions |= {policy: version for policy in about["policies"] if self.members.is_live(policy)}
        return versions


def learner_state(checkpoint: Checkpoint, learner: str) -> Tree:
    """Return the saved state of a learner."""
    return from_bytes(checkpoint.read(learner_file(learner)))


@dataclass(frozen=True, slots=True)
class SavedRun:
    """A run as it was at a checkpoint.

    `agent_steps` is the number that each policy has sampled. `league` is None if it has none, `dealt` whether another
    matchmaker decided who plays whom.
    """

    run_dir: Path
    checkpoint: Checkpoint
    notes: Notes
    agent_steps: Mapping[str, int]
    league: SavedLeague | None
    dealt: bool

    @property
    def names(self) -> list[str]:
        """All players: the members of the league, or else policies and frozen versions of them."""
        if self.league is not None:
            return self.league.members.names
        return [*self.notes.identity["policies"], *frozen_names(self.checkpoint)]


def saved_run(run_dir: Path, checkpoint: Checkpoint | None = None) -> SavedRun:
    """Read a checkpoint of a run, by default the newest whole one.

    Raises CheckpointUnusable if there is none or it is malformed.
    """
    checkpoint = checkpoint or chosen(run_dir)
    notes = notes_of(checkpoint)
    with usable(checkpoint):
        driver = from_bytes(checkpoint.read(DRIVER))
        dealer = driver.get("dealer") or {}
        state = dealer.get("matchmaker")
        totals = driver["tally"]["policies"]
        agent_steps = {str(policy): int(of_policy["agent_steps_sampled"]) for policy, of_policy in totals.items()}
        league = None
        if isinstance(state, Mapping) and {"members", "payoffs", "ratings"} <= set(state):
            league = _league(checkpoint, notes, agent_steps, state)
        return SavedRun(run_dir, checkpoint, notes, agent_steps, league, bool(dealer))


def saved_league(run_dir: Path, checkpoint: Checkpoint | None = None) -> SavedLeague:
    """Read the league in a checkpoint of a run, by default the newest whole one.

    Raises CheckpointUnusable if there is none or it is malformed, ConfigInvalid if the run has no league.
    """
    return league_of(saved_run(run_dir, checkpoint))


def league_of(run: SavedRun) -> SavedLeague:
    """Return the league of a run; raises ConfigInvalid if it has none."""
    if run.league is None:
        raise ConfigInvalid(
            [
                f"{run.run_dir} has no league: who plays whom was "
                f"{'dealt by a matchmaker of another kind' if run.dealt else 'fixed'}; start a run with one: "
                "marlflow train env=connect_four league=pfsp"
            ]
        )
    return run.league


def matchmaker_state(checkpoint: Checkpoint) -> Tree:
    """Return the state of the league's matchmaker in a checkpoint of `saved_league`."""
    state: Tree = from_bytes(checkpoint.read(DRIVER))["dealer"]["matchmaker"]
    return state


def _league(
    checkpoint: Checkpoint, notes: Notes, agent_steps: Mapping[str, int], state: Mapping[str, Any]
) -> SavedLeague:
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
    mode = state.get("mode") or {}
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
        {policy: agent_steps[policy] for policy in live},
        int(state["games"]),
        int(state["env_steps"]),
        int(state["epoch"]),
        tuple({str(name): float(weight) for name, weight in mixture.items()} for mixture in mode.get("meta", ())),
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
