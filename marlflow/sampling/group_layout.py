"""The positions of a worker's lanes in the arrays [B, A, ...] of a batched environment's groups."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.spaces import choices_of
from marlflow.env import BatchedEnv, BatchedStep
from marlflow.env.batched.adapter import empty_actions
from marlflow.env.batched.protocol import agents_of, as_numpy


class GroupLayout:
    """The groups of `env`; `masked` names the groups with action masks.

    lane = environment * number of agents + agent slot.
    """

    def __init__(self, env: BatchedEnv, masked: Collection[str]) -> None:
        agents = agents_of(env)
        self.num_envs, self.stride = env.num_envs, len(agents)
        self.names = list(env.groups)
        self.actions = empty_actions(env, env.num_envs)
        # By lane: the number of its group, and its row in the group's arrays, flattened to [B * A, ...].
        self._group_of = np.zeros(self.num_envs * self.stride, np.int64)
        self._row_of = np.zeros(self.num_envs * self.stride, np.int64)
        # By group: the lane of each row.
        self._lanes: list[Array] = []
        for number, of_group in enumerate(env.groups.values()):
            slots = np.array([agents.index(agent) for agent in of_group])
            lanes = (np.arange(self.num_envs)[:, None] * self.stride + slots).reshape(-1)
            self._group_of[lanes], self._row_of[lanes] = number, np.arange(len(lanes))
            self._lanes.append(lanes)
        # The usual case: arrays need no reordering.
        self._is_flat = len(self.names) == 1 and bool((self._row_of == np.arange(len(self._row_of))).all())
        self._sizes = {name: (self.num_envs, len(of_group)) for name, of_group in env.groups.items()}
        spaces = {name: (env.observation_space(of[0]), env.action_space(of[0])) for name, of in env.groups.items()}
        self._shapes = {name: observation.shape or () for name, (observation, _) in spaces.items()}
        self._masked = [name for name in self.names if name in masked]
        self._masks = {name: (_mask_width(spaces[name][1]),) for name in self._masked}

    def read(self, step: BatchedStep) -> BatchedStep:
        """Return the arrays of a step as numpy arrays; raises ValueError if a group or a shape is wrong."""
        scalars: dict[str, tuple[int, ...]] = dict.fromkeys(self.names, ())
        return BatchedStep(
            observations=self._checked("observations", step.observations, self._shapes, self.names),
            rewards=self._checked("rewards", step.rewards, scalars),
            terminated=self._checked("terminated", step.terminated, scalars),
            truncated=self._checked("truncated", step.truncated, scalars),
            decides=self._checked("decides", step.decides, scalars),
            action_masks=self._checked("action_masks", step.action_masks, self._masks, self._masked),
            infos={n: self._checked(f"infos[{n!r}]", numbers, scalars) for n, numbers in step.infos.items()},
        )

    def _checked(
        self,
        what: str,
        arrays: Mapping[str, Any],
        shapes: Mapping[str, tuple[int, ...]],
        needed: Sequence[str] = (),
    ) -> dict[str, Array]:
        if not arrays and not needed:
            return {}
        names = needed or self.names
        if arrays.keys() != set(names):
            raise ValueError(f"{what} of the groups {sorted(arrays)}, not of {sorted(names)}")
        read = {name: as_numpy(array) for name, array in arrays.items()}
        for name, array in read.items():
            wanted = (*self._sizes[name], *shapes[name])
            if array.shape != wanted:
                raise ValueError(f"{what} of shape {list(array.shape)} for group {name!r}, not {list(wanted)}")
        return read

    def by_lane(self, arrays: Mapping[str, Array], dtype: type[Any]) -> Array:
        """Return one number of each agent by lane, [lanes]; zeros if there are no arrays."""
        if self._is_flat and arrays:
            return arrays[self.names[0]].reshape(-1).astype(dtype, copy=False)
        flat = np.zeros(len(self._group_of), dtype)
        for name, lanes in zip(self.names, self._lanes, strict=True):
            if name in arrays:
                flat[lanes] = arrays[name].reshape(-1)
        return flat

    def rows(self, arrays: Mapping[str, Array], lanes: Array) -> Array:
        """Return a copy of the rows of `lanes`, whose groups have the same spaces, [N, ...]."""
        parts = list(self._parts(lanes))
        if len(parts) == 1:
            ((name, _, at),) = parts
            return _flat(arrays[name]).take(at, axis=0)
        first = arrays[parts[0][0]]
        rows = np.empty((len(lanes), *first.shape[2:]), first.dtype)
        for name, chosen, at in parts:
            rows[chosen] = _flat(arrays[name])[at]
        return rows

    def write_actions(self, lanes: Array, values: Array) -> None:
        """Write the actions of `lanes`, [N, ...], into `actions`."""
        for name, chosen, at in self._parts(lanes):
            _flat(self.actions[name])[at] = values if chosen is None else values[chosen]

    def clear_actions(self) -> None:
        """Begin with new arrays of zeros: the environment may keep those of its last step."""
        self.actions = {name: np.zeros_like(array) for name, array in self.actions.items()}

    def _parts(self, lanes: Array) -> Iterator[tuple[str, Array | None, Array]]:
        """Yield each group of `lanes`: name, which of them (None: all), and their rows in its arrays."""
        if self._is_flat:
            yield self.names[0], None, lanes
            return
        group = self._group_of[lanes]
        at = self._row_of[lanes]
        for number in np.flatnonzero(np.bincount(group, minlength=1)).tolist():
            chosen = np.flatnonzero(group == number)
            whole = len(chosen) == len(lanes)
            yield self.names[number], None if whole else chosen, at if whole else at[chosen]


def _flat(array: Array) -> Array:
    return array.reshape(-1, *array.shape[2:])


def _mask_width(space: Any) -> int:
    return sum(choices_of(space))
