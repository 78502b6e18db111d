"""The protocol of functional environments: one environment as two pure functions, written in JAX.

    class Coins:
        groups, turn_based = {"player": ["player_0", "player_1"]}, False
        def observation_space(self, agent): return Box(0.0, 1.0, (3,), np.float32)
        def action_space(self, agent): return Discrete(2)
        def reset(self, key): ...                  # returns (state, FunctionalStep({"player": observations}))
        def step(self, key, state, actions): ...   # returns (state, FunctionalStep(observations, rewards, terminated))

It is a `BatchedEnv` without the dimension of environments: marlflow maps both functions over B environments and
compiles them. `state` is any pytree of arrays, and all that a step knows: attributes of the environment are constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from gymnasium import spaces

ByGroup: TypeAlias = Mapping[str, Any]
"""An array [A, ...] for each group, of its A agents."""

_NONE: ByGroup = {}
_NO_INFOS: Mapping[str, ByGroup] = {}


class FunctionalStep(NamedTuple):
    """The result of a reset or a step, by group; a pytree.

    observations: [A, *shape], without action masks. For an agent that ended in this step, the final one.
    rewards: [A], what each agent received in this step; 0 for one that received nothing.
    terminated, truncated: bool [A], whether an agent ended in this step. If both are true, it terminated.
    decides: bool [A], the agents that act next, in turn-based environments; empty if all living agents act.
    action_masks: bool or int8 [A, number of actions], 1 where legal; empty for groups without masks.
    infos: by name, [A] by group: a number of each agent, such as its `cost` in this step; the same names in all steps.

    Except in observations and masks, one number may be given for all A agents. A reset has no rewards, infos or ends.
    A step without `truncated` truncates no agent, one without `terminated` terminates none. `decides` and
    `action_masks` are in all resets and steps, or in none. Entries of agents that neither act next nor ended in this
    step are ignored, but for observations where `max_env_steps` may cut the episode in any step, and where no
    `global_state` gives what a central critic sees.
    """

    observations: ByGroup
    rewards: ByGroup = _NONE
    terminated: ByGroup = _NONE
    truncated: ByGroup = _NONE
    decides: ByGroup = _NONE
    action_masks: ByGroup = _NONE
    infos: Mapping[str, ByGroup] = _NO_INFOS


def is_of_agents(value: Any, num_agents: int) -> bool:
    """Return whether a value in a package's infos is a number, or one of each agent."""
    return tuple(getattr(value, "shape", (None,))) in ((), (num_agents,))


@runtime_checkable
class FunctionalEnv(Protocol):
    """One environment as pure functions: no side effects, all randomness from keys, shapes that never change.

    All agents take part from the reset on. Each may end before the others; an episode is over when all have ended. It
    does not reset itself. After its episode, `step` is called with any result.

    Optional: `possible_agents` (the order of agents; default: the order of the groups), `metadata` with `name`,
    `global_state(state)` with `state_space` (else all agents' observations).
    """

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        """The agents of each group, which have the same spaces."""
        ...

    @property
    def turn_based(self) -> bool:
        """Whether an env step is the turn of one agent, as in PettingZoo's AEC environments."""
        ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's observation space, without action mask: Box, Discrete, MultiDiscrete or MultiBinary."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return an agent's action space."""
        ...

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        """Begin an episode; return its state and the agents' first observations."""
        ...

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        """Return the next state and the result of `actions` [A, *action shape], which are 0 for agents that do not act.

        `key` is a random key for this step only.
        """
        ...


class FunctionalWrapper:
    """A functional environment that passes everything on to `env`; a subclass changes methods."""

    def __init__(self, env: FunctionalEnv) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        # Called only for attributes that are not found here: optional ones, such as `global_state` and `render`.
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def groups(self) -> Mapping[str, Sequence[str]]:
        return self.env.groups

    @property
    def turn_based(self) -> bool:
        return self.env.turn_based

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.env.action_space(agent)

    def reset(self, key: Any) -> tuple[Any, FunctionalStep]:
        return self.env.reset(key)

    def step(self, key: Any, state: Any, actions: ByGroup) -> tuple[Any, FunctionalStep]:
        return self.env.step(key, state, actions)
