"""A worker's actor for one policy, its memory, the conversion of its actions, and the lanes waiting for its action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from marlflow.base.arrays import Array
from marlflow.base.encoder import ObservationOutside
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces, components
from marlflow.batches.items import Weights
from marlflow.policy.actor import Acted, Actor, EvaluationMode, Mode, RecurrentActor, WeightedActor
from marlflow.sampling.step_buffer import StepBuffer

# Larger Discrete spaces create their numbers when chosen.
_MOST_NUMBERS = 4096


class Memory:
    """The memory of a recurrent policy by lane, float32 [lanes, *shape]: zero at the start of an episode.

    It persists across fragments and weight updates.
    """

    def __init__(self, lanes: int, shape: tuple[int, ...]) -> None:
        self._memory = np.zeros((lanes, *shape), np.float32)
        # The weights version that computed the memory; -1 for zeros.
        self._version = np.full(lanes, -1)

    @staticmethod
    def columns(shape: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], np.dtype[np.generic]]]:
        """Return shape and dtype of `update`'s columns."""
        return {"memory": (shape, np.dtype(np.float32)), "memory_version": ((), np.dtype(np.int64))}

    def begin(self, lanes: slice | Array) -> None:
        """Reset the memory (recurrent state) of `lanes`, at the start of an episode or for new parameters."""
        self._memory[lanes] = 0.0
        self._version[lanes] = -1

    def recall(self, lanes: Array) -> Array:
        """Return the memory of `lanes`, [N, *shape]."""
        return self._memory[lanes]

    def update(self, lanes: Array, after: Array, version: int) -> dict[str, Array]:
        """Set the memory of `lanes` to `after`, computed by `version`; return the memory before.

        `memory_version` is the version that computed it; for zeros, the acting one.
        """
        computed_by = self._version[lanes]
        # No version computed zeros, so their rows get the acting version.
        before = {"memory": self._memory[lanes], "memory_version": np.where(computed_by < 0, version, computed_by)}
        self._memory[lanes] = after
        self._version[lanes] = version
        return before

    def state(self, lanes: Array) -> dict[str, Array]:
        """Return the saved columns of `lanes`, [N, ...] each."""
        return {"now": self._memory[lanes], "made_by": self._version[lanes]}

    def load_state(self, lanes: Array, columns: Mapping[str, Array]) -> None:
        """Restore what `state` returned, for the lanes that have it now."""
        self._memory[lanes], self._version[lanes] = columns["now"], columns["made_by"]


