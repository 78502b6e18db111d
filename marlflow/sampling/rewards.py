"""Convert rewards of environments, and what is read of infos, to finite numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.info_columns import InfoColumn


class WrongReward(Exception):
    """A reward, at `position`, that is not a finite number."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(position, reason)
        self.position, self.reason = position, reason


def reward_values(rewards: Sequence[Any]) -> Array:
    """Return `rewards` as float64 [N]; raises WrongReward for the first that is not a finite number."""
    try:
        values = np.array(rewards, np.float64)
    except (TypeError, ValueError):
        values = np.empty(0)
    if values.shape == (len(rewards),) and np.isfinite(values).all():
        return values
    # One by one, to find the wrong reward or accept arrays of one number.
    return np.array([_finite(position, reward, "the reward") for position, reward in enumerate(rewards)])


def info_values(
    columns: Sequence[InfoColumn], infos: Sequence[Mapping[str, Any] | None], is_read: Array, acted: Array
) -> Array:
    """Return the columns of N agents' infos as float64 [K, N], NaN where not `is_read` (bool [K, N]) or not given.

    Numbers of agents that had not `acted` (bool [N]), since they were dead, count only if they are added up. Raises
    WrongReward for the first number that a column of rows lacks, or that is not finite.
    """
    values = np.empty((len(columns), len(infos)))
    for row, (column, used) in enumerate(zip(columns, is_read, strict=True)):
        given = [column.of(info) for info in infos]
        if column.is_in_rows:
            has_to_be = used & (acted | (column.adds & np.array([value is not None for value in given])))
            values[row] = _required(column, given, has_to_be)
        else:
            values[row] = np.where(acted | column.adds, _measured(given), np.nan)
    return values


def last_values(columns: Sequence[InfoColumn], infos: Sequence[Mapping[str, Any] | None]) -> Array | None:
    """Return the columns of N agents' last infos as float64 [K, N], NaN where not given; None if nothing is."""
    if not columns or not any(infos):
        return None
    values = np.array([_measured([column.of(info) for info in infos]) for column in columns])
    return None if np.isnan(values).all() else values


def _required(column: InfoColumn, given: Sequence[Any], is_read: Array) -> Array:
    values = np.asarray(given) if all(type(value) in _NUMBERS for value in given) else np.empty(0)
    if values.shape == is_read.shape and values.dtype.kind in "biuf" and np.isfinite(values).all():
        return np.where(is_read, values, np.nan)
    numbers = []
    for at, (value, used) in enumerate(zip(given, is_read.tolist(), strict=True)):
        if used and value is None:
            raise WrongReward(at, not_given(column))
        numbers.append(_finite(at, value, f"info[{column.key!r}]") if used else np.nan)
    return np.array(numbers)


def _measured(given: Sequence[Any]) -> list[float]:
    # Figures of episodes are no reason to break one.
    numbers = [None if value is None else _number(value) for value in given]
    return [np.nan if number is None else number for number in numbers]


def _number(value: Any) -> float | None:
    """Return a finite number, or an array of one, as a float; else None."""
    try:
        number = np.asarray(value)
    except (TypeError, ValueError, RuntimeError):
        return None
    if number.size != 1 or number.dtype.kind not in "biuf" or not np.isfinite(number).all():
        return None
    return float(number.item())


_NUMBERS = frozenset({float, int, bool, np.float64, np.float32})


def not_given(column: InfoColumn) -> str:
    """Return what is wrong if an env step lacks a column of rows."""
    way_out = f"take {column.name!r} out of policies.<id>.columns and reward_from, and parts out that read it"
    return (
        f"step() gave no info[{column.key!r}] for an agent that acted, and its policy has a column {column.name!r}; "
        f"give 0.0 where there is none, or {way_out}"
    )


def _finite(position: int, value: Any, what: str) -> float:
    if (number := _number(value)) is None:
        several = (
            value.size > 1 if isinstance(value, np.ndarray) else isinstance(value, list | tuple) and len(value) > 1
        )
        way_out = "; a wrapper can weigh its objectives and add them up" if several else ""
        raise WrongReward(position, f"{what} is {value!r}, not a finite number{way_out}")
    return number
