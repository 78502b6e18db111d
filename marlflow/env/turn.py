"""What an environment wants next, and the one interface through which environments are played.

A turn lies between two decisions. The lists in it are the environment's own objects side by side, with no object per
agent, because a worker handles a hundred thousand of them in a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from gymnasium import spaces

from marlflow.base.batch import Array


class Ending(NamedTuple):
    """An agent's trajectory is over: exactly one of `terminated` and `truncated` holds.

    `observation` is the final one, without its mask, or None where the environment gave none: then the agent's last
    observation stands for it. `mask` is None where nothing is known to be illegal.
    """

    slot: int
    terminated: bool
    truncated: bool
    observation: Any
    mask: Array | None


class Turn:
    """What happened since the last `act`, and what the environment wants next. The next `act` overwrites it.

    `deciding`: slots of the agents that must decide now, with `observations` and `masks` beside them (`masks` is empty
    if no agent of the environment has any). `reward_slots`, `rewards`: who received what, in order; a slot may stand
    there several times. `ended`: whose trajectory is over, once those rewards are theirs. `late_slots`, `late_rewards`:
    what was received after the end. `over`: no agents are left. `steady`: nobody ended or came, and everybody who
    decided received one reward and decides again, in the same order.
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
        self.ended: list[Ending] = []
        self.late_slots: list[int] = []
        self.late_rewards: list[float] = []
        self.over = False
        self.steady = False


class Window(Protocol):
    """One environment of either kind: `turn = window.reset(seed)`, then `turn = window.act(actions)` until `turn.over`.

    An agent's slot is its index in `agents`. Whatever the environment does wrong is raised as EnvironmentFailed.
    """

    @property
    def agents(self) -> Sequence[str]:
        """All agents: the declared ones, or where none are declared those seen so far."""
        ...

    @property
    def declared(self) -> bool:
        """Whether the environment has `possible_agents`, so that no other agent may appear."""
        ...

    @property
    def has_tasks(self) -> bool:
        """Whether the environment is a family of tasks: its `metadata` has `"tasks": True`."""
        ...

    @property
    def env_steps(self) -> int:
        """Env steps in this episode."""
        ...

    @property
    def vanished(self) -> int:
        """How many agents vanished unmarked since the window was opened."""
        ...

    def seat(self, agents: Sequence[str]) -> None:
        """Gives `agents` the first slots, in their order, in an environment that declares nobody; before a reset.

        Raises EnvironmentFailed if the environment has no spaces for one of them.
        """
        ...

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        """What `agent` observes, without the action mask."""
        ...

    def action_space(self, agent: str) -> spaces.Space[Any]:
        """What `agent` does."""
        ...

    def masked(self, agent: str) -> bool:
        """Whether `agent` comes with an action mask."""
        ...

    def state_space(self) -> spaces.Box | None:
        """What `state` lies in; None if the environment has no global state, which an algorithm may need.

        It is `env.state_space`, or where that is no Box, one around what a first `env.state()` gives.
        """
        ...

    def state(self) -> Array:
        """The environment's global state now, [*state_space.shape]; after the end of an episode, its final state.

        The environment may reuse the array: who keeps it, copies it. Raises EnvironmentFailed if there is none, or one
        of another shape or with a NaN.
        """
        ...

    def appeared(self) -> set[int]:
        """The slots of the agents that took part in this episode so far."""
        ...

    def where(self, agent: str | None = None) -> str:
        """The present moment in words: environment, copy, episode seed, env step, agent."""
        ...

    def name(self) -> str:
        """The copy in words."""
        ...

    def reset(self, seed: int, task: int | None = None) -> Turn:
        """Begins an episode; an environment that has tasks is given the number of one as `options["task"]`."""
        ...

    def act(self, actions: Sequence[Any]) -> Turn:
        """Takes the actions of the agents in the last turn's `deciding`, in that order."""
        ...

    def close(self) -> None:
        """Frees what the environment holds."""
        ...
