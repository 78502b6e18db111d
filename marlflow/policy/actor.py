"""Actors: how actions are computed for any policy, and the base of actors with a network.

There, `outputs` computes the network for all rows, and `choose` takes the actions. They are separate, so that many
members of one network share one choice (see `policy.stacked`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, get_args, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.random import RowRandom
from marlflow.policy.tensors import as_array, as_tensor, read_flat, usable_device, write_flat

EvaluationMode: TypeAlias = Literal["greedy", "sampled"]

AskedMode: TypeAlias = Literal["as_learned", "greedy", "sampled"]
"""How a setting asks policies to act: `as_learned` is as each one's algorithm says (`Capabilities.as_learned`)."""
ASKED_MODES: tuple[str, ...] = get_args(AskedMode)

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


def memory_shape_of(actor: Actor) -> tuple[int, ...] | None:
    """Return the shape of an actor's memory for one agent; None if it has none."""
    return actor.memory_shape if isinstance(actor, RecurrentActor) else None


Scheduled: TypeAlias = float | Array
"""A scheduled value: one number, or one for each row, float64 [N]."""


def as_scheduled(value: Scheduled) -> Scheduled:
    """Convert one number to a float; return an array with one number per row unchanged."""
    return value if isinstance(value, np.ndarray) else float(value)


class NetworkActor(nn.Module):
    """An actor that has the parameters of its network.

    A subclass defines `outputs` and `choose`; one that overrides `act` instead, or `load_flat`, is never stacked.
    """

    def __init__(self) -> None:
        super().__init__()
        self.device: str | None = None

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return all that `choose` needs of the parameters, [N, K], and the next memory; `obs` is [N, ...]."""
        raise NotImplementedError

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        """Return actions [N, ...] and log-probabilities float32 [N]; reads no parameter.

        Raises MarlflowError if outputs are not finite, or a row has no legal action.
        """
        raise NotImplementedError

    def outputs_of(self, obs: Array) -> Array:
        """Return the outputs [N, K] of an actor without memory."""
        self._stop_training()
        with torch.inference_mode():
            return as_array(self.outputs(as_tensor(obs, self.device), None)[0])

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        self._stop_training()
        with torch.inference_mode():
            before = as_tensor(memory, self.device) if isinstance(memory, np.ndarray) else None
            outputs, after = self.outputs(as_tensor(obs, self.device), before)
            action, logp = self.choose(outputs, action_mask, mode, generator)
        return Acted(action, logp, memory if after is None else as_array(after))

    def _stop_training(self) -> None:
        # Layers of a user's, such as dropout, are not to act as in training.
        if self.training:
            self.eval()

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        """Set scheduled values; ones per row hold for the next `choose`."""

    def move_to(self, device: str) -> None:
        self.to(usable_device(device))
        self.device = None if device == "cpu" else device

    def flat(self) -> Array:
        return read_flat(self)

    def load_flat(self, flat: Array) -> None:
        write_flat(self, flat)
