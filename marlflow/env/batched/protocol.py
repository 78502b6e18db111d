"""The protocol of environments that step many at once: B environments in one call, arrays instead of dicts.

    class Coins:
        num_envs, groups, turn_based = 256, {"player": ["player_0", "player_1"]}, False
        def observation_space(self, agent): return Box(0.0, 1.0, (3,), np.float32)
        def action_space(self, agent): return Discrete(2)
        def reset(self, envs, seeds): ...   # returns BatchedStep({"player": observations})
        def step(self, actions): ...        # returns BatchedStep(observations, rewards, terminated, truncated)
        def close(self): ...

Agents of one *group* have the same spaces. All its arrays are [B, A, ...], for A agents. They may be numpy arrays, or
arrays of any library with DLPack (torch, jax). The next step may reuse them; a reset must not change the rows of other
environments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, runtime_checkable

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array

ByGroup: TypeAlias = Mapping[str, Any]
"""An array [B, A, ...] for each group."""


@dataclass(slots=True)
class BatchedStep:
    """The result of a reset or a step, by group.

    observations: [B, A, *shape], without action masks. For an agent that ended in this step, the final one.
    rewards: float [B, A], what each agent received in this step; 0 for one that received nothing, such as a dead one.
    terminated, truncated: bool [B, A], whether an agent ended in this step. If both are true, it terminated.
    decides: bool [B, A], the agents that act next, in turn-based environments; empty if all living agents act.
    action_masks: bool or int8 [B, A, number of actions], 1 where legal; empty for groups without masks.
    infos: by name, float or bool [B, A] by group: a number of each agent, such as its `cost` in this step; 0 for an
    agent that has none. The environment's `info_keys` are in every step.

    A reset has no rewards, infos or ends. Entries of agents that neither act next nor ended in this step are ignored.
    """

    observations: ByGroup
    rewards: ByGroup = field(default_factory=dict)
    terminated: ByGroup = field(default_factory=dict)
    truncated: ByGroup = field(default_factory=dict)
    decides: ByGroup = field(default_factory=dict)
    action_masks: ByGroup = field(default_factory=dict)
    infos: Mapping[str, ByGroup] = field(default_factory=dict)


@runtime_checkable
class BatchedEnv(Protocol):
    """`num_envs` environments that are stepped by one call.

    All agents take part from the reset on. Each may end before the others; an episode is over when all have ended. The
    environment does not reset itself: `reset` is called for the environments that are over.

    Optional: `possible_agents` (the order of agents; default: the order of the groups), `metadata` with `name`,
    `state()` with `state_space`, `get_state()` with `set_state()` (see `SnapshotEnv`), `info_keys`, the names in
    `infos`.
    """

    num_envs: int
    """B."""

    groups: Mapping[str, Sequence[str]]
    """The agents of each group, which have the same spaces."""

    turn_based: bool
    """Whether an env step is the turn of one agent, as in PettingZoo's AEC environments."""

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's observation space, without action mask: Box, Discrete, MultiDiscrete or MultiBinary."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's action space."""
        ...

    def reset(self, envs: Array, seeds: Array) -> BatchedStep:
        """Start an episode in `envs` (int64 [N], ascending), each from its own of `seeds` (int64 [N], below 2**31).

        Returns arrays of all B environments, of which only the rows `envs` are read. A batched environment that cannot
        seed each environment sets `metadata["reproducible"]` to False: its episodes cannot be repeated.
        """
        ...

    def step(self, actions: Mapping[str, Array]) -> BatchedStep:
        """Step all environments by `actions`, numpy [B, A, *action shape] for each group.

        Entries of agents that do not act are 0. Environments without a running episode are stepped too, with any
        result; they must not raise.
        """
        ...

    def close(self) -> None:
        """Free the environment's resources."""
        ...


@runtime_checkable
class SnapshotEnv(Protocol):
    """A BatchedEnv whose running episodes can be saved, so that a resumed run continues them exactly."""

    def get_state(self, envs: Array) -> Mapping[str, Array]:
        """Return, as named numpy arrays [N, ...], copies of all that determines how the episodes of `envs` continue."""
        ...

    def set_state(self, envs: Array, state: Mapping[str, Array]) -> BatchedStep:
        """Continue, in `envs`, the episodes that `get_state` returned; return their observations, as `reset` does."""
        ...


def info_keys(env: BatchedEnv) -> tuple[str, ...]:
    """Return the names in the infos of every step of `env`."""
    return tuple(getattr(env, "info_keys", ()))


FUNCTIONAL_ENVIRONMENTS: Final = "env=functional, jaxmarl, jumanji or pgx, or env=lbf or rware with env.batched=true"
"""The functional environments, for messages."""


def is_functional(env: BatchedEnv) -> bool:
    """Return whether `env` maps a functional environment, so that whole fragments can be compiled."""
    return bool(getattr(env, "is_functional", False))


def agents_of(env: BatchedEnv) -> list[str]:
    """Return the agents of `env`, in the order of their slots."""
    declared = getattr(env, "possible_agents", None)
    return list(declared) if declared is not None else [agent for agents in env.groups.values() for agent in agents]


def groups_of(spaces_of: Mapping[str, tuple[spaces.Space[Any], spaces.Space[Any]]]) -> dict[str, list[str]]:
    """Return the agents of each group, by name without number; a second group of a name is named after its first agent.

    `spaces_of` has each agent's spaces of observations and actions.
    """
    groups: dict[str, list[str]] = {}
    for agent, pair in spaces_of.items():
        name = _without_number(agent)
        alike = (key for key in groups if _without_number(key) == name and spaces_of[groups[key][0]] == pair)
        key = next(alike, agent if name in groups else name)
        groups.setdefault(key, []).append(agent)
    return groups


def _without_number(agent: str) -> str:
    return re.sub(r"[_ ]\d+$", "", agent)


def as_numpy(array: Any) -> Array:
    """Return `array`, of numpy or of a library with DLPack such as torch and jax, as a numpy array.

    Shares the memory of an array on a CPU; copies one on a GPU.
    """
    if type(array) is np.ndarray:
        return array
    if not hasattr(array, "__dlpack__"):
        return np.asarray(array)
    if getattr(array, "requires_grad", False):
        array = array.detach()
    on_cpu = array.__dlpack_device__()[0] == _CPU
    if not on_cpu and hasattr(array, "cpu"):
        # torch exports no array of a GPU to another device.
        array, on_cpu = array.cpu(), True
    shared: Array = np.from_dlpack(array) if on_cpu else np.asarray(array)
    return shared


# kDLCPU of DLPack's DLDeviceType.
_CPU = 1
