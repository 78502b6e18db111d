"""Joint segments, and the batches that replays draw from them: rows of several agents, in the order of their episodes.

Mixers and action critics learn from the decisions of all members at one env step, and from what followed them. Rows of
agents that are absent (dead, or not there yet) are zero, and marked so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from marlflow.base.arrays import Array
from marlflow.batches.batch import BOOTSTRAPS, Batch, TrainBatch, for_losses
from marlflow.batches.joint import doubled_rows, joint_rows, seat_of, spread


@dataclass(frozen=True, slots=True)
class JointTransitions(TrainBatch):
    """B independent n-step transitions of a team: one row per env step, with a seat for each agent.

    `columns`, [B, ...] each, of the team: `state` and `next_state` (if the learner needs them), `reward` (discounted
    n-step sums of the team's reward), `discount` (of the value of what follows: discount**k after k steps, 0 after the
    team's termination), `weight` (importance weights), `row_id`, `version`.

    Of each policy `p` with K_p seats, [B, K_p, ...] each, zero where a seat is absent: `p:present` (bool: the agent
    decided), `p:obs`, `p:action`, `p:action_mask` (if masked), `p:reward` (the agent's own, of the first step),
    `p:terminated` (bool: its segment ends there by termination), and after the n steps `p:next_obs`, `p:next_mask` and
    `p:next_present` (bool: it decides again, or its segment was truncated or cut there, so its value counts).
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "JointFragment": "a replay (JoinSegments(...), NStep(...), Insert(), and source(Draw(...), at=replay))",
        "JointBatches": "a replay (JoinSegments(...), NStep(...), Insert(), and source(Draw(...), at=replay))",
    }

    columns: Mapping[str, Array]

    @property
    def rows(self) -> int:
        return sum(int(column.sum()) for name, column in self.columns.items() if name.endswith(":present"))

    @property
    def count(self) -> int:
        return len(self.columns["reward"])

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)

    def mean_version(self) -> float:
        return float(self.columns["version"].mean()) if self.count else float("nan")

    def row_ids(self) -> Array | None:
        return self.columns["row_id"]


_REPLAY = "a replay of sequences (JoinSegments(...), SplitSegments, NStep, Insert, and source(Draw(...), at=replay))"


@dataclass(frozen=True, slots=True)
class JointSequenceTransitions(TrainBatch):
    """S sequences of a team's consecutive joint rows: up to B rows of burn-in, then 1 to L trained rows.

    Trained rows begin at step B; burn-in ends right before it. Missing steps and absent seats are zero.

    `columns` of the team: `valid` (bool [S, B + L + 1]: which joint rows exist, and the step after the last), `trained`
    (bool [S, L]: which trained rows exist), `reward` and `discount` (float32 [S, L], of n-step windows, which end with
    their sequence), `following` (int64 [S, L]: the step after the window, counted from B), `state` ([S, B + L + 1,
    ...], if the learner needs it), `weight` and `row_id` ([S]), `version` ([S, L]).

    Of each policy `p` with K_p seats: `p:obs` [S, B + L + 1, K_p, ...]; `p:valid`, bool [S, B + L + 1, K_p] (the agent
    decided; at the step after the last row, it decides again, or was truncated or cut there, so its value counts);
    `p:memory` [S, K_p, ...], before the sequence's first step, burn-in included, and zero for a seat that is absent
    there; `p:action_mask`, bool [S, L + 1, K_p, A], from step B (if masked); `p:action`, `p:reward` (the agent's own)
    and `p:terminated`, [S, L, K_p, ...].

    No agent decides again in a sequence after its end, except at the step after the last row. So each policy can be
    unrolled over [S * K_p, B + L + 1] with `p:valid`: other steps leave the memory as it is, and an agent that joins
    late begins with zeros. One that returns at the step after the last row has its memory from before its end there.
    """

    made_from: ClassVar[Mapping[str, str]] = {"JointFragment": _REPLAY, "JointBatches": _REPLAY}

    columns: Mapping[str, Array]

    @property
    def rows(self) -> int:
        trained = self.columns["trained"]
        # The step after the last trained row has no row.
        burn_in = self.columns["valid"].shape[1] - trained.shape[1] - 1
        seats = [column for name, column in self.columns.items() if name.endswith(":valid")]
        return sum(int((valid[:, burn_in:-1] & trained[:, :, None]).sum()) for valid in seats)

    @property
    def count(self) -> int:
        return len(self.columns["trained"])

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)

    def mean_version(self) -> float:
        versions = self.columns["version"][self.columns["trained"]]
        return float(versions.mean()) if len(versions) else float("nan")

    def row_ids(self) -> Array | None:
        return self.columns["row_id"]


