"""Inference actor: batched inference for all rollout workers on one device, as in SEED RL.

Random numbers belong to rows, and weights are selected by version, so actions are the same as if each worker computed
its own. SEED RL: Espeholt et al. 2020, https://arxiv.org/abs/1910.06591.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import ray
import torch

from marlflow.base.batch import Array
from marlflow.base.errors import ActorLost
from marlflow.base.items import Weights
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, MovableActor, RecurrentActor, WeightedActor
from marlflow.runtime.ray.actors import Actors
from marlflow.runtime.ray.host import RemoteError, as_exception, remote_error
from marlflow.runtime.spec import RunSpec

BATCH_WAIT_S = 0.001
"""Seconds that a call waits for calls of other workers to share its batch."""
ANSWER_TIMEOUT_S = 60.0
MAX_CACHED_VERSIONS = 8
"""Cached versions of a live policy, besides its frozen ones; evicted ones are sent again when needed."""


class InferenceKey(NamedTuple):
    """The policy, version, mode and scheduled values that calls must share to be in one batch."""

    policy: str
    version: int
    mode: Mode
    schedule: tuple[tuple[str, float], ...]


class InferenceInput(NamedTuple):
    """The arguments of `Actor.act` for the rows of one call."""

    obs: Array
    action_mask: Array | None
    memory: Array | None
    generator: RowRandom


@dataclass(frozen=True, slots=True)
class ByReference:
    """Weights as sent to workers with an inference actor: a version and an object reference."""

    version: int
    flat: list[Any]
    """One object reference; Ray does not fetch references nested in a list."""


def by_reference(weights: Mapping[str, Weights]) -> dict[str, Weights]:
    """Replace weights by references that workers do not fetch."""
    return {name: Weights(new.version, ByReference(new.version, [new.flat])) for name, new in weights.items()}


def fetch_weights(flat: Any) -> Array:
    """Return published weights as an array, fetching a reference."""
    value = flat.flat[0] if isinstance(flat, ByReference) else flat
    array: Array = ray.get(value) if isinstance(value, ray.ObjectRef) else value
    return array


def start_inference(spec: RunSpec, actors: Actors) -> Any:
    """Start the run's inference actor; None if it has none."""
    if spec.inference is None:
        return None
    return actors.start(InferenceActor, "inference", spec, actors.threads("inference"))


def remote_actors(spec: RunSpec, inference: Any) -> dict[str, Callable[[], Actor]]:
    """Return factories of a worker's actors, which call the actor `inference`.

    Policies without parameters, and those used only in evaluation, act locally.
    """
    return {
        name: _remote_actor(name, make, inference) if name in spec.policies else make
        for name, make in spec.actors.items()
    }


def _remote_actor(policy: str, make: Callable[[], Actor], inference: Any) -> Callable[[], Actor]:
    actor = make()
    # Without parameters there is nothing to compute that is worth a remote call.
    if not isinstance(actor, WeightedActor):
        return make
    if isinstance(actor, RecurrentActor):
        return partial(RecurrentRemoteActor, policy, inference, actor.memory_shape)
    return partial(RemoteActor, policy, inference)


class RemoteActor:
    """A policy's actor in a worker: one remote call for all rows of a tick."""

    def __init__(self, policy: str, inference: Any) -> None:
        self._policy, self._inference = policy, inference
        self._weights = ByReference(-1, [])
        self._schedule: dict[str, float] = {}

    def act(self, obs: Array, action_mask: Array | None, memory: Any, mode: Mode, generator: RowRandom) -> Acted:
        key = InferenceKey(self._policy, self._weights.version, mode, tuple(self._schedule.items()))
        inputs = InferenceInput(obs, action_mask, memory, generator)
        # The inference actor may have evicted this version, or have been restarted: send it, then ask again.
        while (answer := self._answer(self._inference.act.remote(key, inputs))) is None:
            self._answer(self._inference.load.remote(self._policy, self._weights))
        result: Acted = answer
        return result

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self._schedule.update(values)

    def flat(self) -> Any:
        return self._weights

    def load_flat(self, flat: Any) -> None:
        self._weights = flat

    def _answer(self, ref: Any) -> Any:
        try:
            answer = ray.get(ref, timeout=ANSWER_TIMEOUT_S)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
            raise ActorLost(f"the inference actor does not answer: {' '.join(str(error).split())}") from error
        if isinstance(answer, RemoteError):
            raise as_exception(answer)
        return answer


class RecurrentRemoteActor(RemoteActor):
    """A remote actor with memory, which the worker sends with each call."""

    def __init__(self, policy: str, inference: Any, memory_shape: tuple[int, ...]) -> None:
        super().__init__(policy, inference)
        self.memory_shape = memory_shape


@dataclass(slots=True)
class _HostedPolicy:
    """A policy's actor and its cached weights by version.

    `with_critic`: the critic's parameters follow the actor's. `frozen` is the most frozen versions used at once.
    """

    actor: WeightedActor
    with_critic: bool
    frozen: int = 0
    loaded: int = -1
    flats: dict[int, Array] = field(default_factory=dict)


