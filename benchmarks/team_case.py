"""A case of benchmarks/team_bars.py, and the overrides that cases are made of."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from benchmarks.team_values import Probe

TOLERANCE = 1e-6
Metric = Literal["eval_return_mean", "eval_team_return_mean"]


@dataclass(frozen=True)
class Case:
    """Runs of `words` (overrides), whose last evaluation has to be within `low` and `high`, both included.

    In a control the bar says what an algorithm comes to that cannot come to the optimum.
    """

    name: str
    words: Sequence[str]
    low: float = -math.inf
    high: float = math.inf
    metric: Metric = "eval_return_mean"
    policy: str = "agent"
    is_control: bool = False
    probe: Probe | None = None
    error_at_most: float = math.inf
    """What `probe` may return of the trained network."""
    beside: str | None = None
    """The case whose mean over seeds is not to be missed by more than one standard deviation of that case."""

    count: Callable[[Path], tuple[int, str]] | None = None
    """Counts something in the records of a whole run, given its folder; returns the number and a text."""
    counted_from: int = 0
    counted_to: float = 0
    """The least and the largest number that `count` may return."""

    def is_met(self, value: float) -> bool:
        """Return whether the figure is as it has to be."""
        return self.low - TOLERANCE <= value <= self.high + TOLERANCE

    @property
    def env_steps(self) -> int:
        """The env steps of a complete run."""
        return next(int(word.partition("=")[2]) for word in self.words if word.startswith("stop.env_steps="))

    @property
    def bar(self) -> str:
        """The bar in words."""
        if self.low == self.high:
            return f"{self.low:g}"
        if self.low == -self.high:
            return "of its count" if self.count is not None else "of its values"
        bounds = [(">=", self.low), ("<=", self.high)]
        return " and ".join(f"{sign} {bound:g}" for sign, bound in bounds if math.isfinite(bound))


def on_game(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the words for an environment of a module of marlflow.env.games."""
    return (
        "env=python",
        f"env._target_=marlflow.env.games.{module}.parallel_env",
        *(f"env.{word}" for word in arguments),
    )


def learns_with(algorithm: str, policy: str = "agent", **settings: object) -> tuple[str, ...]:
    """Return the words that give a policy an algorithm and settings of it."""
    words = (f"{policy}.algorithm.{name}={value}" for name, value in settings.items())
    return (f"policy@policies.{policy}={algorithm}", *(f"policies.{word}" for word in words))


def learner_of(algorithm: str, policies: Sequence[str], **settings: object) -> tuple[str, ...]:
    """Return the words for one learner of several policies."""
    words = (f"learners.pair.algorithm.{name}={value}" for name, value in settings.items())
    return (f"learner@learners.pair={algorithm}", f"learners.pair.policies=[{','.join(policies)}]", *words)
