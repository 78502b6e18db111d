"""The latest observations of a batched environment: from its last step, and from the resets since."""

from __future__ import annotations

from typing import Literal

import numpy as np

from marlflow.base.batch import Array
from marlflow.env import BatchedStep
from marlflow.sampling.group_layout import GroupLayout


class LatestSteps:
    """The step or reset that has each environment's observations.

    A reset has observations for its own environments only. Merging the arrays would copy all of them, and change arrays
    that belong to the environment.
    """

    def __init__(self, num_envs: int) -> None:
        self._steps = [BatchedStep({})]
        # By environment: a position in `_steps`.
        self._step_of = np.zeros(num_envs, np.int64)

    @property
    def step(self) -> BatchedStep:
        """The last step of all environments."""
        return self._steps[0]

    def start(self, step: BatchedStep) -> None:
        """Take the observations of all environments from `step`."""
        self._steps = [step]
        self._step_of[:] = 0

    def add(self, step: BatchedStep, indices: Array) -> None:
        """Take the observations of the environments `indices` from `step`."""
        self._step_of[indices] = len(self._steps)
        self._steps.append(step)

    def rows(
        self, name: Literal["observations", "action_masks"], layout: GroupLayout, lanes: Array, env_of: Array
    ) -> Array:
        """Return the rows of `lanes`, which are in the environments `env_of`, [N, ...], a copy."""
        if len(self._steps) == 1:
            return layout.rows(getattr(self._steps[0], name), lanes)
        source = self._step_of[env_of]
        numbers = np.unique(source).tolist()
        rows = layout.rows(getattr(self._steps[numbers[0]], name), lanes)
        for number in numbers[1:]:
            at = np.flatnonzero(source == number)
            rows[at] = layout.rows(getattr(self._steps[number], name), lanes[at])
        return rows
