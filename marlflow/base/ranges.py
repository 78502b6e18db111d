"""Ranges of settings, each declared on its field: `alpha: Annotated[float, Range(0, 100)]`.

The names below are the ranges that several fields have. A range holds for every number of its field: of a schedule, a
list or a mapping too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, get_args

INFINITY = math.inf
# At a million steps a second, this many take 31 years.
_MOST_STEPS = 10**15
_LARGEST_FLOAT32 = 3.4e38


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers from `low` to `high`; `above` and `below` exclude the bounds, `infinite` allows infinity.

    In errors, `shown` replaces `low`, and `unit` follows a bound. `low_means` is the note that a run logs where the
    value is `low`, which is allowed but unusual.
    """

    low: float
    high: float
    above: bool = False
    below: bool = False
    infinite: bool = False
    shown: str = ""
    unit: str = ""
    low_means: str = ""

    def problem(self, value: float) -> str | None:
        """Return what `value` should be, such as `must be at least 1`; None if it is in range."""
        # Only comparisons: a whole number of hundreds of digits does not fit into a float.
        if not abs(value) < INFINITY and not (self.infinite and value == INFINITY):
            return "must be a number or inf" if self.infinite else f"must be {self}"
        if value < self.low or (self.above and value == self.low):
            return f"must be {'more than' if self.above else 'at least'} {self.shown or _written(self.low)}{self.unit}"
        if value > self.high or (self.below and value == self.high):
            return f"must be {'less than' if self.below else 'at most'} {_written(self.high)}{self.unit}"
        return None

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest number in range."""
        low = math.nextafter(self.low, INFINITY) if self.above else self.low
        return low, math.nextafter(self.high, -INFINITY) if self.below else self.high

    def __str__(self) -> str:
        if self.low <= -_LARGEST_FLOAT32:
            return "a finite number"
        low = f"{'more than' if self.above else 'at least'} {self.shown or _written(self.low)}"
        high = f"{'less than' if self.below else 'at most'} {_written(self.high)}"
        return f"a number, {low} and {high}{self.unit}"


def _written(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


def declared_range(hint: Any) -> Range | None:
    """Return the first range in an annotation: of the type itself, or of a member, an item or a value; None if none.

    >>> str(declared_range(Share | None)), declared_range(dict[str, float])
    ('a number, at least 0 and at most 1', None)
    """
    found = (one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Range))
    inner = (declared_range(one) for one in get_args(hint) if not isinstance(one, Range))
    return next(found, None) or next((one for one in inner if one is not None), None)


Share: TypeAlias = Annotated[float, Range(0.0, 1.0)]
SomeShare: TypeAlias = Annotated[float, Range(0.0, 1.0, above=True)]
ShareBelowOne: TypeAlias = Annotated[float, Range(0.0, 1.0, below=True)]
Weight: TypeAlias = Annotated[float, Range(0.0, 1e6)]
PositiveWeight: TypeAlias = Annotated[float, Range(0.0, 1e6, above=True)]
Finite: TypeAlias = Annotated[float, Range(-_LARGEST_FLOAT32, _LARGEST_FLOAT32)]
Amount: TypeAlias = Annotated[float, Range(0.0, _LARGEST_FLOAT32)]
Noise: TypeAlias = Annotated[float, Range(0.0, 100.0)]
Threshold: TypeAlias = Annotated[float, Range(0.0, INFINITY, above=True, infinite=True)]
"""A threshold of clipping; infinity disables it."""

LearningRate: TypeAlias = Annotated[float, Range(0.0, 1.0, low_means="nothing is learned")]
ActorLearningRate: TypeAlias = Annotated[float, Range(0.0, 1.0, low_means="the actor learns nothing")]
Discount: TypeAlias = Annotated[
    float, Range(0.0, 1.0, low_means="only the reward of each decision itself counts, and nothing that comes after it")
]

Steps: TypeAlias = Annotated[int, Range(1, _MOST_STEPS)]
StepsOrZero: TypeAlias = Annotated[int, Range(0, _MOST_STEPS)]
Count: TypeAlias = Annotated[int, Range(1, 10**9)]
CountOrZero: TypeAlias = Annotated[int, Range(0, 10**9)]
SmallCount: TypeAlias = Annotated[int, Range(1, 10**6)]
EpisodeCount: TypeAlias = Annotated[int, Range(0, 10**6)]
Processes: TypeAlias = Annotated[int, Range(1, 10_000)]
Seed: TypeAlias = Annotated[int, Range(0, 2**63 - 1)]
Width: TypeAlias = Annotated[int, Range(1, 2**31 - 1)]
Pixels: TypeAlias = Annotated[int, Range(1, 2**16)]
TinyCount: TypeAlias = Annotated[int, Range(1, 1_000)]
CPUs: TypeAlias = Annotated[float, Range(0.0, 1e6)]
GPUs: TypeAlias = Annotated[float, Range(0.0, 1e5)]
CustomResources: TypeAlias = Annotated[float, Range(0.0, 1e15)]
