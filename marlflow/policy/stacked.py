"""Acting for many members of one network: one choice of actions, and few network calls, for rows of all of them.

ActingMembers have the same layout of parameters, in numbered slots. The rows of each member lie together, as a group.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import WeightsMismatch
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, WeightedActor
from marlflow.policy.dense import ALIGNED, Layers, as_rows
from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.row_groups import RowGroups
from marlflow.policy.tensors import as_array, as_tensor, in_flat_order
from marlflow.policy.vmapped import Vmapped
from marlflow.policy.warmup import WarmupActor

LARGEST_STACKED = 250_000
"""Parameters beyond which members act by their published weights, without a copy of these."""
LARGEST_BATCHED = 25_000
"""Parameters beyond which members act one after the other: to gather theirs costs more than the calls it saves."""
_FEWEST_BATCHED = 4
_MOST_PADDING = 4
"""Dense layers are batched from this many groups on, unless padding multiplies the rows by more."""
_FEWEST_VMAPPED = 16
"""Groups from which one vmapped call is faster than a loop."""


class ActingMembers(Protocol):
    """Members of one network in numbered slots, with room for any number."""

    def load(self, slot: int, flat: Any, scheduled: Mapping[str, float]) -> None:
        """Put a member with these weights and scheduled values into a slot; raises WeightsMismatch."""
        ...

    def act(
        self, groups: RowGroups, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom
    ) -> Acted:
        """Return actions for rows of the members in `groups`; see `Actor.act`."""
        ...


@runtime_checkable
class CohortActor(Protocol):
    """An actor that brings room for its network's members itself."""

    def members(self) -> ActingMembers:
        """Return room for members."""
        ...


def members_of(make: Callable[[], Actor], like: Actor) -> ActingMembers:
    """Return room for members whose actors `make` makes; `like` is one.

    All members of one such room have scheduled values of the same names.
    """
    if isinstance(like, CohortActor):
        return like.members()
    network = like.inner if isinstance(like, WarmupActor) else like
    # A subclass that overrides `act` may compute something else than outputs and choice.
    if isinstance(network, NetworkActor) and type(network).act is NetworkActor.act:
        return StackedMembers(make())
    return SeparateMembers(make)


class SeparateMembers:
    """ActingMembers with an actor each, called one after the other."""

    def __init__(self, make: Callable[[], Actor]) -> None:
        self._make = make
        self._actors: dict[int, Actor] = {}

    def load(self, slot: int, flat: Any, scheduled: Mapping[str, float]) -> None:
        # A new one, because a user's actor may carry more than parameters.
        actor = self._actors[slot] = self._make()
        actor.set_schedule(scheduled)
        if isinstance(actor, WeightedActor):
            actor.load_flat(flat)

    def act(
        self, groups: RowGroups, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom
    ) -> Acted:
        acted = []
        for slot, start, stop in groups.spans:
            legal = None if action_mask is None else action_mask[start:stop]
            before = None if memory is None else memory[start:stop]
            rows = generator.only(np.arange(start, stop))
            acted.append(self._actors[slot].act(obs[start:stop], legal, before, mode, rows))
        if len(acted) == 1:
            return acted[0]
        actions, logps, memories = zip(*acted, strict=True)
        after = None if memory is None else np.concatenate(memories)
        return Acted(np.concatenate(actions), np.concatenate(logps), after)