TeamReward: TypeAlias = Literal["mean", "sum"]
"""A team's reward at an env step: the mean or the sum over the agents that decided."""

_SEATED = ("obs", "action", "action_mask", "reward", "memory")


@dataclass(frozen=True, slots=True)
class JointSegments(Batch):
    """A batch whose N rows are joint rows: one per env step at which an agent of the learner's policies decided.

    Columns of each policy `p` with K_p seats, [N, K_p, ...] and zero where an agent is absent: `p:obs`, `p:action`,
    `p:action_mask` and `p:memory` (if it has them), `p:reward`, `p:present` (bool: the agent decided), `p:terminated`
    (bool: its segment ends there by termination). Columns of the team, [N, ...]: `reward` (float64), `t_env`, and, from
    the first agent present, `version` and, if the learner needs it, `state`.

    Segments are runs of rows of one episode. A segment is also cut where an agent returns after its end, since a new
    trajectory begins there; the agents that decide then are present after the segment. Their properties, [S, ...]:
    `length` (joint rows), `env`, `episode`, `carried`, `terminated` (no agent continues after the last row or was
    truncated there), `truncated` (all agents that did not terminate there were truncated), `seats_left_early` (agents
    truncated before the last row, whose further rewards are in no row), and after the last row `bootstrap_p:obs`,
    `bootstrap_p:mask`, `bootstrap_p:present` (the agent continues, or was truncated there) and `bootstrap_state`.
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "JointBatches": ".then(JoinSegments(learner.seats), at=learner)",
        "JointFragment": ".gather(Concat(agent_steps=...)).then(JoinSegments(learner.seats), at=learner)",
    }

    @property
    def rows(self) -> int:
        """Number of agent steps: of seats that are present."""
        return sum(int(column.sum()) for name, column in self.columns.items() if name.endswith(":present"))

    @property
    def count(self) -> int:
        """Number of joint rows."""
        return len(self.columns["reward"])


def joint_segments(
    batches: Mapping[str, Batch], seats: Mapping[str, Sequence[int]], team_reward: TeamReward = "mean"
) -> JointSegments:
    """Join batches of the same rounds; `seats` has each policy's agent slots, sorted.

    Raises ValueError if an agent has no seat, or decides twice at one env step.
    """
    keys, rows = joint_rows(batches)
    members = [
        _Member.of(policy, batch, rows[policy], seats[policy], keys.shape[1]) for policy, batch in batches.items()
    ]
    runs = _Runs.of(keys, members)
    ends = [member.ends_of(runs) for member in members]
    columns = {"t_env": keys[2], "reward": _team_reward(members, team_reward)}
    segments = runs.segments(keys, members, ends)
    for member, end in zip(members, ends, strict=True):
        columns |= member.columns()
        segments |= member.bootstraps(end, len(runs.start))
    columns["version"] = _of_first_present([member.decisions("version") for member in members], len(runs.run_of))
    if all("state" in member.batch.columns for member in members):
        columns["state"] = _of_first_present([member.decisions("state") for member in members], len(runs.run_of))
        after = [member.after("state", end) for member, end in zip(members, ends, strict=True)]
        segments["bootstrap_state"] = _of_first_present(after, len(runs.start))
    return JointSegments(columns, segments)


class _Ends(NamedTuple):
    """The seats of a policy whose values count after a run: agents that continue, or were truncated at its last row."""

    run: Array
    """[n], in ascending order, then by `seat`."""
    seat: Array
    source: Array
    """The batch's row of the agent's last decision in the run; the row before the next decision if a run follows."""
    segment: Array
    at_end: Array
    """bool: whether that row is the last of its segment."""
    truncated: Array


_Values: TypeAlias = "tuple[Array, Callable[[Array], Array]]"
"""The row or run of each value, [n], in ascending order, and a function from indices to values."""


@dataclass(frozen=True, slots=True)
class _Member:
    """A policy's batch of n rows, with their joint rows and seats, [n] each."""

    policy: str
    batch: Batch
    row: Array
    seat: Array
    source: Array
    """int64 [N, K_p]: the batch's row at each joint row and seat; -1 if absent."""

    @classmethod
    def of(cls, policy: str, batch: Batch, row: Array, slots: Sequence[int], joint_rows: int) -> _Member:
        seat = seat_of(policy, batch["agent"], np.asarray(slots, np.int64))
        source = np.full((joint_rows, len(slots)), -1)
        source[row, seat] = np.arange(batch.rows)
        if doubled := batch.rows - int(np.count_nonzero(source >= 0)):
            raise doubled_rows(doubled)
        return cls(policy, batch, row, seat, source)

    @property
    def present(self) -> Array:
        """Whether the agents decided, bool [N, K_p]."""
        return self.source >= 0

    @property
    def firsts(self) -> Array:
        """The batch's first row of each segment."""
        return self.batch.ends() + 1 - self.batch.segments["length"]

    def dense(self, column: Array) -> Array:
        """Return `column` [n, ...] as [N, K_p, ...]."""
        return spread(column, self.row, self.seat, self.source.shape)

    def columns(self) -> dict[str, Array]:
        """Return the policy's columns."""
        batch, last = self.batch, self.batch.ends()
        # All but the rest of what workers make: columns of infos too.
        seated = [name for name in batch.columns if name in _SEATED or name not in Batch.RESERVED]
        columns = {name: self.dense(batch.columns[name]) for name in seated}
        columns["present"] = self.present
        columns["terminated"] = spread(batch.segments["terminated"], self.row[last], self.seat[last], self.source.shape)
        return {f"{self.policy}:{name}": column for name, column in columns.items()}

    def ends_of(self, runs: _Runs) -> _Ends:
        """Return the seats whose values count after each run."""
        rows = np.where(self.present, np.arange(len(self.source))[:, None], -1)
        latest = np.maximum.reduceat(rows, runs.start, axis=0)
        run, seat = np.nonzero(latest >= 0)
        row = latest[run, seat]
        source = self.source[row, seat]
        segments = self.batch.segments
        segment = np.repeat(np.arange(len(segments["length"])), segments["length"])[source]
        at_end = source == self.batch.ends()[segment]
        truncated = at_end & segments["truncated"][segment]
        # An agent truncated before the others is absent from the next row on, like one that terminated.
        left = at_end & segments["terminated"][segment] | truncated & (row < runs.last[run])
        # After a run that the next one follows, the agents that decide at its first row count, as within a run, and
        # those that were truncated right before it.
        before = np.flatnonzero(runs.is_followed)
        next_source = np.full(latest.shape, -1)
        next_source[before] = self.source[runs.start[before + 1]]
        counts = ~left & (~runs.is_followed[run] | truncated & (next_source[run, seat] < 0))
        ends = [column[counts] for column in (run, seat, source, segment, at_end, truncated)]
        run, seat = np.nonzero(next_source >= 0)
        none, never = np.zeros(len(run), np.int64), np.zeros(len(run), bool)
        followed = run, seat, next_source[run, seat] - 1, none, never, never
        columns = [np.concatenate(pair) for pair in zip(ends, followed, strict=True)]
        order = np.lexsort(columns[1::-1])
        return _Ends(*(column[order] for column in columns))

    def after(self, name: str, ends: _Ends) -> _Values:
        """Return column `name` after the runs."""
        bootstrap = BOOTSTRAPS[name]

        def values(index: Array) -> Array:
            source, at_end = ends.source[index], ends.at_end[index]
            # A run that ends within a segment is followed by the segment's next row. The minimum is only for an index
            # that exists: these values are replaced.
            following: Array = self.batch.columns[name].take(np.minimum(source + 1, self.batch.rows - 1), axis=0)
            following[at_end] = self.batch.segments[bootstrap][ends.segment[index][at_end]]
            return following

        return ends.run, values

    def decisions(self, name: str) -> _Values:
        """Return column `name` of the decisions at each joint row."""
        row, seat = np.nonzero(self.present)
        return row, lambda index: self.batch.columns[name].take(self.source[row[index], seat[index]], axis=0)

    def bootstraps(self, ends: _Ends, runs: int) -> dict[str, Array]:
        """Return the policy's segment properties."""
        shape = (runs, self.source.shape[1])
        found = {"present": spread(np.ones(len(ends.run), bool), ends.run, ends.seat, shape)}
        for column, name in (("obs", "obs"), ("action_mask", "mask")):
            if column in self.batch.columns:
                _, values = self.after(column, ends)
                found[name] = spread(values(np.arange(len(ends.run))), ends.run, ends.seat, shape)
        return {f"bootstrap_{self.policy}:{name}": column for name, column in found.items()}


