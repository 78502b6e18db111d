"""Receipts: what a worker reports about a collect, without its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlflow.base.fault_kind import FaultKind
from marlflow.flow import StageTimes


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode with each agent's return, including rewards that belong to no row.

    `matchup` is agent to policy. `tick` is the tick of the collect at its end, to order results of several workers.
    `fingerprint` is a hash of all observations and actions in evaluation; 0 in training.
    """

    env: int
    episode: int
    env_steps: int
    returns: Mapping[str, float]
    tick: int = 0
    matchup: Mapping[str, str] = field(default_factory=dict)
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure that was recovered from; `rows_lost` agent steps, neither delivered nor trained on, were lost.

    The other fields are as in EnvironmentFailed; for a process `where` names it and `user_traceback` is empty. `replay`
    is the name of a replay buffer that was lost.
    """

    kind: FaultKind
    where: str
    reason: str
    user_traceback: str
    rows_lost: int
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The results of evaluation episodes in order, and faults.

    `was_cut`: a deadline passed first; long episodes are then more likely to be missing.
    """

    episodes: tuple[EpisodeResult, ...]
    faults: tuple[Fault, ...] = ()
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """One collect of one policy: agent steps, carried ones among them, reward of no row, and times of its stages."""

    rows: int
    rows_carried: int
    reward_unattributed: float
    version: int
    stage_times: tuple[StageTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """One collect of one worker.

    `agent_steps` includes unrecorded policies, `policies` does not. `agents_vanished` left without
    termination or truncation. `next_episodes` has each environment's first episode that has not begun. `env_s`,
    `policy_s` and `bookkeeping_s` divide the collect's seconds among environments, actors and the worker.
    `next_fragments` has the number of recorded fragments read, by offline policy and environment.
    """

    worker: int
    env_steps: int
    agent_steps: int
    episodes: tuple[EpisodeResult, ...]
    policies: Mapping[str, PolicyReceipt]
    agents_vanished: int
    env_s: float
    policy_s: float
    bookkeeping_s: float
    next_episodes: Mapping[int, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    next_fragments: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
