"""Acting for many members of one network: one choice of actions, and few network calls, for rows of all of them.

ActingMembers have the same layout of parameters, in numbered slots. The rows of each member lie together, as a group.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from marlflow.base.arrays import Array
from marlflow.base.errors import WeightsMismatch
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, NetworkActor, WeightedActor
from marlflow.policy.dense import ALIGNED, Layers, as_rows
from marlflow.policy.tensors import as_array, as_tensor, in_flat_order
from marlflow.policy.warmup import WarmupActor


@dataclass(frozen=True, slots=True)
class RowGroups:
    """The members of N rows: `slots` [G] distinct, with `counts` [G] consecutive rows each."""

    slots: Array
    counts: Array
    group_of_row: Array
    """The group of each row, [N]."""
    place: Array
    """Each row's place in its group, [N]."""
    spans: Sequence[tuple[int, int, int]]
    """Slot, first row and end of each group."""

    @staticmethod
    def of(slot_of_row: Array) -> RowGroups:
        """Group rows by their slots, int64 [N], which are adjacent where equal."""
        firsts = np.flatnonzero(np.diff(slot_of_row, prepend=-1))
        stops = np.append(firsts, len(slot_of_row))[1:]
        counts, slots = stops - firsts, slot_of_row[firsts]
        group_of_row = np.repeat(np.arange(len(firsts)), counts)
        place = np.arange(len(slot_of_row)) - firsts[group_of_row]
        spans = list(zip(slots.tolist(), firsts.tolist(), stops.tolist(), strict=True))
        return RowGroups(slots, counts, group_of_row, place, spans)

    @property
    def padding(self) -> float:
        """The factor by which the number of rows grows if each group has room for the largest."""
        return len(self.slots) * int(self.counts.max()) / len(self.place)

    def padded(self, rows: Tensor) -> Tensor:
        """Return rows [N, ...] as [G, largest group, ...], with zeros in empty places."""
        padded = np.zeros((len(self.slots), int(self.counts.max()), *rows.shape[1:]), rows.numpy().dtype)
        padded[self.group_of_row, self.place] = rows.numpy()
        return torch.from_numpy(padded)

    def flat(self, padded: Tensor) -> Tensor:
        """Return the rows [N, ...] of `padded`."""
        return torch.from_numpy(padded.numpy()[self.group_of_row, self.place])


log = logging.getLogger("marlflow")

_TOLERANCE = 1e-4
"""How far the first vmapped answer may be from the loop's; a network that keeps parameters elsewhere is farther."""


class Vmapped:
    """A network's outputs for several members in one call, by torch.func.

    A network may contain operations that cannot be vectorized, or read parameters outside of its own modules; `check`
    finds out.
    """

    def __init__(self, network: NetworkActor, parameters: Sequence[nn.Parameter]) -> None:
        self._module = _Outputs(network)
        name_of = {id(parameter): name for name, parameter in self._module.named_parameters()}
        self._names = [name_of[id(parameter)] for parameter in parameters]
        self.is_checked = self.is_wrong = False

    def __call__(
        self, stacks: Sequence[Tensor], groups: RowGroups, obs: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        index = torch.from_numpy(groups.slots)
        parameters = {name: stack.index_select(0, index) for name, stack in zip(self._names, stacks, strict=True)}
        inputs = [groups.padded(rows) for rows in (obs, memory) if rows is not None]
        # With gradients off, Dense computes in numpy, which cannot be vectorized.
        with torch.enable_grad():
            found = vmap(self._one)(parameters, *inputs)
        outputs = [groups.flat(one.detach()) for one in found]
        return outputs[0], outputs[1] if memory is not None else None

    def _one(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = functional_call(self._module, dict(parameters), inputs)
        return found

    def check(
        self,
        stacks: Sequence[Tensor],
        groups: RowGroups,
        obs: Tensor,
        memory: Tensor | None,
        expected: tuple[Tensor, Tensor | None],
    ) -> None:
        """Compare with the outputs of a loop; if they differ, this is reported, and it must not be called."""
        self.is_checked = True
        try:
            found = self(stacks, groups, obs, memory)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self._give_up(str(error).partition("\n")[0])
            return
        pairs = [(one, other) for one, other in zip(found, expected, strict=True) if one is not None]
        if not all(
            other is not None and torch.allclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)
            for one, other in pairs
        ):
            self._give_up("its outputs would differ from the outputs of one version alone")

    def _give_up(self, reason: str) -> None:
        self.is_wrong = True
        log.warning(
            "frozen versions of %s act one after the other, which takes longer the more of them play: torch.func.vmap "
            "cannot compute them together (%s)",
            type(self._module.actor).__name__,
            reason,
        )


class _Outputs(nn.Module):
    """A network actor's outputs and memory as the result of `forward`, without None."""

    def __init__(self, actor: NetworkActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return outputs, and the next memory if there is one."""
        outputs, after = self.actor.outputs(obs, memory)
        return (outputs,) if after is None else (outputs, after)


LARGEST_STACKED = 250_000
"""Number of parameters beyond which members act by their published weights, without a copy."""
LARGEST_BATCHED = 25_000
"""Number of parameters beyond which members act one after the other: gathering them costs more than the saved calls."""
_FEWEST_BATCHED = 4
_MOST_PADDING = 4
"""Dense layers are batched from this many groups on, unless padding multiplies the rows by more."""
_FEWEST_VMAPPED = 16
"""The number of groups from which one vmapped call is faster than a loop."""


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
    # A subclass that overrides these may compute something else than outputs and choice, load something else, or set
    # numbers that are the same for all rows.
    own: Any = type(network)
    is_plain = own.act is NetworkActor.act and own.load_flat is NetworkActor.load_flat
    if isinstance(network, NetworkActor) and is_plain and own.set_schedule.__module__.startswith("marlflow."):
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
        network.eval()
        self._actor, self._network = actor, network
        self._parameters = in_flat_order(network)
        self._sizes = [parameter.numel() for parameter in self._parameters]
        self._is_stacked = sum(self._sizes) <= LARGEST_STACKED
        self._is_batched = sum(self._sizes) <= LARGEST_BATCHED
        # By parameter, [capacity, *shape]; and by slot, each parameter of its member.
        self._stacks = [_aligned_stack(0, parameter) for parameter in self._parameters]
        self._views: list[list[Tensor]] = []
        found = getattr(network, "layers", None)
        # A network of a user's own may have other layers.
        layers = found if isinstance(found, Layers) else None
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
            # Slots that were not loaded yet get the same value, because different values cost time.
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
