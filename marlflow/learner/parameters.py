"""A learner's parameters: module, target network, optimizers, and the weights that it publishes (get_weights)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree, is_count
from marlflow.batches.items import Weights
from marlflow.learner.compute import Compute
from marlflow.learner.extra_losses import ExtraLosses, added_losses
from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.loss_groups import LossGroup, OptimizerGroup, actors_of, frozen_copy
from marlflow.learner.optimizer import Optimizer
from marlflow.learner.part_state import PartState, saved_name
from marlflow.policy.normalized import Observer, observers
from marlflow.policy.tensors import as_tensor

ACTOR: Final = "actor"
"""The first part of the names of an actor's parameters."""


def named_parameters(module: Any, policies: Sequence[str], policy: str) -> dict[str, nn.Parameter]:
    """Return the parameters of a learner's network that belong to `policy`, one of its `policies`, by name.

    The names of its actor's parameters begin with `actor.`. If the learner trains no other policy, all its parameters
    are included. Running statistics count as parameters.
    """
    actors = actors_of(module, policies)
    named = {f"{ACTOR}.{name}": parameter for name, parameter in actors[policy].named_parameters()}
    if len(policies) > 1:
        return named
    acting = set(named.values())
    # Named from the network's own attributes: an actor may be reachable by several of them.
    rest = {name: parameter for name, parameter in module.named_parameters() if parameter not in acting}
    return {**named, **rest}


def is_part(part: str, name: str) -> bool:
    """Return whether `part` names a parameter: itself, a submodule that it is in, or `critic`, all but the actor.

    >>> [is_part(part, "actor.torso.weight") for part in ("actor", "actor.torso", "actor.tor", "critic")]
    [True, True, False, False]
    >>> is_part("critic", "critic_head.weight")
    True
    """
    if part == "critic":
        return name.partition(".")[0] != ACTOR
    return f"{name}.".startswith(f"{part}.")


PUBLISHED_SIZES: Final = "published_sizes"
"""The key of a state with the number of published parameters of each policy, int64, if there are several."""


def check_state(learner: str, state: Tree, arrays: Mapping[str, Tensor], counts: Sequence[str]) -> None:
    """Raise CheckpointUnusable unless `state` has exactly these counts and arrays, by shape and dtype."""
    if not isinstance(state, Mapping):
        raise CheckpointUnusable([f"learner {learner!r}: expected a dict of its parts, got {_described(state)}"])
    problems = [_mismatch(name, like, state.get(name)) for name, like in arrays.items()]
    problems += [
        f"{name}: expected a count, got {_described(state.get(name))}"
        for name in counts
        if not is_count(state.get(name))
    ]
    problems += [f"{name}: expected nothing of this name" for name in state if name not in {*arrays, *counts}]
    # Only an array of the right shape can be tried as a generator's state.
    problems += [] if any(problems) else [_generator_problem(state["generator"])]
    sentences = [f"learner {learner!r}: {problem}" for problem in problems if problem]
    if sentences:
        raise CheckpointUnusable(
            [*sentences[:-1], f"{sentences[-1]}; was it kept with another algorithm, optimizer, model or environment?"]
        )


def as_mapping(state: Tree) -> Mapping[str, Any]:
    """Return the state, or an empty mapping if it is not a mapping."""
    return state if isinstance(state, Mapping) else {}


def with_published(state: Tree, count: int) -> Tree:
    """Return `state` with its published parameters cut, or extended from the learner's own, to `count`.

    The sizes of each policy's parameters, which are for readers of a checkpoint, are removed.
    """
    # The count changes if a run resumes with stages in other processes, which need more than the actors.
    # A malformed state is returned unchanged, because `check_state` reports it.
    try:
        published = state["published"]
        state = {name: value for name, value in state.items() if name != PUBLISHED_SIZES}
        return {**state, "published": np.concatenate([published, state["vector"][len(published) :]])[:count]}
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return state


