"""Policies without parameters: random, and a user's own function."""

from __future__ import annotations

import functools
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, MarlflowError, UserCodeFailed
from marlflow.base.random import RowRandom
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components
from marlflow.policy.actor import Acted, EvaluationMode, Mode


class RandomActor:
    """Acts uniformly over legal Discrete actions, MultiDiscrete, MultiBinary or a bounded Box.

    Raises ConfigInvalid for other action spaces.
    """

    def __init__(self, action_space: spaces.Space[Any]) -> None:
        self._shape = action_space.shape or ()
        if isinstance(action_space, spaces.Box) and action_space.is_bounded():
            self._low = action_space.low.astype(np.float64).ravel()
            self._width = action_space.high.astype(np.float64).ravel() - self._low
            self._choices = None
            self._is_whole = action_space.dtype.kind != "f"
            if self._is_whole:
                self._width += 1.0
        elif isinstance(action_space, DISCRETE_KINDS):
            self._choices = np.array(choices_of(action_space))
        else:
            raise ConfigInvalid([f"a random policy needs whole-number actions or a bounded Box, not {action_space}"])

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        if action_mask is not None:
            return self._act_legally(action_mask, memory, generator)
        sizes = self._width if self._choices is None else self._choices
        draws = np.stack([generator.uniform() for _ in sizes], axis=-1) * sizes
        if self._choices is not None:
            action = draws.astype(np.int64)
        else:
            action = (self._low + (np.floor(draws) if self._is_whole else draws)).astype(np.float32)
        logp = np.full(len(obs), -np.log(sizes).sum(), np.float32)
        return Acted(action.reshape(len(obs), *self._shape), logp, memory)

    def _act_legally(self, action_mask: Array, memory: Any, generator: RowRandom) -> Acted:
        assert self._choices is not None
        parts = [uniform_legal(part, generator.uniform()) for part in components(action_mask, self._choices.tolist())]
        action = np.stack([chosen for chosen, _ in parts], axis=-1).reshape(len(action_mask), *self._shape)
        logp = -np.sum([np.log(legal, dtype=np.float32) for _, legal in parts], axis=0)
        return Acted(action, logp, memory)

    def probabilities(self, obs: Array, action_mask: Array | None, mode: EvaluationMode) -> Array:
        """Return equal probabilities of all legal actions; raises MarlflowError unless there is one Discrete action."""
        if self._choices is None or len(self._choices) != 1:
            raise MarlflowError("only of one Discrete action can the probabilities be listed")
        legal = np.ones((len(obs), int(self._choices[0])), bool) if action_mask is None else action_mask
        equal: Array = legal / legal.sum(1, keepdims=True)
        return equal

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # No setting of this actor is scheduled.
        pass


def import_path(choose: Callable[..., Any]) -> str:
    """Return the module and name of a function, also of one in a partial, or of the class of a callable object."""
    while isinstance(choose, functools.partial):
        choose = choose.func
    named = choose if hasattr(choose, "__qualname__") else type(choose)
    return f"{named.__module__}.{named.__qualname__}"


class CallableActor:
    """Acts by a user's `choose(obs, action_mask, generator)`, which returns actions [N, ...] of `action_space`.

    Whole numbers are counted from 0, and may come as floats. Without `action_space`, only masked actions are checked,
    as one component.
    """

    def __init__(
        self,
        choose: Callable[[Array, Array | None, RowRandom], Array],
        action_space: spaces.Space[Any] | None = None,
    ) -> None:
        self._choose, self._space = choose, action_space
        self._choices = choices_of(action_space) if isinstance(action_space, DISCRETE_KINDS) else None
        # Where each component begins in a mask.
        self._starts = np.cumsum([0, *(self._choices or ())[:-1]])

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Return the function's actions; raises UserCodeFailed if it raises, or returns what are no legal actions."""
        try:
            action = np.asarray(self._choose(obs, action_mask, generator))
        except BdbQuit:
            raise
        except Exception as error:
            # Without the frame of this method.
            lines = traceback.format_tb(error.__traceback__)[1:]
            raise UserCodeFailed(self._name, f"raised {type(error).__name__}: {error}", "".join(lines)) from error
        each = action.shape[1:] if self._space is None else self._space.shape or ()
        if action.shape != (len(obs), *each):
            raise UserCodeFailed(self._name, f"returned shape {action.shape} for {len(obs)} observations{self._of}")
        choices = (action_mask.shape[1],) if self._choices is None and action_mask is not None else self._choices
        if choices is not None:
            action = self._whole_numbers(action)
            rows = action.reshape(len(action), -1)
            is_outside = (rows < 0) | (rows >= choices)
            if action_mask is not None:
                self._check(action, is_outside | self._is_masked(rows, is_outside, action_mask), "illegal action")
            else:
                self._check(action, is_outside, "action", f", counted from 0{self._of}")
        elif isinstance(box := self._space, spaces.Box):
            action = action.astype(box.dtype, copy=False)
            # NaN is neither above nor below.
            self._check(action, ~((action >= box.low) & (action <= box.high)), "action", self._of)
        return Acted(action, np.full(len(obs), np.nan, np.float32), memory)

    @property
    def _name(self) -> str:
        return f"scripted policy {import_path(self._choose)}"

    @property
    def _of(self) -> str:
        return "" if self._space is None else f", of {self._space}"

    def _whole_numbers(self, action: Array) -> Array:
        if action.dtype.kind not in "biuf":
            raise UserCodeFailed(self._name, f"returned {action.dtype.name} for whole numbers{self._of}")
        with np.errstate(invalid="ignore"):
            whole = action.astype(np.int64)
        self._check(action, whole != action, "action", f", which is no whole number{self._of}")
        return whole

    def _is_masked(self, rows: Array, is_outside: Array, action_mask: Array) -> Array:
        at = np.where(is_outside, 0, rows) + self._starts
        masked: Array = ~action_mask[np.arange(len(rows))[:, None], at]
        return masked

    def _check(self, action: Array, is_wrong: Array, what: str, why: str = "") -> None:
        """Raise UserCodeFailed for the first row in which a component `is_wrong`."""
        wrong = np.flatnonzero(is_wrong.reshape(len(action), -1).any(axis=1))
        if wrong.size:
            raise UserCodeFailed(self._name, f"chose {what} {action[wrong[0]]} in row {wrong[0]}{why}")

    def set_schedule(self, values: Mapping[str, float]) -> None:
        # No setting of this actor is scheduled.
        pass


def uniform_legal(mask: Array, uniform: Array) -> tuple[Array, Array]:
    """Choose legal actions uniformly: actions (int64 [N]) and how many are legal, [N].

    `mask` is bool [N, A], `uniform` [N] in [0, 1); raises MarlflowError for a row without a legal action.
    """
    # ranks counts the legal actions up to each one; the chosen action is the first whose count exceeds `target_rank`.
    ranks = np.add.accumulate(mask, 1, dtype=np.int64)
    legal = ranks[:, -1]
    if not legal.all():
        raise MarlflowError(f"row {int(legal.argmin())} has no legal action")
    target_rank = (uniform * legal).astype(np.int64)
    return np.add.reduce(ranks <= target_rank[:, None], 1, dtype=np.int64), legal
