"""One policy in one worker: its actor, and those of its lanes that wait for a decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from marlflow.base.batch import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import Actor
from marlflow.rollout.columns import Columns


class Player:
    """`actor` plays the pending `lanes`, which see `obs` and `mask`; `columns` is None if nobody wants the rows.

    `where`, and as a list `positions`, says where each of them stands among all lanes that decide at this tick;
    `rows` are theirs in the columns.
    """

    def __init__(self, policy: str, actor: Actor, spaces: Spaces, columns: Columns | None) -> None:
        self.policy, self.actor, self.spaces, self.columns = policy, actor, spaces, columns
        self.version = -1  # none yet: whatever is published first is newer
        self.lanes: Array = np.empty(0, np.int64)
        self.rows: Array = np.empty(0, np.int64)
        self.where: Array = np.empty(0, np.int64)
        self.positions: list[int] = []
        self.obs: Array = np.empty((0, *spaces.obs_shape), spaces.obs_dtype)
        self.mask: Array | None = None
        box = isinstance(spaces.observation, gym_spaces.Box) and spaces.obs_shape
        self._shape = spaces.obs_shape if box else None
        self._discrete = _numbers(spaces.action)
        self.may_be_nan = np.issubdtype(spaces.obs_dtype, np.floating)

    def show(self, observations: Sequence[Any], masks: Sequence[Array | None]) -> None:
        """Takes what the pending lanes see; copies it, since an environment may reuse its arrays."""
        self.obs = self.stack(observations)
        if self.spaces.masked:
            self.mask = self.stack_masks(masks)

    def stack(self, observations: Sequence[Any]) -> Array:
        """Observations as rows of the `obs` column, [N, *obs_shape]."""
        if self._shape is None or not observations:
            return self.spaces.stack(observations) if observations else self.obs[:0]
        rows = np.concatenate(observations).reshape(len(observations), *self._shape)
        return rows if rows.dtype == self.spaces.obs_dtype else rows.astype(self.spaces.obs_dtype)

    def stack_masks(self, masks: Sequence[Array | None]) -> Array:
        """Masks as rows of the `action_mask` column, bool [N, A]; where there is none, everything is legal."""
        legal = np.ones((len(masks), self.spaces.num_actions), bool)
        for row, mask in enumerate(masks):
            if mask is not None:
                legal[row] = mask
        return legal

    def choices(self, action: Array) -> list[Any]:
        """The rows of the `action` column as `action_space.sample()` would give them, in type and origin."""
        if self._discrete:
            try:
                return [self._discrete[number] for number in action.tolist()]
            except KeyError as wrong:
                text = f"policy {self.policy!r} chose action {wrong.args[0]}, counted from 0, of {self.spaces.action}"
                raise MarlflowError(text) from wrong
        space = self.spaces.action
        if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
            action = action + space.start
        return list(action.astype(space.dtype, copy=False))


# Beyond so many actions, numbers are made when they are chosen.
_MOST_NUMBERS = 4096


def _numbers(space: gym_spaces.Space[Any]) -> dict[int, Any]:
    """The actions of a Discrete space, made once: numpy's numbers are slow to make, and `contains` prefers them."""
    if not isinstance(space, gym_spaces.Discrete) or space.n > _MOST_NUMBERS:
        return {}
    return dict(enumerate(np.arange(space.start, space.start + space.n, dtype=space.dtype)))