class StackedMembers:
    """ActingMembers of a NetworkActor, or of one with warm-up; `actor` becomes the stack's own."""

    def __init__(self, actor: Actor) -> None:
        network = actor.inner if isinstance(actor, WarmupActor) else actor
        assert isinstance(network, NetworkActor)
        assert isinstance(actor, NetworkActor | WarmupActor)
        self._actor, self._network = actor, network
        self._parameters = in_flat_order(network)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._is_stacked = sum(self._sizes) <= LARGEST_STACKED
        self._is_batched = sum(self._sizes) <= LARGEST_BATCHED
        # By parameter, [capacity, *shape]; and by slot, each parameter of its member.
        self._stacks = [_aligned_stack(0, parameter) for parameter in self._parameters]
        self._views: list[list[Tensor]] = []
        layers: Layers | None = getattr(network, "layers", None)
        self._layers = None if layers is None else _LayerOrder.of(layers, self._parameters)
        self._vmapped = Vmapped(network, self._parameters) if self._is_batched and layers is None else None
        # By name, float64 [capacity]; `_differing` has the names whose values differ between slots.
        self._scheduled: dict[str, Array] = {}
        self._differing: list[str] = []

    def load(self, slot: int, flat: Array, scheduled: Mapping[str, float]) -> None:
        if flat.shape != (sum(self._sizes),):
            raise WeightsMismatch(
                f"expected a flat vector of {sum(self._sizes)} parameters for {type(self._network).__name__}, got "
                f"shape {flat.shape}: the weights are of another network"
            )
        if slot >= len(self._views):
            self._grow(max(4, 2 * slot))
        parts = _read_only(flat).split(self._sizes)
        shaped = [part.view_as(parameter) for part, parameter in zip(parts, self._parameters, strict=True)]
        if self._is_stacked:
            for view, part in zip(self._views[slot], shaped, strict=True):
                view.copy_(part)
        else:
            self._views[slot] = shaped
        self._load_schedule(slot, scheduled)

    def _grow(self, capacity: int) -> None:
        if not self._is_stacked:
            self._views += [[] for _ in range(capacity - len(self._views))]
            return
        for number, stack in enumerate(self._stacks):
            self._stacks[number] = _aligned_stack(capacity, self._parameters[number])
            self._stacks[number][: len(stack)] = stack
        self._views = [list(parameters) for parameters in zip(*(stack.unbind() for stack in self._stacks), strict=True)]

    def _load_schedule(self, slot: int, scheduled: Mapping[str, float]) -> None:
        for name, value in scheduled.items():
            values = self._scheduled.get(name, np.empty(0, np.float64))
            # Slots that were not loaded yet get the same value: one that differs costs time.
            self._scheduled[name] = values = np.append(values, np.full(max(0, len(self._views) - len(values)), value))
            values[slot] = value
        self._differing = [name for name, values in self._scheduled.items() if (values != values[0]).any()]
        same = {name: float(values[0]) for name, values in self._scheduled.items() if name not in self._differing}
        self._actor.set_schedule(same)

    def act(
        self, groups: RowGroups, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom
    ) -> Acted:
        before = as_tensor(memory) if isinstance(memory, np.ndarray) else None
        outputs, after = self._outputs(groups, as_tensor(obs), before)
        if self._differing:
            slots = groups.slots[groups.group_of_row]
            self._actor.set_schedule({name: self._scheduled[name][slots] for name in self._differing})
        with torch.inference_mode():
            action, logp = self._actor.choose(outputs, action_mask, mode, generator)
        return Acted(action, logp, memory if after is None else as_array(after))

    def _outputs(self, groups: RowGroups, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        count = len(groups.slots)
        if self._layers is not None:
            with torch.inference_mode():
                if self._is_batched and count >= _FEWEST_BATCHED and groups.padding <= _MOST_PADDING:
                    stacks = [self._stacks[number] for number in self._layers.order]
                    index = torch.from_numpy(groups.slots)
                    parameters = [stack.index_select(0, index) for stack in stacks]
                    return groups.flat(self._layers.layers.run_batched(groups.padded(as_rows(obs)), parameters)), None
                parts = [[self._views[slot][number] for number in self._layers.order] for slot, *_ in groups.spans]
                return self._layers.layers.run_grouped(as_rows(obs), groups.counts.tolist(), parts), None
        if self._vmapped is None or count < _FEWEST_VMAPPED or self._vmapped.is_wrong:
            return self._one_by_one(groups, obs, memory)
        if self._vmapped.is_checked:
            return self._vmapped(self._stacks, groups, obs, memory)
        found = self._one_by_one(groups, obs, memory)
        self._vmapped.check(self._stacks, groups, obs, memory, found)
        return found

    def _one_by_one(self, groups: RowGroups, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        outputs, memories = [], []
        for slot, start, stop in groups.spans:
            # No copy: as for Module.to, the parameters remain the same objects.
            for parameter, view in zip(self._parameters, self._views[slot], strict=True):
                parameter.data = view
            with torch.inference_mode():
                # Copies, because unaligned rows are rounded otherwise.
                before = None if memory is None else memory[start:stop].clone()
                rows, after = self._network.outputs(obs[start:stop].clone(), before)
            outputs.append(rows)
            if after is not None:
                memories.append(after)
        return torch.cat(outputs), torch.cat(memories) if memories else None


class _LayerOrder(NamedTuple):
    """Layers, and the number of each of their parameters among all of the network's."""

    layers: Layers
    order: list[int]

    @staticmethod
    def of(layers: Layers, parameters: Sequence[nn.Parameter]) -> _LayerOrder:
        number_of = {id(parameter): number for number, parameter in enumerate(parameters)}
        return _LayerOrder(layers, [number_of[id(parameter)] for parameter in layers.parameters])


def _aligned_stack(capacity: int, parameter: Tensor) -> Tensor:
    """Return zeros [capacity, *shape], each entry aligned as its own tensor would be: products are rounded alike."""
    size = -(-parameter.numel() // ALIGNED) * ALIGNED
    return torch.zeros(capacity, size)[:, : parameter.numel()].view(capacity, *parameter.shape)


def _read_only(flat: Array) -> Tensor:
    with warnings.catch_warnings():
        # Weights from Ray's object store are read-only, and never written to here.
        warnings.simplefilter("ignore")
        return torch.from_numpy(flat)