class ActingPolicy:
    """The actor of `policy` and its pending lanes."""

    in_order = True
    """Whether the pending lanes are in the order of all deciding lanes."""
    info_columns: tuple[str, ...] = ()
    """The info columns of its rows; frozen versions have none."""
    draws: bool | None = None
    """Whether its actor has drawn random numbers; None before it has acted."""

    def __init__(
        self,
        policy: str,
        actor: Actor,
        spaces: Spaces,
        lanes_of_worker: int,
        recorded: bool,
        state: gym_spaces.Box | None = None,
        mode: Mode = "explore",
    ) -> None:
        self.policy = policy
        self.actor = actor
        self.mode: Mode = mode
        self.spaces = spaces
        # Older than any published version.
        self.version = -1
        # The pending lanes, and their rows in `buffer`.
        self.lanes: Array = np.empty(0, np.int64)
        self.rows: Array = np.empty(0, np.int64)
        # The positions of the pending lanes among all deciding lanes, as an array and as a list.
        self.where: Array = np.empty(0, np.int64)
        self.positions: list[int] = []
        self._state, self.sees_state = state, state is not None
        self._encoder = spaces.encoder()
        self.decoder = ActionDecoder(policy, spaces.action)
        columns: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {"obs": (spaces.obs_shape, spaces.obs_dtype)}
        if spaces.masked:
            columns["action_mask"] = ((spaces.mask_width,), np.dtype(bool))
        if state is not None:
            columns["state"] = (state.shape, np.dtype(state.dtype))
        # The pending lanes' observations.
        self.seen: dict[str, Array] = {name: np.empty((0, *shape), dtype) for name, (shape, dtype) in columns.items()}
        self.memory: Memory | None = None
        if isinstance(actor, RecurrentActor):
            self.memory = Memory(lanes_of_worker, actor.memory_shape)
            columns |= Memory.columns(actor.memory_shape)
        self.buffer = StepBuffer(columns, (spaces.action_shape, spaces.action_dtype)) if recorded else None

    def for_evaluation(self, lanes: int, mode: EvaluationMode) -> ActingPolicy:
        """Return one with the same actor for `lanes` other lanes, which records nothing; its memory is zero."""
        acting = ActingPolicy(self.policy, self.actor, self.spaces, lanes, False, self._state, mode)
        acting.info_columns = self.info_columns
        return acting

    def set_pending(self, where: Array, deciding: Array, row_of: Array) -> None:
        """Set the pending lanes to `deciding[where]`; `row_of` [lanes] has each lane's row."""
        self.where = where
        self.positions = where.tolist()
        self.lanes = deciding[where]
        self.rows = row_of[self.lanes]

    def act(self, memory: Array | None, generator: RowRandom) -> Acted:
        """Return actions for the pending lanes' observations and `memory`."""
        acted = self.actor.act(self.seen["obs"], self.seen.get("action_mask"), memory, self.mode, generator)
        self.draws = self.draws or generator.has_drawn
        return acted

    def set_observations(
        self, observations: Sequence[Any] | Array, masks: Sequence[Array | None] | Array, state: Array | None
    ) -> None:
        """Copy the pending lanes' observations, because environments may reuse arrays; arrays are [N, ...].

        Raises ObservationOutside if one does not fit its space.
        """
        self.seen["obs"] = self.stack(observations)
        if self.spaces.masked:
            legal = self.seen["action_mask"] = self.stack_masks(masks)
            # Each component of an action needs a legal value.
            choices = self.spaces.choices
            parts = [legal] if len(choices) == 1 else components(legal, choices)
            can_act: Array = np.logical_and.reduce([part.any(axis=1) for part in parts])
            if not can_act.all():
                raise ObservationOutside(int(can_act.argmin()), "action_mask allows no action")
        if state is not None:
            self.seen["state"] = state

    def load(self, weights: Weights, with_critic: bool) -> None:
        """Load published weights into the actor (set_weights); `with_critic`: they end with the critic's."""
        if isinstance(self.actor, WeightedActor):
            # A worker never evaluates the critic, so its part is cut off.
            self.actor.load_flat(weights.flat[: len(self.actor.flat())] if with_critic else weights.flat)
        self.version = weights.version

    def stack(self, observations: Sequence[Any] | Array) -> Array:
        """Encode observations as rows of `obs`, [N, *obs_shape]."""
        return self._encoder.stack(observations) if len(observations) else self.seen["obs"][:0]

    def stack_masks(self, masks: Sequence[Array | None] | Array) -> Array:
        """Encode masks as bool [N, A]; None becomes all legal."""
        shape = (self.spaces.mask_width,)
        if isinstance(masks, np.ndarray):
            return masks.astype(bool)
        # Fast path: one conversion for all masks.
        if all(type(mask) is np.ndarray and mask.shape == shape for mask in masks):
            return np.array(masks).astype(bool) if masks else np.ones((0, *shape), bool)
        legal = np.ones((len(masks), *shape), bool)
        for row, mask in enumerate(masks):
            if mask is not None:
                if np.shape(mask) != shape:
                    raise ObservationOutside(row, f"action_mask has shape {np.shape(mask)}, not {shape}")
                legal[row] = mask
        return legal


class ActionDecoder:
    """Converts rows of the actions of `policy` to elements of the action space."""

    def __init__(self, policy: str, space: gym_spaces.Space[Any]) -> None:
        self._policy, self._space = policy, space
        self._discrete: dict[int, Any] = {}
        if isinstance(space, gym_spaces.Discrete) and space.n <= _MOST_NUMBERS:
            self._discrete = dict(enumerate(np.arange(space.start, space.start + space.n, dtype=space.dtype)))
        self._ends: tuple[Array, Array, gym_spaces.Box] | None = None
        if isinstance(space, gym_spaces.Box) and space.dtype == np.float64:
            # Policies act in float32; a float64 bound rounded to float32 may lie outside of the space.
            self._ends = space.low.astype(np.float32), space.high.astype(np.float32), space

    def choices(self, action: Array) -> list[Any]:
        """Convert the rows of `action` to elements of the action space, as `action_space.sample()` returns."""
        if self._discrete:
            try:
                return [self._discrete[number] for number in action.tolist()]
            except KeyError as wrong:
                raise MarlflowError(self._outside(wrong.args[0])) from wrong
        return list(self.values(action))

    def values(self, action: Array) -> Array:
        """Convert the rows of `action` to actions of the action space, [N, ...]; raises MarlflowError."""
        space = self._space
        if isinstance(space, gym_spaces.Discrete) and not _are_numbers_below(action, int(space.n)):
            wrong = action[(action < 0) | (action >= space.n)][0]
            raise MarlflowError(self._outside(wrong))
        if isinstance(space, gym_spaces.Discrete | gym_spaces.MultiDiscrete):
            action = action + space.start
        if self._ends is not None:
            low, high, box = self._ends
            return np.where(action == low, box.low, np.where(action == high, box.high, action))
        return action.astype(space.dtype, copy=False)

    def _outside(self, action: object) -> str:
        return f"policy {self._policy!r} chose action {action}, counted from 0, of {self._space}"


def _are_numbers_below(action: Array, count: int) -> bool:
    # One comparison is enough, because a negative number becomes a large unsigned one.
    return not len(action) or int(action.astype(np.int64, copy=False).view(np.uint64).max()) < count
