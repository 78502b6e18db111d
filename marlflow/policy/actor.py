"""What acts: the one interface between experience and everything that chooses actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom

EvaluationMode: TypeAlias = Literal["greedy", "sampled"]

Mode: TypeAlias = Literal["explore", "greedy", "sampled"]
"""How a policy acts.

`explore`: as in training, with all exploration noise. `greedy`: the most likely action, or the mean. `sampled`: a draw
from the distribution that the policy has learned, without exploration noise (epsilon, Gaussian noise, uniform actions
at the start of training); a policy that has learned no distribution acts greedily.
"""


class Acted(NamedTuple):
    """What an actor chose for N rows.

    `action` [N, ...] in the dtype of the action column (a Discrete action counts from 0, whatever the space's `start`);
    `behaviour_logp` float32 [N], the log-probability with which this mode chooses it (NaN where that is unknown);
    `memory` to be handed in with each row's next decision.
    """

    action: Array
    behaviour_logp: Array
    memory: Any


class Actor(Protocol):
    """Chooses actions for rows: `acted = actor.act(obs, action_mask, memory, "explore", RowRandom(keys, counters))`."""

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Actions for `obs` [N, ...], none of them illegal in `action_mask` (bool [N, A])."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Takes the scheduled values that this actor knows (such as `epsilon`); the others are not its concern."""
        ...


@runtime_checkable
class WeightedActor(Actor, Protocol):
    """An actor with parameters, which a learner publishes as one float32 vector."""

    def flat(self) -> Array:
        """A copy of all parameters, in their order, as one float32 vector."""
        ...

    def load_flat(self, flat: Array) -> None:
        """Replaces all parameters by those of `flat`; raises WeightsMismatch if it has another size."""
        ...


@runtime_checkable
class MovableActor(Actor, Protocol):
    """An actor that can compute on another device than the CPU."""

    def move_to(self, device: str) -> None:
        """Acts on a torch device from here on; what comes in and goes out are still arrays."""
        ...


@runtime_checkable
class RememberingActor(Actor, Protocol):
    """An actor with memory (recurrent state): one entry per agent and episode, zero at the episode's start.

    `memory` comes into `act` as float32 [N, *memory_shape] and is handed back in the same form.
    """

    memory_shape: tuple[int, ...]
