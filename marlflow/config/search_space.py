"""The jobs of a sweep: every combination of its values, or a number of random draws."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from marlflow.base.errors import ConfigInvalid
from marlflow.config.compose import config_loader

Draw = Callable[[np.random.Generator], str]


def jobs_of(overrides: Sequence[str], samples: int | None, seed: int) -> list[list[str]]:
    """Return the overrides of each job; call within `composing`.

    Without `samples`, there is a job for each combination of values, and the last key changes fastest. With it, each
    job draws its values independently: one of a list or range with equal probability, and from an interval uniformly,
    or uniformly in the logarithm with `tag(log, interval(...))`. Raises ConfigInvalid for an interval without samples.
    """
    parsed = OverridesParser.create(config_loader()).parse_overrides(list(overrides))
    if samples is None:
        return _combinations(parsed)
    generator = np.random.default_rng(seed)
    draws = [_draw(override) for override in parsed]
    return [[draw(generator) for draw in draws] for _ in range(samples)]


def _combinations(parsed: Sequence[Override]) -> list[list[str]]:
    if lacking := [override.input_line for override in parsed if override.is_interval_sweep()]:
        raise ConfigInvalid([f"{line} has any number of values; say how many trials: samples=20" for line in lacking])
    values = [_listed(override) if override.is_sweep_override() else [str(override.input_line)] for override in parsed]
    return [list(job) for job in itertools.product(*values)]


def _listed(override: Override) -> list[str]:
    return [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]


def _draw(override: Override) -> Draw:
    if not override.is_sweep_override():
        return lambda _: str(override.input_line)
    if override.is_interval_sweep():
        return _drawn_from_interval(override.get_key_element(), override.value())
    choices = _listed(override)
    return lambda generator: choices[int(generator.integers(len(choices)))]


def _drawn_from_interval(key: str, interval: Any) -> Draw:
    low, high, is_log = interval.start, interval.end, "log" in interval.tags
    is_whole = isinstance(low, int) and isinstance(high, int)
    if not low < high or (is_log and low <= 0):
        needs = "above 0 and increasing" if is_log else "increasing"
        raise ConfigInvalid([f"{key}: the ends of interval({low}, {high}) must be {needs}"])

    def draw(generator: np.random.Generator) -> str:
        # A whole number represents the interval from itself to the next one, so all are equally likely.
        top = high + 1 if is_whole else high
        ends = (math.log(low), math.log(top)) if is_log else (low, top)
        value = generator.uniform(*ends)
        number = math.exp(value) if is_log else value
        return f"{key}={min(math.floor(number), high) if is_whole else min(max(number, low), high)}"

    return draw
