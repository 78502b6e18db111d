"""What a worker says of a collect, without its rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode: what each agent that took part received in all, whosever row it belongs to.

    `tick` says when in its worker's collect it ended, so that those of several workers can be put in order.
    """

    copy: int
    episode: int
    env_steps: int
    returns: Mapping[str, float]
    tick: int = 0


@dataclass(frozen=True, slots=True)
class PolicyReceipt:
    """What one collect made for one policy: agent steps, carried ones among them, reward that belongs to no row."""

    rows: int
    rows_carried: int
    reward_unattributed: float
    version: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one collect of one worker came to.

    `env_steps` over all copies, `agent_steps` over all agents, those of unrecorded policies too; `policies` has the
    recorded ones; `agents_vanished` counts agents that left unmarked;
    `env_s`, `policy_s` and `bookkeeping_s` share the seconds of the collect among environments, actors and the worker.
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
