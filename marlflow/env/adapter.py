"""The interface through which environments are stepped, and the result of a step.

The result's parallel lists hold the environment's own objects without an object per agent, because a worker handles a
hundred thousand of them per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from marlflow.base.batch import Array


class AgentEnd(NamedTuple):
    """The end of an agent's trajectory: exactly one of `terminated` and `truncated` is true.

    `observation` is the final one without its mask; None if the environment gave none, then the agent's last
    observation is used. `mask` is None if no action is known to be illegal.
    """

    slot: int
    terminated: bool
    truncated: bool
    observation: Any
    mask: Array | None


class StepResult:
    """The events since the last `act`, and the agents that must act next. The next `act` overwrites it.

    `deciding`: slots of the agents that must act, with their `observations` and `masks` (empty if no agent has masks).
    `reward_slots`, `rewards`: rewards in order of receipt; a slot may occur several times. `ended`: trajectories that
    ended after those rewards. `late_slots`, `late_rewards`: rewards after an agent's end. `over`: no agents are left.
    `steady`: no agent ended or joined, and every agent that acted received one reward and acts again, in the same
    order.
    """

    __slots__ = (
        "deciding",
        "ended",
        "late_rewards",
        "late_slots",
        "masks",
        "observations",
        "over",
        "reward_slots",
        "rewards",
        "steady",
    )

    def __init__(self) -> None:
        self.deciding: list[int] = []
        self.observations: list[Any] = []
        self.masks: list[Array | None] = []
        self.reward_slots: list[int] = []
        self.rewards: list[float] = []
        self.ended: list[AgentEnd] = []
        self.late_slots: list[int] = []
        self.late_rewards: list[float] = []
        self.over = False
        self.steady = False


class EnvAdapter(Protocol):
    """Steps one environment: `result = adapter.reset(seed)`, then `result = adapter.act(actions)` until `result.over`.

    An agent's slot is its index in `agents`. Every fault of the environment is raised as EnvironmentFailed.
    """

    @property
    def agents(self) -> Sequence[str]:
        """All declared agents, or if none are declared, all agents seen so far."""
        ...

    @property
    def declared(self) -> bool:
        """Whether the environment has `possible_agents`, so that no other agent may join."""
        ...

    @property
    def has_tasks(self) -> bool:
        """Whether the environment is a family of tasks: its `metadata` has `"tasks": True`."""
        ...

    @property
    def env_steps(self) -> int:
        """Env steps in this episode; in an AEC environment, turns of living agents."""
        ...

    @property
    def vanished(self) -> int:
        """Number of agents that left without termination or truncation since opening."""
        ...

    def seat(self, agents: Sequence[str]) -> None:
        """Give `agents` the first slots, in their order, before a reset of an environment that declares no agents.

        Raises EnvironmentFailed if the environment has no spaces for one of them.
        """
        ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of `agent`, without the action mask."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of `agent`."""
        ...

    def masked(self, agent: str) -> bool:
        """Return whether `agent` has an action mask."""
        ...

    def state_space(self) -> spaces.Box | None:
        """Return the space of `state`, or None if there is no global state.

        It is `env.state_space` if that is a Box, or else derived from a first `env.state()`.
        """
        ...

    def state(self) -> Array:
        """Return the current global state, [*state_space.shape]; after an episode's end, the final one.

        Copy the array to keep it: the environment may reuse it. Raises EnvironmentFailed if there is no state, its
        shape changed, or it has a NaN.
        """
        ...

    def appeared(self) -> set[int]:
        """Return the slots of the agents that took part in this episode so far."""
        ...

    def where(self, agent: str | None = None) -> str:
        """Return environment, environment, episode seed, env step and agent as text."""
        ...

    def name(self) -> str:
        """Return the environment's number, `env 3`, as text."""
        ...

    def reset(self, seed: int, task: int | None = None) -> StepResult:
        """Start an episode; `task` is passed to environments with tasks as `options["task"]`."""
        ...

    def act(self, actions: Sequence[Any]) -> StepResult:
        """Apply the actions of the agents in the last `deciding`, in that order."""
        ...

    def close(self) -> None:
        """Close the environment; raises EnvironmentFailed if that fails."""
        ...
