"""Options of managers: how long they last, what workers see of them, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.env.wrappers.masking import MASK, OBSERVATION, MaskedView

ManagerSees: TypeAlias = Literal["obs", "state"]
ManagerActs: TypeAlias = Literal["when_due", "every_env_step"]
OPTION: Final = "option"
LEFT: Final = "left"


class OptionRules:
    """How long options last, and what they are worth."""

    def __init__(
        self,
        space: spaces.Space[Any],
        every: int,
        terminate: Callable[..., Any] | None,
        intrinsic: Callable[..., Any] | None,
        moved: Callable[..., Any] | None,
        worker_share: float,
        manager_sees: ManagerSees,
        manager_acts: ManagerActs = "when_due",
    ) -> None:
        self.space, self.every, self.manager_sees, self.manager_acts = space, every, manager_sees, manager_acts
        self.terminate, self.intrinsic, self.moved, self.worker_share = terminate, intrinsic, moved, worker_share

        self.nothing = _lowest(space)
        """Stands in for an option before the first one is chosen; no decision sees it."""

    def worker_reward(self, issued: float, seen: Any, option: Any, following: Any) -> float:
        """Return a worker's reward for an env step; raises ConfigInvalid if `intrinsic` returned no number."""
        own = self.worker_share * issued
        if self.intrinsic is None:
            return own
        paid: Any = self.intrinsic(seen, option, following)
        if np.shape(paid) != () or not np.issubdtype(np.asarray(paid).dtype, np.number) or not np.isfinite(paid):
            raise ConfigInvalid([f"intrinsic returned {paid!r:.200}; it must return a finite number"])
        return own + float(paid)

    def moved_option(self, seen: Any, option: Any, following: Any) -> Any:
        """Return the option after an env step, clipped to a Box; raises ConfigInvalid if it is not in its space."""
        if self.moved is None:
            return option
        after = self.moved(seen, option, following)
        if isinstance(self.space, spaces.Box):
            # A relative goal that was not reached may lie outside of what a manager can choose.
            after = np.clip(np.asarray(after, self.space.dtype), self.space.low, self.space.high)
        if not self.space.contains(after):
            raise ConfigInvalid([f"moved returned {after!r:.200}, which is not in {self.space}"])
        return after

    def ends(self, seen: Any, option: Any) -> bool:
        """Return whether an option ends early; raises ConfigInvalid if `terminate` returned no bool."""
        if self.terminate is None:
            return False
        answer = self.terminate(seen, option)
        if not isinstance(answer, bool | np.bool_):
            raise ConfigInvalid([f"terminate returned {answer!r:.200}; it must return a bool"])
        return bool(answer)


class WorkerView:
    """One worker's spaces, and its observations with its option."""

    def __init__(self, observation: Any, action: Any, rules: OptionRules) -> None:
        self._inner, self._every = MaskedView(observation, action), rules.every
        left = spaces.Box(0.0, 1.0, (1,), np.float32)
        seen: spaces.Space[Any] = spaces.Dict({OBSERVATION: self._inner.space, OPTION: rules.space, LEFT: left})
        if self._inner.is_inside:
            mask = observation[MASK]
            seen = spaces.Dict({OBSERVATION: seen, MASK: mask})
        self.observation_space = seen
        self.bare_space = self._inner.space

    def bare(self, observation: Any) -> Any:
        """Return the environment's observation without its mask."""
        return self._inner.bare(observation)

    def show(self, observation: Any, option: Any, left: int) -> Any:
        """Return the observation with the option and the share of its env steps that is left."""
        share = np.array([left / self._every], np.float32)
        seen = {OBSERVATION: self._inner.bare(observation), OPTION: option, LEFT: share}
        return {OBSERVATION: seen, MASK: observation[MASK]} if self._inner.is_inside else seen


class ManagerView:
    """The spaces and observations of a manager that acts at every env step: until it is due, it may only continue.

    It sees its option and the time left, because the value of continuing depends on both.
    """

    def __init__(self, observation: spaces.Space[Any], rules: OptionRules) -> None:
        options = rules.space
        assert isinstance(options, spaces.Discrete), "only a mask of numbered options can leave nothing but going on"
        self._rules = rules
        self.go_on = int(options.start + options.n)
        self.action_space = spaces.Discrete(int(options.n) + 1, start=int(options.start))
        left = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Dict({OBSERVATION: observation, OPTION: options, LEFT: left})

    def show(self, observation: Any, option: Any, left: int) -> Any:
        """Return the observation with the option (hidden if it is over) and the share of its time that is left."""
        share = np.array([max(left, 0) / self._rules.every], np.float32)
        return {OBSERVATION: observation, OPTION: option if left > 0 else self._rules.nothing, LEFT: share}

    def mask(self, left: int) -> Array:
        """Return the mask, int8 [options + 1]: options if the last one is over (nothing is `left`), else to go on."""
        mask: Array = np.full(self.action_space.n, left <= 0, np.int8)
        mask[-1] = left > 0
        return mask


def _lowest(space: spaces.Space[Any]) -> Any:
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, space.dtype), space.low, space.high)
    return space.start if isinstance(space, spaces.Discrete) else np.zeros(space.shape or (), space.dtype)
