"""What a worker says of a collect, without its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marlflow.base.fault_kind import FaultKind
from marlflow.flow import StageTimes


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode: what each agent that took part received in all, whosever row it belongs to.

    `matchup` says which policy played each agent. `tick` says when in its worker's collect it ended, so that those of
    several workers can be put in order. `fingerprint` is a hash of all that the agents saw and did in an evaluation
    episode; of a training episode it is 0.
    """

    copy: int
    episode: int
    env_steps: int
    returns: Mapping[str, float]
    tick: int = 0
    matchup: Mapping[str, str] = field(default_factory=dict)
    fingerprint: int = 0


@dataclass(frozen=True, slots=True)
class Fault:
    """Something broke and was replaced: `rows_lost` agent steps, not yet delivered or trained on, went with it.

    If an environment broke, the rest is as in EnvironmentFailed. If a process died, `where` names it for a person,
    `reason` says what is known of its end, and `user_traceback` is empty. `replay` is the name of a replay that was
    lost.
    """

    kind: FaultKind
    where: str
    reason: str
    user_traceback: str
    rows_lost: int
    replay: str = ""


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The results of evaluation episodes: those played to their end, in the order asked for, and those given up.

    `was_cut`: a deadline passed before all were played. Long episodes are then missing more often than short ones.
    """

    episodes: tuple[EpisodeResult, ...]
    faults: tuple[Fault, ...] = ()
    was_cut: bool = False


@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """What one collect made for one policy: agent steps, carried ones among them, reward that belongs to no row.

    `finished` says when each stage of its plan ran that runs on the workers.
    """

    rows: int
    rows_carried: int
    reward_unattributed: float
    version: int
    finished: tuple[StageTimes, ...] = ()


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one collect of one worker came to.

    `env_steps` over all copies, `agent_steps` over all agents, those of unrecorded policies too; `policies` has the
    recorded ones; `agents_vanished` counts agents that left unmarked; `next_episodes` is, for each copy, the number of
    the first episode that it has not begun; `faults` are the episodes that were given up;
    `env_s`, `policy_s` and `bookkeeping_s` share the seconds of the collect among environments, actors and the worker;
    `next_fragments` is, for each policy that learns from records and for each copy, how many of its recorded fragments
    it has handed out.
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