@dataclass(frozen=True, slots=True)
class _Runs:
    """S maximal runs of joint rows of one episode, cut where an agent returns after its end.

    What follows such a cut is known: the next run's first row.
    """

    start: Array
    last: Array
    run_of: Array
    """[N]"""
    is_followed: Array
    """Whether the next run is of the same episode, [S]."""

    @classmethod
    def of(cls, keys: Array, members: Sequence[_Member]) -> _Runs:
        begins = np.ones(keys.shape[1], bool)
        begins[1:] = (keys[:2, 1:] != keys[:2, :-1]).any(axis=0)
        is_first, episode = begins.copy(), np.cumsum(begins)
        for member in members:
            segments = member.batch.segments
            row, seat = member.row[member.firsts], member.seat[member.firsts]
            order = np.lexsort((row, seat))
            before, after = order[:-1], order[1:]
            # A segment that was cut continues in the next one; only an agent whose trajectory ended returns.
            returns = (segments["terminated"] | segments["truncated"])[before] & (seat[before] == seat[after])
            returns &= episode[row[before]] == episode[row[after]]
            begins[row[after[returns]]] = True
        start = np.flatnonzero(begins)
        is_followed = np.append(~is_first[start[1:]], False)
        return cls(start, np.append(start[1:], len(begins)) - 1, np.cumsum(begins) - 1, is_followed)

    def segments(self, keys: Array, members: Sequence[_Member], ends: Sequence[_Ends]) -> dict[str, Array]:
        """Return the properties of the runs as segments, without the properties of single policies."""
        count = len(self.start)
        carried, early = np.zeros(count, bool), np.zeros(count, np.int64)
        for member in members:
            segments, last = member.batch.segments, member.row[member.batch.ends()]
            of = self.run_of[last]
            carried[self.run_of[member.row[member.firsts]][segments["carried"]]] = True
            left = segments["truncated"] & (last < self.last[of])
            early += np.bincount(of[left], minlength=count)
        goes_on, truncated = (np.zeros(count, bool) for _ in range(2))
        for end in ends:
            goes_on[end.run[~end.truncated]] = True
            truncated[end.run[end.truncated]] = True
        return {
            "length": self.last + 1 - self.start,
            "terminated": ~(goes_on | truncated),
            "truncated": truncated & ~goes_on,
            "carried": carried,
            "env": keys[0, self.start],
            "episode": keys[1, self.start],
            "seats_left_early": early,
        }


def _team_reward(members: Sequence[_Member], team_reward: TeamReward) -> Array:
    total = np.zeros(len(members[0].source))
    for member in members:
        total += member.dense(member.batch.columns["reward"]).sum(axis=1)
    if team_reward == "sum":
        return total
    mean: Array = total / np.sum([member.present.sum(axis=1) for member in members], axis=0)
    return mean


def _of_first_present(parts: Sequence[_Values], count: int) -> Array:
    """Return for each of `count` rows or runs the value of the first part and seat that has one; 0 if none has."""
    found: Array | None = None
    missing = np.ones(count, bool)
    for of, values in parts:
        at, index = np.unique(of, return_index=True)
        new = missing[at]
        taken = values(index[new])
        if found is None:
            found = np.zeros((count, *taken.shape[1:]), taken.dtype)
        found[at[new]] = taken
        missing[at[new]] = False
    assert found is not None, "there is a member at least"
    return found
