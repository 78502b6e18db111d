"""The interface through which PettingZoo environments are stepped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces


class AgentEnd(NamedTuple):
    """The end of an agent's trajectory; exactly one of `terminated` and `truncated` is true.

    `observation` is the final one without its mask, or None if the environment gave none: then use the agent's last
    observation. `mask` is None if no action is known to be illegal. `info` is the agent's last one.
    """

    slot: int
    terminated: bool
    truncated: bool
    observation: Any
    mask: Array | None
    info: Mapping[str, Any] | None = None


# Parallel lists rather than an object per agent, because a worker handles a hundred thousand agents per second.
class StepResult:
    """The events since the last `act`, and the agents that act next. The next `act` overwrites it.

    `deciding`: slots of the agents to act, with their `observations` and `masks` (empty if no agent has masks).
    `reward_slots`, `rewards`: in order of receipt; a slot may repeat. `infos`: in the order of `rewards`, if the
    adapter has `info_keys`. `ended`: trajectories that ended after those rewards. `last_infos`: by slot, once the
    episode is over, the infos of agents that ended in an earlier step. `late_slots`, `late_rewards`: a dead agent's
    rewards. `over`: no agents are left. `steady`: no agent ended or joined, each agent that acted got one reward and
    acts again, in the same order.
    """

    __slots__ = (
        "deciding",
        "ended",
        "infos",
        "last_infos",
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
        self.infos: list[Mapping[str, Any] | None] = []
        self.last_infos: Mapping[int, Mapping[str, Any]] = {}
        self.ended: list[AgentEnd] = []
        self.late_slots: list[int] = []
        self.late_rewards: list[float] = []
        self.over = False
        self.steady = False


class EnvAdapter(Protocol):
    """Steps one environment: `result = adapter.reset(seed)`, then `result = adapter.act(actions)` until `result.over`.

    There is no autoreset. An agent's slot is its index in `agents`. Every fault of the environment raises
    EnvironmentFailed.
    """

    info_keys: Sequence[str]
    """The keys of infos that are read after every env step; set before an episode. Only of Parallel environments."""

    @property
    def agents(self) -> Sequence[str]:
        """All declared agents; if none are declared, all seen so far."""
        ...

    @property
    def declared(self) -> bool:
        """Whether the environment has `possible_agents`; no other agent may join then."""
        ...

    @property
    def parallel(self) -> bool:
        """Whether all living agents decide at every env step, as in Parallel environments; else they take turns."""
        ...

    @property
    def has_tasks(self) -> bool:
        """Whether the environment is a family of tasks: `metadata["tasks"]` is True."""
        ...

    @property
    def reproducible(self) -> bool:
        """Whether a seed determines its episode; not if `metadata["reproducible"]` is False."""
        ...

    @property
    def env_steps(self) -> int:
        """Env steps in this episode; in an AEC environment, turns of living agents."""
        ...

    @property
    def vanished(self) -> int:
        """Number of agents that left without termination or truncation since opening."""
        ...

    @property
    def actions_corrected(self) -> int:
        """Number of actions that shields replaced since opening."""
        ...

    def forget_agents(self) -> None:
        """Free the slots of agents of earlier episodes; call before `reset`, if no agents are declared."""
        ...

    def seat(self, agents: Sequence[str]) -> None:
        """Give `agents` the first slots, in order; call before `reset`, if no agents are declared.

        Raises EnvironmentFailed if one has no spaces.
        """
        ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """Return the observation space of `agent`, without action mask."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """Return the action space of `agent`."""
        ...

    def masked(self, agent: str) -> bool:
        """Return whether `agent` has an action mask."""
        ...

    def state_space(self) -> spaces.Box | None:
        """Return the global state's space, or None if there is no state.

        It is `env.state_space` if that is a Box, else derived from a first `env.state()`.
        """
        ...

    def state(self) -> Array:
        """Return the global state, [*state_space.shape]; after an episode's end, the final one.

        The environment may reuse the array. Raises EnvironmentFailed if there is no state, its shape changed, or it has
        a NaN.
        """
        ...

    def appeared(self) -> set[int]:
        """Return the slots of agents that took part in this episode so far."""
        ...

    def where(self, agent: str | None = None) -> str:
        """Return environment, env index, episode seed, env step and agent as text."""
        ...

    def name(self) -> str:
        """Return the env index as text: `env 3`."""
        ...

    def reset(self, seed: int, task: int | None = None) -> StepResult:
        """Start an episode; `task` goes to environments with tasks as `options["task"]`."""
        ...

    def act(self, actions: Sequence[Any]) -> StepResult:
        """Apply the actions of the agents in the last `deciding`, in that order."""
        ...

    def close(self) -> None:
        """Close the environment; raises EnvironmentFailed if that fails."""
        ...


def spaces_of(adapter: EnvAdapter, agent: str, state: spaces.Box | None = None, num_agents: int = 0) -> Spaces:
    """Return the spaces of an agent; `state` is the space of the global state, if it is needed."""
    return Spaces(
        adapter.observation_space(agent), adapter.action_space(agent), adapter.masked(agent), state, num_agents
    )
