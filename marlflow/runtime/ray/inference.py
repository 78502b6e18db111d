"""Inference actor: batched inference for all rollout workers on one device, as in SEED RL.

Random numbers belong to rows, and weights are selected by version, so actions are the same as if each worker computed
its own. SEED RL: Espeholt et al. 2020, https://arxiv.org/abs/1910.06591.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import ray
import torch

from marlflow.base.arrays import Array
from marlflow.base.errors import ActorLost
from marlflow.base.random import RowRandom
from marlflow.policy.actor import Acted, Actor, Mode, MovableActor, RecurrentActor, WeightedActor
from marlflow.policy.stacked import ActingMembers
from marlflow.runtime.ray.actors import Actors
from marlflow.runtime.ray.host import RemoteError, as_exception, remote_error
from marlflow.runtime.ray.inference_members import (
    ByReference,
    CohortInput,
    CohortKey,
    HostedMembers,
    InferenceInput,
    MemberKey,
    RemoteMembers,
)
from marlflow.runtime.spec import RunSpec

BATCH_WAIT_S = 0.001
"""Seconds that a call waits for calls of other workers to share its batch."""
ANSWER_TIMEOUT_S = 60.0
CACHED_VERSIONS = 8
"""Cached versions of a live policy, in addition to its frozen ones; evicted versions are sent again when needed.

With more workers there are more, since each may act with a version of its own.
"""


class InferenceKey(NamedTuple):
    """The policy, version, mode and scheduled values that calls must share to be in one batch."""

    policy: str
    version: int
    mode: Mode
    schedule: tuple[tuple[str, float], ...]


_Key: TypeAlias = InferenceKey | CohortKey
_Input: TypeAlias = InferenceInput | CohortInput


def start_inference(spec: RunSpec, actors: Actors) -> Any:
    """Start the run's inference actor; None if it has none."""
    if spec.inference is None:
        return None
    return actors.start(InferenceActor, "inference", spec, actors.threads("inference"))


def remote_actors(spec: RunSpec, inference: Any) -> dict[str, Callable[[], Actor]]:
    """Return factories of a worker's actors, which call the actor `inference`.

    Policies without parameters, and policies used only in evaluation, act locally.
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

    def members(self) -> ActingMembers:
        """Return room for frozen versions of the policy, which act in one call."""
        return RemoteMembers(
            self._policy,
            lambda key, inputs: self._answer(self._inference.act_for_members.remote(key, inputs)),
            lambda policy, member, flat: self._answer(self._inference.load_member.remote(policy, member, flat)),
        )

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

    `with_critic`: the critic's parameters follow the actor's.
    """

    actor: WeightedActor
    with_critic: bool
    members: HostedMembers
    loaded: int = -1
    flats: dict[int, Array] = field(default_factory=dict)


