"""The Ray runtime: starts or joins a cluster, places every actor of a run, and takes them all down again."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

import ray
import torch
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marlflow.base.errors import ConfigInvalid
from marlflow.base.items import Weights
from marlflow.learn.learner import LearnerState
from marlflow.learn.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.runtime.protocol import Parts
from marlflow.runtime.ray.handles import Handle, RayPlace, as_exception
from marlflow.runtime.ray.host import Host, Raised
from marlflow.runtime.ray.workers import RayWorkers, RolloutActor
from marlflow.runtime.resources import Asked, asked_by, bundles, problems
from marlflow.runtime.spec import RunSpec

PLACING_TIMEOUT_S = 30.0
SETTLING_S = 5.0
"""How long Ray may take to show what an earlier run has given back."""


def local_resources() -> dict[str, float]:
    """What this machine would bring to a cluster of its own."""
    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}


def _free() -> dict[str, float]:
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return free


def _whole() -> dict[str, float]:
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    return whole


class RayRuntime:
    """Every learner, replay and rollout worker in an actor.

    Joins the cluster at `address` (`auto` finds one on this machine); without one, uses the Ray this process is
    already connected to, or starts one for itself and ends it on `close`.
    """

    def __init__(self, address: str | None = None, log_to_driver: bool = False) -> None:
        self._address, self._log_to_driver = address, log_to_driver
        self._started_ray = False
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []
        self._learners: dict[str, Handle] = {}

    def available(self) -> Mapping[str, float] | None:
        """What there is; of a cluster that is still to be joined, that is only known afterwards.

        What others hold of it is looked at when the run starts: an earlier run gives back only after a moment.
        """
        if ray.is_initialized():
            return _whole()
        return local_resources() if self._address is None else None

    def start(self, spec: RunSpec) -> Parts:
        """All actors, built and ready; raises ConfigInvalid if the cluster cannot give what is asked."""
        try:
            self._connect()
            asked = asked_by(spec)
            options = dict(zip([one.what for one in asked], self._options(*self._reserve(asked)), strict=True))
            workers = [
                self._started(RolloutActor, options[f"rollout worker {number}"], spec, number)
                for number in range(spec.num_workers)
            ]
            replays: dict[str, Handle] = {}
            for name in spec.learning:
                self._host(spec, name, options, replays)
            self._wait()
            return Parts(
                RayWorkers(spec, workers),
                {name: cast("Learner", handle) for name, handle in self._learners.items()},
                {name: cast("Replay", handle) for name, handle in replays.items()},
            )
        except BaseException:
            self.close()
            raise

    def learner_state(self, policy: str) -> LearnerState:
        """All parameters of a policy's learner."""
        state: LearnerState = self._learners[policy].ask("state")
        return state

    def close(self) -> None:
        """Ends every actor, and Ray itself if it was started here."""
        if not ray.is_initialized():
            return
        for actor in self._actors:
            ray.kill(actor)
        self._actors.clear()
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None
        if self._started_ray:
            ray.shutdown()
            self._started_ray = False

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": self._log_to_driver}
        if self._address is not None:
            ray.init(address=self._address, **quiet)
        else:
            local = local_resources()
            ray.init(num_cpus=int(local["CPU"]), num_gpus=int(local["GPU"]), include_dashboard=False, **quiet)
        self._started_ray = True

    def _reserve(self, asked: Sequence[Asked]) -> tuple[PlacementGroup, list[dict[str, float]]]:
        available = _free()
        if found := problems(asked, available):
            raise ConfigInvalid(found)
        taken = bundles(asked, available)
        group = self._group = placement_group(taken, strategy="PACK")
        if not group.wait(PLACING_TIMEOUT_S):
            shown = "; ".join(f"{one.what}: {bundle}" for one, bundle in zip(asked, taken, strict=True))
            raise ConfigInvalid(
                [f"no machine of the cluster has room for what is asked ({shown}); available: {dict(available)}"]
            )
        return group, taken

    def _options(self, group: PlacementGroup, taken: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
        return [
            {
                "num_cpus": bundle.get("CPU", 0.0),
                "num_gpus": bundle.get("GPU", 0.0),
                "resources": {name: amount for name, amount in bundle.items() if name not in ("CPU", "GPU")},
                "scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index),
            }
            for index, bundle in enumerate(taken)
        ]

    def _host(
        self, spec: RunSpec, name: str, options: Mapping[str, dict[str, Any]], replays: dict[str, Handle]
    ) -> None:
        """A policy's learner, and its replay beside it or apart."""
        policy = spec.policies[name]
        key, remembers = f"replay {name}", policy.algorithm.remembers
        apart = remembers and policy.placement.replay == "own"
        builders: dict[str, Any] = {f"learner {name}": policy.learner}
        if remembers and not apart:
            builders[key] = policy.replay
        chosen = options[f"learner {name}"]
        place = RayPlace(f"learner {name}", self._started(Host, chosen, builders, max(1, int(chosen["num_cpus"]))))
        learner = Handle(name, f"learner {name}", place, policy.algorithm.trains_on)
        learner.published = Weights(0, place.actor.weights.remote(f"learner {name}"))
        self._learners[name] = learner
        if apart:
            place = RayPlace(key, self._started(Host, options[key], {key: policy.replay}, 1))
        if remembers:
            replays[name] = Handle(name, key, place)

    def _started(self, kind: type, options: Mapping[str, Any], *arguments: Any) -> Any:
        # Not by decorator: a decorated class would travel by value, with a copy of its module's globals. Ray's own
        # events of every call are for a dashboard that is not there.
        actor: Any = ray.remote(kind).options(enable_task_events=False, **options).remote(*arguments)
        self._actors.append(actor)
        return actor

    def _wait(self) -> None:
        """Until every actor is built; the first thing that went wrong is raised."""
        for answer in ray.get([actor.ready.remote() for actor in self._actors]):
            if isinstance(answer, Raised):
                raise as_exception(answer)


def _settled(asked: Sequence[Asked]) -> dict[str, float]:
    """What is free; a lack that the whole cluster could meet is looked at again for a moment."""
    whole, deadline = _whole(), time.monotonic() + SETTLING_S
    while True:
        free = _free()
        if not problems(asked, free) or problems(asked, whole) or time.monotonic() > deadline:
            return free
        time.sleep(0.1)
