"""What came of trying an environment: plain data, which `report` puts into words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Kind = Literal["AEC", "Parallel"]
Masks = Literal["none", "in the observation", "in the info"]


@dataclass(frozen=True, slots=True)
class EnvProblem:
    """Why an environment is not ready: what is wrong, what to do, and the environment's own traceback if it raised."""

    what: str
    remedy: str
    user_traceback: str = ""


@dataclass(frozen=True, slots=True)
class Spread:
    """Smallest, mean and largest of some figures."""

    low: float
    mean: float
    high: float

    @staticmethod
    def of(figures: Sequence[float]) -> Spread | None:
        """The spread of `figures`; None if there are none."""
        return Spread(min(figures), float(np.mean(figures)), max(figures)) if figures else None


@dataclass(frozen=True, slots=True)
class TestOutcome:
    """One of PettingZoo's own tests, and why it did not pass; `where` is the environment's line, if it is known."""

    __test__ = False  # its name must not make pytest collect it

    name: str
    verdict: Literal["passed", "failed", "left out"]
    why: str = ""
    where: str = ""


@dataclass(frozen=True, slots=True)
class GroupOutcome:
    """The agents of one name, as far as they see and do the same.

    `legal_mean` of `num_actions` are legal on average where there are masks. `decisions` are agent steps per agent and
    episode, `returns` per agent and episode. `never_acted` are its agents without a single decision. `algorithms` says
    of each by name why it cannot be used, or nothing if it can.
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
    terminated: int = 0
    truncated: int = 0
    reward_unattributed: float = 0.0
    never_acted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Speed:
    """Env steps per second: `bare` with random legal actions, and of one rollout worker with untrained `networks`.

    The shares are of the worker's time.
    """

    bare_env_steps_per_s: float
    worker_env_steps_per_s: float
    num_envs: int
    networks: str
    env_share: float
    policy_share: float
    bookkeeping_share: float

    @property
    def ratio(self) -> float:
        """How much of the bare speed the worker keeps."""
        return self.worker_env_steps_per_s / self.bare_env_steps_per_s


@dataclass(frozen=True, slots=True)
class Episodes:
    """The random episodes.

    `out_of_time_s` is set where time was up before all of the `asked` were played, and `failed_in` is the number, from
    1, of the episode in which the environment failed. `conserved` says whether rows and unattributed reward came to
    what the environment issued (None: nothing to compare), `zero_sum` whether every episode's returns sum to exactly
    zero (None: they are all zero).
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
    """Everything that was found. `reproducible` is None where it could not be found out; `differs` says what did."""

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
        """Whether nothing is wrong."""
        return not self.problems

    def __str__(self) -> str:
        from marlflow.check_env.report import as_text

        return as_text(self)