class InferenceActor:
    """Computes actions for all workers. Ray may restart it anytime: its state is sent again."""

    def __init__(self, spec: RunSpec, threads: int) -> None:
        torch.set_num_threads(threads)
        self._spec = spec
        self._waiting: list[tuple[_Key, _Input, asyncio.Future[Any]]] = []
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
        spec, hosted = self._spec, {}
        for name in spec.policies:
            actor, with_critic = self._actor(name), name in spec.publishing_critics
            if isinstance(actor, WeightedActor):
                make = partial(self._actor, name)
                members = HostedMembers(make, self._is_on_cpu, with_critic, spec.num_workers, spec.worker_members)
                hosted[name] = _HostedPolicy(actor, with_critic, members)
        return hosted

    @property
    def _is_on_cpu(self) -> bool:
        assert self._spec.inference is not None
        return torch.device(self._spec.inference.torch_device).type == "cpu"

    def _actor(self, policy: str) -> Actor:
        assert self._spec.inference is not None
        actor = self._spec.actors[policy]()
        if isinstance(actor, MovableActor):
            actor.move_to(self._spec.inference.torch_device)
        return actor

    async def load(self, policy: str, weights: ByReference) -> RemoteError | None:
        """Cache a version of a policy's weights, evicting the least recently used if full."""
        flats = self._hosted[policy].flats
        (flat,) = weights.flat
        flats[weights.version] = await flat if isinstance(flat, ray.ObjectRef) else flat
        # One more than workers, so that a version whose call waits for its batch is never the least recently used one.
        if len(flats) > max(CACHED_VERSIONS, self._spec.num_workers + 1):
            del flats[next(iter(flats))]
        return None

    async def load_member(self, policy: str, member: MemberKey, weights: ByReference) -> RemoteError | None:
        """Load a frozen version of a policy."""
        (flat,) = weights.flat
        array = await flat if isinstance(flat, ray.ObjectRef) else flat
        try:
            self._hosted[policy].members.load(member, array)
        except Exception as error:  # noqa: BLE001  carried over and raised where it was asked
            return remote_error(error)
        return None

    async def act_for_members(self, key: CohortKey, inputs: CohortInput) -> Acted | RemoteError | list[MemberKey]:
        """Return actions for one worker's rows of frozen versions, or the versions that have to be loaded first."""
        if missing := self._hosted[key.policy].members.missing(inputs.members):
            return missing
        return await self._in_batch(key, inputs)  # type: ignore[no-any-return]

    async def act(self, key: InferenceKey, inputs: InferenceInput) -> Acted | RemoteError | None:
        """Return actions for one worker's rows; None if that version has to be loaded first."""
        flats = self._hosted[key.policy].flats
        if key.version not in flats:
            return None
        # Reinserting moves it to the end: `load` evicts the first, which is the least recently used.
        flats[key.version] = flats.pop(key.version)
        return await self._in_batch(key, inputs)  # type: ignore[no-any-return]

    async def _in_batch(self, key: _Key, inputs: _Input) -> Any:
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self._waiting.append((key, inputs, answer))
        # A worker has one call in flight at a time, so the batch is complete.
        if len(self._waiting) >= self._spec.num_workers:
            self._answer()
        elif self._timer is None:
            self._timer = loop.call_later(BATCH_WAIT_S, self._answer)
        return await answer

    def _answer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, []
        batches: dict[_Key, list[tuple[Any, asyncio.Future[Any]]]] = {}
        for key, inputs, answer in waiting:
            batches.setdefault(key, []).append((inputs, answer))
        for key, calls in batches.items():
            answers: Sequence[Acted | RemoteError]
            try:
                batch = [inputs for inputs, _ in calls]
                answers = self._act_on_batch(key, batch) if isinstance(key, InferenceKey) else self._act_on(key, batch)
            except Exception as error:  # noqa: BLE001  carried over and raised where it was asked
                answers = [remote_error(error)] * len(calls)
            for (_, future), result in zip(calls, answers, strict=True):
                # Ray may have cancelled the call.
                if not future.done():
                    future.set_result(result)

    def _act_on(self, key: CohortKey, parts: Sequence[CohortInput]) -> Sequence[Acted]:
        acted = self._hosted[key.policy].members.act(parts, key.mode)
        return _split(acted, [sum(part.counts) for part in parts])

    def _act_on_batch(self, key: InferenceKey, parts: Sequence[InferenceInput]) -> Sequence[Acted]:
        hosted = self._hosted[key.policy]
        if hosted.loaded != key.version:
            flat = hosted.flats[key.version]
            hosted.actor.load_flat(flat[: len(hosted.actor.flat())] if hosted.with_critic else flat)
            hosted.loaded = key.version
        hosted.actor.set_schedule(dict(key.schedule))
        inputs = InferenceInput.joined(parts)
        acted = hosted.actor.act(inputs.obs, inputs.action_mask, inputs.memory, key.mode, inputs.generator)
        return _split(acted, [len(part.generator) for part in parts])


def _split(acted: Acted, rows: Sequence[int]) -> Sequence[Acted]:
    ends = np.cumsum(rows)[:-1]
    memories = [None] * len(rows) if acted.memory is None else np.split(acted.memory, ends)
    parts = zip(np.split(acted.action, ends), np.split(acted.behavior_logp, ends), memories, strict=True)
    return [Acted(*part) for part in parts]