def _mismatch(name: str, like: Tensor, value: Any) -> str:
    expected = f"{like.numpy(force=True).dtype} {list(like.shape)}"
    actual = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else _described(value)
    return "" if actual == expected else f"{name}: expected {expected}, got {actual}"


def _generator_problem(generator: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    try:
        torch.Generator().set_state(torch.from_numpy(generator.copy()))
    except RuntimeError as error:
        return f"generator: expected the state of a random generator, got something else ({error})"
    return ""


def _described(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.40}"


COUNTS = ("version", "updates", "updates_when_published", "updates_when_synced")


class LearnerParameters:
    """The flat parameters of `module`, an optimizer for each loss group, and the frozen `target_module`, if any.

    `part_states` are the states of the algorithm's parts, by name.

    `published` has the last published weights of each of `policies` (weight synchronization), all of one version.
    `updates` counts optimizer steps; `updates_when_published` and `updates_when_synced` are its values at the last
    publishing and the last target update.
    """

    def __init__(
        self,
        module: Any,
        policies: Sequence[str],
        groups: Sequence[LossGroup],
        *,
        learning_rate: float,
        max_grad_norm: float,
        optimizer: Optimizer,
        compute: Compute,
        target: bool,
        part_states: Sequence[PartState] = (),
        extra_losses: ExtraLosses = MappingProxyType({}),
    ) -> None:
        self.module: Any = compute.prepared(module)
        trained, actors = [list(group.parameters(module)) for group in groups], actors_of(module, policies)
        self.flat = FlatParameters(module, actors, trained)
        trains = {group.name: set(own) for group, own in zip(groups, trained, strict=True)}
        added = added_losses(extra_losses, trains, actors)
        self.groups = [
            OptimizerGroup(group, module, self.flat, optimizer, learning_rate, max_grad_norm, added[group.name])
            for group in groups
        ]
        self.target_module: Any = None
        self.target_flat: FlatParameters | None = None
        if target:
            self.target_module, self.target_flat = frozen_copy(self.module, policies, groups)
        self.part_states = {state.name: state for state in part_states}
        for state in part_states:
            # A class may declare its first value, which a stage may change in place.
            if isinstance(first := getattr(state, "value", None), np.ndarray):
                state.value = first.copy()
        self.version = self.updates = self.updates_when_published = self.updates_when_synced = 0
        self.published: Mapping[str, Weights] = {}
        self._observers = [(observer, _groups_of(observer, module, groups)) for observer in observers(module)]
        self._begin_parts()
        self._copy_to_published()

    def groups_of(self, policy: str | None, names: Sequence[str] | None) -> list[OptimizerGroup]:
        """Return the loss groups that an update of `policy` alone, or of the groups `names` alone, changes."""
        return [group for group in self.groups if group.takes_part(policy) and (names is None or group.name in names)]

    def observers(self, policy: str | None, names: Sequence[str] | None = None) -> list[Observer]:
        """Return the module's running statistics that such an update changes; None is an update of all."""
        return [
            observer
            for observer, owners in self._observers
            if not owners
            or any(group.takes_part(policy) and (names is None or group.name in names) for group in owners)
        ]

    def publish(self) -> Mapping[str, Weights]:
        """Publish the acting parameters under the next version."""
        self.version += 1
        self.updates_when_published = self.updates
        self._copy_to_published()
        return self.published

    def _copy_to_published(self) -> None:
        self.published = {policy: Weights(self.version, flat) for policy, flat in self.flat.publish().items()}

    def publish_all(self) -> None:
        """Publish all parameters from now on, not only the actors'."""
        self.flat.publishes_all = True
        self._copy_to_published()

    def resume_above(self, version: int) -> Mapping[str, Weights]:
        """Publish under a version above `version`."""
        self.version = max(self.version, version)
        return self.publish()

    def load_actor(self, policy: str, flat: Array) -> None:
        """Begin with published parameters [P] of an actor, also in the target; raises WeightsMismatch."""
        self.flat.load_actor(policy, as_tensor(flat))
        self._copy_to_frozen()
        self._copy_to_published()

    def load_named(self, policy: str, tensors: Mapping[str, Array]) -> None:
        """Begin with `tensors` by name (see `named_parameters`), also in the target.

        Raises KeyError for a name that the network of `policy` does not have, RuntimeError for another shape.
        """
        parameters = named_parameters(self.module, tuple(self.published), policy)
        with torch.no_grad():
            for name, tensor in tensors.items():
                parameters[name].copy_(as_tensor(tensor))
        self._copy_to_frozen()
        self._copy_to_published()

    def _copy_to_frozen(self) -> None:
        if self.target_flat is not None:
            self.target_flat.soft_update(self.flat.vector, 1.0)
        self._begin_parts()

    def _begin_parts(self) -> None:
        for state in self.part_states.values():
            state.begin(self.module)

    def sync_target(self, tau: float) -> None:
        """Move the target network by the fraction `tau` toward the parameters (soft update)."""
        assert self.target_flat is not None
        self.target_flat.soft_update(self.flat.vector, tau)
        self.updates_when_synced = self.updates

    def state(self) -> dict[str, Tree]:
        """Return copies of the parameters, target, optimizer and part states, published weights and counts."""
        # Learning rates and loss coefficients come from the configuration.
        optimizers = {name: tensor for group in self.groups for name, tensor in group.state().items()}
        vectors, moments = (
            {name: tensor.cpu().numpy().copy() for name, tensor in tensors.items()}
            for tensors in (self._vectors(), optimizers)
        )
        parts = {saved_name(name): state.state() for name, state in self.part_states.items()}
        counts = {name: getattr(self, name) for name in COUNTS}
        # The last published version, which may be older than the current parameters: workers resume with it.
        return {**vectors, **parts, **moments, **counts, "published": self.published_flat, **self._published_sizes}

    @property
    def _published_sizes(self) -> dict[str, Array]:
        # Saved if there are several policies: a reader then loads one of them without building the others' networks.
        sizes = [len(weights.flat) for weights in self.published.values()]
        return {PUBLISHED_SIZES: np.array(sizes, np.int64)} if len(sizes) > 1 else {}

    @property
    def published_flat(self) -> Array:
        """The last published weights of all policies, concatenated, float32 [sum of P]."""
        flats = [weights.flat for weights in self.published.values()]
        return flats[0] if len(flats) == 1 else np.concatenate(flats)

    def like(self, state: Tree) -> dict[str, Tensor]:
        """Return template tensors (shape, dtype) for the arrays of `state`."""
        optimizers = {name: like for group in self.groups for name, like in group.like(as_mapping(state)).items()}
        parts = {saved_name(name): as_tensor(state.state()) for name, state in self.part_states.items()}
        return {**self._vectors(), **optimizers, "published": as_tensor(self.published_flat), **parts}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state whose arrays match `like`."""
        for name, tensor in self._vectors().items():
            tensor.copy_(as_tensor(state[name]))
        for group in self.groups:
            group.load_state(state)
        for name, part_state in self.part_states.items():
            part_state.load_state(state[saved_name(name)])
        for name in COUNTS:
            setattr(self, name, state[name])
        ends = np.cumsum([len(weights.flat) for weights in self.published.values()])[:-1]
        flats = np.split(state["published"], ends) if len(ends) else [state["published"]]
        self.published = {name: Weights(self.version, flat) for name, flat in zip(self.published, flats, strict=True)}

    def _vectors(self) -> dict[str, Tensor]:
        target = {} if self.target_flat is None else {"target": self.target_flat.vector}
        return {"vector": self.flat.vector, **target}


def _groups_of(observer: Observer, module: Any, groups: Sequence[LossGroup]) -> list[LossGroup]:
    """Return the loss groups that have the observer's parameters."""
    own = set(observer.parameters()) if isinstance(observer, nn.Module) else set()
    return [group for group in groups if own & set(group.parameters(module))]