class InferenceActor:
    """Computes actions for all workers. Ray may restart it anytime: its state is sent again."""

    def __init__(self, spec: RunSpec, threads: int) -> None:
        torch.set_num_threads(threads)
        self._spec = spec
        self._waiting: list[tuple[InferenceKey, InferenceInput, asyncio.Future[Any]]] = []
        self._timer: asyncio.TimerHandle | None = None

    async def ready(self) -> RemoteError | None:
        """Build all actors; return the error if one failed."""
        # The first access builds them, so that errors of construction are returned here.
        try:
            _ = self._hosted
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
        return None

    @cached_property
    def _hosted(self) -> dict[str, _HostedPolicy]:
        assert self._spec.inference is not None
        device, hosted = self._spec.inference.torch_device, {}
        for name in self._spec.policies:
            actor = self._spec.actors[name]()
            if isinstance(actor, WeightedActor):
                if isinstance(actor, MovableActor):
                    actor.move_to(device)
                hosted[name] = _HostedPolicy(actor, name in self._spec.publishing_critics)
        return hosted

    async def load(self, policy: str, weights: ByReference) -> RemoteError | None:
        """Cache a version of a policy's weights, evicting the least recently used if full."""
        flats = self._hosted[policy].flats
        (flat,) = weights.flat
        flats[weights.version] = await flat if isinstance(flat, ray.ObjectRef) else flat
        if len(flats) > MAX_CACHED_VERSIONS + self._hosted[policy].frozen:
            del flats[next(iter(flats))]
        return None

    async def reserve_frozen(self, frozen: Mapping[str, int]) -> None:
        """Enlarge the cache for this many frozen versions per policy."""
        for policy, count in frozen.items():
            self._hosted[policy].frozen = max(count, self._hosted[policy].frozen)

    async def act(self, key: InferenceKey, inputs: InferenceInput) -> Acted | RemoteError | None:
        """Return actions for one worker's rows; None if that version has to be loaded first."""
        flats = self._hosted[key.policy].flats
        if key.version not in flats:
            return None
        # Reinserting moves it to the end: `load` evicts the first, which is the least recently used.
        flats[key.version] = flats.pop(key.version)
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((key, inputs, answer))
        # A worker has one call in flight at a time, so the batch is complete.
        if len(self._waiting) >= self._spec.num_workers:
            self._answer()
        elif self._timer is None:
            self._timer = loop.call_later(BATCH_WAIT_S, self._answer)
        return await answer  # type: ignore[no-any-return]

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        batches: dict[InferenceKey, list[tuple[InferenceInput, asyncio.Future[Any]]]] = {}
        for key, inputs, answer in waiting:
            batches.setdefault(key, []).append((inputs, answer))
        for key, calls in batches.items():
            answers: Sequence[Acted | RemoteError]
            try:
                answers = self._act_on_batch(key, [inputs for inputs, _ in calls])
            except Exception as error:  # noqa: BLE001  carried over and raised where it was asked
                answers = [remote_error(error)] * len(calls)
            for (_, future), result in zip(calls, answers, strict=True):
                # Ray may have cancelled the call.
                if not future.done():
                    future.set_result(result)

    def _act_on_batch(self, key: InferenceKey, parts: Sequence[InferenceInput]) -> Sequence[Acted]:
        hosted = self._hosted[key.policy]
        if hosted.loaded != key.version:
            flat = hosted.flats[key.version]
            hosted.actor.load_flat(flat[: len(hosted.actor.flat())] if hosted.with_critic else flat)
            hosted.loaded = key.version
        hosted.actor.set_schedule(dict(key.schedule))
        inputs = _concatenate_inputs(parts)
        acted = hosted.actor.act(inputs.obs, inputs.action_mask, inputs.memory, key.mode, inputs.generator)
        return _split(acted, [len(part.generator) for part in parts])


def _concatenate_inputs(parts: Sequence[InferenceInput]) -> InferenceInput:
    if len(parts) == 1:
        return parts[0]
    generator = RowRandom.joined([part.generator for part in parts])
    return InferenceInput(
        np.concatenate([part.obs for part in parts]),
        _concatenate([part.action_mask for part in parts]),
        _concatenate([part.memory for part in parts]),
        generator,
    )


def _concatenate(parts: Sequence[Array | None]) -> Array | None:
    # All calls of a policy have this input, or none has.
    given = [part for part in parts if part is not None]
    return np.concatenate(given) if given else None


def _split(acted: Acted, rows: Sequence[int]) -> Sequence[Acted]:
    ends = np.cumsum(rows)[:-1]
    memories = [None] * len(rows) if acted.memory is None else np.split(acted.memory, ends)
    parts = zip(np.split(acted.action, ends), np.split(acted.behavior_logp, ends), memories, strict=True)
    return [Acted(*part) for part in parts]
