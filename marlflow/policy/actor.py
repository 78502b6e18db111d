"""Actor protocols: how actions are computed for any policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom

EvaluationMode: TypeAlias = Literal["greedy", "sampled"]

AskedMode: TypeAlias = Literal["as_learned", "greedy", "sampled"]
"""How a setting asks policies to act: `as_learned` is as each one's algorithm says (`Capabilities.as_learned`)."""

EvaluationModes: TypeAlias = EvaluationMode | Mapping[str, EvaluationMode]
"""How policies act in evaluation: one mode for all, or one for each policy or frozen version.

A frozen version that a mapping does not name acts as its policy; a policy that it does not name is greedy.
"""

Mode: TypeAlias = Literal["explore", "greedy", "sampled"]
"""How a policy acts.

`explore`: as in training, with exploration noise. `greedy`: the most likely action, or the mean. `sampled`: a sample
from the learned distribution without exploration noise (epsilon, Gaussian noise, uniform warm-up); a policy without
such a distribution acts greedily.
"""


def mode_in(modes: EvaluationModes, entry: str, policy: str) -> EvaluationMode:
    """Return the mode of `entry`, a policy or a frozen version of `policy`.

    >>> mode_in({"main": "sampled"}, "main@3", "main"), mode_in({"main": "sampled"}, "rival", "rival")
    ('sampled', 'greedy')
    """
    if isinstance(modes, str):
        return modes
    return modes.get(entry, modes.get(policy, "greedy"))


class Acted(NamedTuple):
    """The actions of N rows: `action` [N, ...] as in the action column, Discrete counted from 0.

    `behavior_logp` float32 [N] is the log-probability in this mode, NaN where unknown. Pass `memory` to each row's next
    `act`.
    """

    action: Array
    behavior_logp: Array
    memory: Any


class Actor(Protocol):
    """Chooses actions for rows: `acted = actor.act(obs, action_mask, memory, "explore", RowRandom(keys, counters))`."""

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        """Return actions for `obs` [N, ...] that are legal in `action_mask` (bool [N, A])."""
        ...

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the scheduled values this actor uses, such as `epsilon`; ignore others."""
        ...


@runtime_checkable
class DistributionActor(Actor, Protocol):
    """An actor of Discrete actions that can say how likely each is, for exact evaluation in small games."""

    def probabilities(self, obs: Array, action_mask: Array | None, mode: EvaluationMode) -> Array:
        """Return the probability of each action, float64 [N, A], for `obs` [N, ...]; 0 where `action_mask` is False."""
        ...


@runtime_checkable
class WeightedActor(Actor, Protocol):
    """An actor with parameters, published as one float32 vector."""

    def flat(self) -> Array:
        """Return a copy of all parameters."""
        ...

    def load_flat(self, flat: Array) -> None:
        """Replace all parameters; raises WeightsMismatch if the size differs."""
        ...


@runtime_checkable
class MovableActor(Actor, Protocol):
    """An actor that can compute on another device than the CPU."""

    def move_to(self, device: str) -> None:
        """Move to a torch device; inputs and outputs remain numpy arrays."""
        ...


@runtime_checkable
class RecurrentActor(Actor, Protocol):
    """An actor with recurrent state `memory`, float32 [N, *memory_shape], zero at an episode's start."""

    memory_shape: tuple[int, ...]
