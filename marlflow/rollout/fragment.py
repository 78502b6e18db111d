"""What a worker hands over: rows for each policy, and a receipt that says what they are without opening them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class EpisodeResult:
    """A finished episode: what each agent that took part received in all, whosever row it belongs to."""

    copy: int
    episode: int
    env_steps: int
    returns: Mapping[str, float]


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

    `env_steps` over all copies; `policies` has the recorded ones; `agents_vanished` counts agents that left unmarked;
    `env_s`, `policy_s` and `bookkeeping_s` share the seconds of the collect among environments, actors and the worker.
    """

    worker: int
    env_steps: int
    episodes: tuple[EpisodeResult, ...]
    policies: Mapping[str, PolicyReceipt]
    agents_vanished: int
    env_s: float
    policy_s: float
    bookkeeping_s: float


@dataclass(frozen=True, slots=True)
class Fragment:
    """The rows of one policy from one worker's collect (or, gathered, from several), as the driver sees them.

    `payloads` are the batches, or unopened references to them; `closes_round` says that it is its round's last.
    """

    policy: str
    worker: int
    round: int
    closes_round: bool
    rows: int
    rows_carried: int
    payloads: tuple[Any, ...]
