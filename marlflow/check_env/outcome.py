"""The result of checking an environment, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["AEC", "Parallel"]
BATCHED_TEST = "batched_test"
"""The name of the test that compares a batched version with environments that are stepped one by one."""
Masks = Literal["none", "in the observation", "in the info"]


@dataclass(frozen=True, slots=True)
class EnvProblem:
    """Why an environment is not ready, what to do, and its traceback if it raised."""

    what: str
    remedy: str
    user_traceback: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, mean and largest of some values."""

    low: float
    mean: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread | None:
        """Return the spread; None without values."""
        return Spread(min(values), float(np.mean(values)), max(values)) if values else None


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """The outcome of one of PettingZoo's tests; `where` is the environment's line, if known."""

    __test__ = False  # its name must not make pytest collect it

    name: str
    verdict: Literal["passed", "failed", "left out"]
    why: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """Agents of one name with equal spaces.

    `legal_mean`: mean number of legal actions, of `num_actions`. `decisions` (agent steps) and `returns` are per agent
    and episode. `common_reward`: whether its agents always received equal rewards (None: never two in one env step).
    `costs`: the sum of `info["cost"]` per agent and episode (None: not all of them have one at every env step).
    `algorithms` has by name the reason why an algorithm cannot be used, or "".
    """

    name: str
    agents: tuple[str, ...]
    observation_space: str
    action_space: str
    masks: Masks
    algorithms: Mapping[str, str]
    num_actions: int | None = None
    legal_mean: float | None = None
    decisions: Spread | None = None
    returns: Spread | None = None
    common_reward: bool | None = None
    costs: Spread | None = None
    terminated: int = 0
    truncated: int = 0
    reward_unattributed: float = 0.0
    never_acted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speed:
    """Env steps per second, `bare` with random actions and in a rollout worker; shares of the worker's time."""

    bare_env_steps_per_s: float
    worker_env_steps_per_s: float
    num_envs: int
    networks: str
    env_share: float
    policy_share: float
    bookkeeping_share: float

    @property
    def ratio(self) -> float:
        """Speed in the worker, relative to bare speed."""
        return self.worker_env_steps_per_s / self.bare_env_steps_per_s


@dataclass(frozen=True, slots=True)
class Episodes:
    """The random episodes.

    `out_of_time_s`: the budget, if it ended before all `asked` episodes. `failed_in`: number, from 1, of the failed
    episode. `conserved`: whether rows and unattributed reward add up to the rewards issued (None: no episodes).
    `zero_sum`: whether the returns of each episode sum to exactly zero (None: all are zero).
    """

    asked: int
    played: int
    env_steps: int
    length: Spread | None
    conserved: bool | None
    zero_sum: bool | None
    agents_vanished: int
    slowest_step_s: float
    out_of_time_s: float | None = None
    failed_in: int | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """The result of a check. `reproducible` is None if unknown; `differs` describes the difference."""

    name: str
    kind: Kind
    agents: tuple[str, ...]
    seed: int
    tests: tuple[TestOutcome, ...] = ()
    groups: tuple[GroupOutcome, ...] = ()
    episodes: Episodes | None = None
    reproducible: bool | None = None
    differs: str = ""
    state: str | None = None
    speed: Speed | None = None
    problems: tuple[EnvProblem, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """Whether there are no problems."""
        return not self.problems

    def __str__(self) -> str:
        from marlflow.check_env.report import as_text

        return as_text(self)
