"""Receipts: a worker's report about a collect (episode metrics, counts, times, faults), without its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlflow.base.errors import EnvironmentFailed, FaultKind
from marlflow.base.pickling import pickled_by_arguments
from marlflow.flow import StageTimes
from marlflow.policy.actor import EvaluationMode


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode with each agent's return, including rewards of no row."""

    env: int
    episode: int
    env_steps: int
    returns: Mapping[str, float]
    tick: int = 0
    """The collect's tick at the end, to order results of several workers."""
    matchup: Mapping[str, str] = field(default_factory=dict)
    """Agent to policy."""
    fingerprint: int = 0
    """In evaluation, a hash of all observations and actions."""
    truncated: bool = False
    """Whether an agent was truncated in the last env step."""
    infos: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By info column and agent: the sum, including amounts that belong to no row, or the value at the agent's end."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A recovered failure, with fields as in EnvironmentFailed."""

    kind: FaultKind
    where: str
    """The environment, or the name of the process."""
    reason: str
    user_traceback: str
    """Empty for a process."""
    rows_lost: int
    """Agent steps lost, neither delivered nor trained on."""
    replay: str = ""
    """The replay buffer that was lost, if any."""


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class MembersSent:
    """Frozen policies that a worker's process was sent with a call; all 0 for a worker in the driver's process."""

    members: int = 0
    size_bytes: int = 0
    """The size of their parameters; workers on one machine read the same copy."""
    hits: int = 0
    """Frozen policies in the call's matchups that were not sent, as the process had them."""

    def __add__(self, other: MembersSent) -> MembersSent:
        return MembersSent(self.members + other.members, self.size_bytes + other.size_bytes, self.hits + other.hits)


_NOTHING_SENT = MembersSent()


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Results of evaluation episodes in order, and faults."""

    episodes: tuple[EpisodeResult, ...]
    faults: tuple[Fault, ...] = ()
    was_cut: bool = False
    """Whether a deadline passed first; long episodes are then more likely to be missing."""
    sent: MembersSent = _NOTHING_SENT
    not_begun: int = 0
    """Episodes that were not begun, because the request's `within_s` had passed; their length has no influence."""
    compile_s: float = field(default=0.0, compare=False)
    """Seconds in which environments were compiled, which `within_s` does not count; the most of a worker's."""
    acted: Mapping[str, EvaluationMode] = field(default_factory=dict)
    """How policies and frozen entries acted: `sampled` if they drew random numbers, else `greedy`.

    Policies that did not act, or for which an inference actor acts, are missing.
    """

    def __add__(self, other: Evaluated) -> Evaluated:
        """Return both, the other's episodes after these."""
        # A policy that drew one random number was sampled.
        sampled = {name: mode for one in (self, other) for name, mode in one.acted.items() if mode == "sampled"}
        return Evaluated(
            self.episodes + other.episodes,
            self.faults + other.faults,
            self.was_cut or other.was_cut,
            self.sent + other.sent,
            self.not_begun + other.not_begun,
            max(self.compile_s, other.compile_s),
            {**self.acted, **other.acted, **sampled},
        )


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """One policy's part of a collect."""

    rows: int
    """Agent steps."""
    rows_carried: int
    """Agent steps, among `rows`, whose action was taken in an earlier collect."""
    reward_unattributed: float
    """Reward that belongs to no row."""
    version: int
    stage_times: tuple[StageTimes, ...] = ()
    infos_unattributed: Mapping[str, float] = field(default_factory=dict)
    """By credited info column of its rows: the amount that belongs to no row."""


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class CompiledCalls:
    """Rollouts in compiled calls: the programs that were compiled, and notes for the user."""

    compiles: int = 0
    compile_s: float = 0.0
    """In none of the other times of a receipt."""
    note: str = ""


_NOTHING_COMPILED = CompiledCalls()


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class Receipt:
    """One collect of one worker."""

    worker: int
    env_steps: int
    agent_steps: int
    """Agent steps of all policies, recorded or not."""
    episodes: tuple[EpisodeResult, ...]
    policies: Mapping[str, PolicyReceipt]
    """Recorded policies only."""
    agents_vanished: int
    """Number of agents that left without termination or truncation."""
    env_s: float
    """Seconds in environments."""
    policy_s: float
    """Seconds in actors."""
    bookkeeping_s: float
    """The other seconds of the collect."""
    next_episodes: Mapping[int, int] = field(default_factory=dict)
    """Each environment's first episode that has not begun."""
    faults: tuple[Fault, ...] = ()
    next_fragments: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Number of recorded fragments read, by offline policy and environment."""
    sent: MembersSent = _NOTHING_SENT
    began_s: float = 0.0
    """When the collect began (seconds since the epoch, by the clock of the worker's machine)."""
    actions_corrected: int = 0
    """Number of actions that shields replaced."""
    compiled: CompiledCalls = _NOTHING_COMPILED


class FaultLog:
    """A worker's faults; more than `tolerated` broken episodes raise."""

    def __init__(self, tolerated: int = 0) -> None:
        self._tolerated = tolerated
        self.seen = 0
        self._new: list[Fault] = []
        # Since the last `take`.
        self._broke: list[EnvironmentFailed] = []

    def tolerate(self, failure: EnvironmentFailed) -> None:
        """Count a failure; over budget, raise it with the earlier ones since `take`."""
        self.seen += 1
        if self.seen > self._tolerated:
            failure.earlier = tuple(self._broke)
            raise failure
        self._broke.append(failure)

    def report(self, fault: Fault) -> None:
        """Add a fault."""
        self._new.append(fault)

    def take(self) -> tuple[Fault, ...]:
        """Return the faults since the last call."""
        taken = tuple(self._new)
        self._new.clear()
        self._broke.clear()
        return taken


def fault_of(failure: EnvironmentFailed, rows_lost: int = 0) -> Fault:
    """Convert a failure to a fault."""
    return Fault(failure.kind, failure.where, failure.reason, failure.user_traceback, rows_lost)
