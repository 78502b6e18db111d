"""The Ray runtime: starts or joins a cluster, places every actor of a run, and takes them all down again."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import ray
import torch
from ray.util.placement_group import PlacementGroup, remove_placement_group

from marlflow.base.errors import ActorLost, RuntimeFailed
from marlflow.base.items import Weights
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay
from marlflow.replay.shards import first_row_of
from marlflow.runtime.protocol import RunComponents, RuntimeState
from marlflow.runtime.ray.actors import Actors, cause
from marlflow.runtime.ray.checkpointing import RayCheckpointing
from marlflow.runtime.ray.cluster import join
from marlflow.runtime.ray.handles import Hosted, LearnerHandle, ReplayHandle
from marlflow.runtime.ray.health import (
    CONNECT_EVERY_S,
    LOOK_EVERY_S,
    Endpoints,
    Watch,
    dead_daemon,
    joined_cluster,
)
from marlflow.runtime.ray.host import Raised, as_exception
from marlflow.runtime.ray.inference import started
from marlflow.runtime.ray.local_ray import kill_sessions, start_local, without_signal_handlers
from marlflow.runtime.ray.message_channel import Inbox
from marlflow.runtime.ray.places import RayPlace
from marlflow.runtime.ray.replicas import RayReplicas
from marlflow.runtime.ray.reservation import reserve
from marlflow.runtime.ray.store import object_store_bytes
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.relocation import DriverPlace
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.sampling.deadline import Deadline
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport


def local_resources() -> dict[str, float]:
    """What this machine would bring to a cluster of its own."""
    return {"CPU": float(len(os.sched_getaffinity(0))), "GPU": float(torch.cuda.device_count())}


class RayRuntime:
    """Every learner, replay and rollout worker in an actor.

    Joins the cluster at `address` (`auto` finds one on this machine); without one, uses the Ray this process is
    already connected to, or starts one for itself and ends it on `close`. One that it starts holds rows and weights in
    `object_store_bytes` of memory (None leaves that to Ray), and listens on loopback only, unless `node_ip_address` is
    the address by which other machines are to reach it.
    """

    def __init__(
        self,
        address: str | None = None,
        log_to_driver: bool = False,
        object_store_bytes: int | None = None,
        node_ip_address: str | None = None,
    ) -> None:
        self._address, self._log_to_driver, self._store_bytes = address, log_to_driver, object_store_bytes
        self._node_ip_address = node_ip_address
        self._started_ray = False
        self._sessions: list[int] = []
        self._watch: Watch | None = None
        self._group: PlacementGroup | None = None
        self._actors: Actors | None = None
        self._learners: dict[str, LearnerHandle] = {}
        self._replays: dict[str, ReplayHandle] = {}
        self._keeping: RayCheckpointing | None = None
        self._workers: RayWorkers | None = None
        self._inbox: Inbox | None = None

    def machines(self) -> Machines | None:
        """What there is; of a cluster that is still to be joined, that is only known afterwards.

        What others hold of it is looked at when the run starts: an earlier run gives back only after a moment.
        """
        if ray.is_initialized():
            nodes: list[dict[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
            return Machines(nodes, here=len(nodes) == 1)
        return Machines([local_resources()], here=True) if self._address is None else None

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """All actors, built and ready; raises ConfigInvalid if the cluster cannot give what is asked."""
        told = self._unless_lost(on_fault or _nobody_asked)
        try:
            self._connect(on_loss or _nobody_asked)
            reserved = reserve(spec)
            self._group = reserved.group
            self._actors = Actors(reserved.options)
            inference = started(spec, self._actors)
            address = None if on_news is None else self._inbox_for(on_news).address
            workers = self._workers = RayWorkers(spec, self._actors, told, self._renewed, inference, address)
            awaited = workers.start() + ([] if inference is None else [inference.ready.remote()])
            hosts: list[Hosted | RayReplicas] = []
            for name, one in spec.learners.items():
                if one.on_workers:
                    hosts.append(replicas := RayReplicas(one, workers, told))
                    self._learners[name] = replicas.learner
                else:
                    hosts += self._hosts(one, self._actors, told)
            for host in hosts:
                awaited += host.start()
            for learner in self._learners.values():
                learner.ask_first_weights()
            _wait(awaited)
            self._keeping = RayCheckpointing(spec, workers, hosts, self._learners, self._replays)
            return RunComponents(
                workers,
                {name: cast("Learner", handle) for name, handle in self._learners.items()},
                {name: cast("Replay", handle) for name, handle in self._replays.items()},
                DriverPlace(_opened, ray.put),
            )
        except BaseException as error:
            loss = self._loss()
            self.close()
            if loss is not None and isinstance(error, Exception):
                raise RuntimeFailed(loss) from error
            raise

    def _inbox_for(self, on_news: Callable[[News], None]) -> Inbox:
        self._inbox = Inbox(on_news)
        return self._inbox

    def end_by(self, deadline: Deadline) -> None:
        """All workers; see Runtime."""
        for worker in self._workers.all if self._workers is not None else ():
            worker.end_by(deadline)

    def _hosts(self, spec: LearnerSpec, actors: Actors, on_fault: Callable[[Fault], None]) -> list[Hosted]:
        """A learner, and its replays beside it or apart."""
        learner = f"learner {spec.name}"
        replays = {f"replay {name}": partial(spec.replay, shard) for shard, name in enumerate(spec.replays)}
        builders: dict[str, Callable[[], Any]] = {learner: spec.learner}
        if not spec.replays_apart:
            builders |= replays
        followers = [f"{learner} rank {rank}" for rank in range(1, spec.placement.num_learners)]
        hosts = [Hosted(learner, actors, builders, on_fault, followers)]
        place = RayPlace(hosts[0])
        self._learners[spec.name] = hosts[0].learner = LearnerHandle(spec, place)
        for shard, (name, (key, build)) in enumerate(zip(spec.replays, replays.items(), strict=True)):
            if spec.replays_apart:
                hosts.append(Hosted(key, actors, {key: build}, on_fault))
                place = RayPlace(hosts[-1])
            self._replays[name] = hosts[-1].replay = ReplayHandle(name, place, first_row_of(shard))
        return hosts

    async def _renewed(self) -> Mapping[str, Weights]:
        """What each learner has published, or its successor, if it was lost and nobody has noticed yet."""
        for learner in self._learners.values():
            await learner.place.hosted.look()
        return {name: weights for learner in self._learners.values() for name, weights in learner.published.items()}

    # -- what is kept ---------------------------------------------------------------------------------------------

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Everything, as bytes; see Runtime."""
        return self._kept.save(rows_saved)

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        """Goes on from what `keep` gave; see Runtime."""
        return self._kept.restore(read, names, replay_max_env_steps, frozen or {})

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Rows that wait on the driver, as bytes: an actor opens them."""
        return self._kept.pack(payloads)

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """References to what `pack` was given."""
        return self._kept.unpack(packed)

    @property
    def _kept(self) -> RayCheckpointing:
        if self._keeping is None:
            raise RuntimeError("the runtime has not been started")
        return self._keeping

    def object_store_bytes(self) -> int | None:
        """How much the cluster's object stores hold now, in bytes: rows and weights on their way. None once closed."""
        return object_store_bytes() if ray.is_initialized() and self._loss() is None else None

    # -- beginning and end ----------------------------------------------------------------------------------------

    def close_environments(self) -> tuple[Fault, ...]:
        """All of them; see Runtime."""
        workers, self._workers = self._workers, None
        return () if workers is None else workers.close()

    def close(self) -> None:
        """Ends every actor, and Ray itself if it was started here."""
        self._keeping = None
        is_lost = self._loss() is not None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._inbox is not None:
            self._inbox.close(answers=ray.is_initialized() and not is_lost)
            self._inbox = None
        if not ray.is_initialized():
            return
        if self._actors is not None and not is_lost:  # else nobody is there to ask
            self._actors.end_all()
        if self._group is not None and not is_lost:
            remove_placement_group(self._group)
        self._actors = self._group = None
        if self._started_ray:
            if is_lost:
                kill_sessions(self._sessions)
            ray.shutdown()
            self._started_ray = False

    def _loss(self) -> str | None:
        """How Ray itself was lost, if it was."""
        return (None if self._watch is None else self._watch.loss) or dead_daemon()

    def _unless_lost(self, on_fault: Callable[[Fault], None]) -> Callable[[Fault], None]:
        """Tells of faults until Ray itself is lost, which is then the cause of what dies: raises RuntimeFailed."""

        def told(fault: Fault) -> None:
            if (loss := self._loss()) is not None:
                raise RuntimeFailed(loss)
            on_fault(fault)

        return told

    def _watch_over(self, on_loss: Callable[[RuntimeFailed], None], cluster: Endpoints | None = None) -> None:
        """Watches the servers of a cluster that was joined, or the daemons that this process started."""

        def ended(loss: str) -> None:
            on_loss(RuntimeFailed(loss))  # first: what the run has under way fails when its processes go
            kill_sessions(self._sessions)

        if cluster is None:
            self._watch = Watch(dead_daemon, ended, LOOK_EVERY_S)
        else:
            self._watch = Watch(cluster.unreachable, ended, CONNECT_EVERY_S)

    def _connect(self, on_loss: Callable[[RuntimeFailed], None]) -> None:
        if ray.is_initialized():
            self._watch_over(on_loss)
            return
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": self._log_to_driver}
        if self._address is not None:
            with without_signal_handlers():
                join(self._address, **quiet)
            self._started_ray = True
            self._watch_over(on_loss, joined_cluster(self._address))
        else:
            local = local_resources()
            with without_signal_handlers():
                self._sessions = start_local(
                    self._node_ip_address,
                    num_cpus=int(local["CPU"]),
                    num_gpus=int(local["GPU"]),
                    include_dashboard=False,
                    object_store_memory=self._store_bytes,
                    **quiet,
                )
            self._started_ray = True
            self._watch_over(on_loss)


def _opened(ref: Any) -> Any:
    """What a reference refers to; raises ActorLost if that went with its machine."""
    try:
        return ray.get(ref)
    except ray.exceptions.ObjectLostError as error:
        raise ActorLost(f"rows or weights were lost with their machine: {error}") from error


def _wait(refs: Sequence[Any]) -> None:
    """Until every actor is built; the first thing that went wrong is raised, ActorLost if a process died."""
    for ref in refs:  # one after the other: others may wait for one that has failed
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayError as error:
            raise ActorLost(f"a process of the run died while it started: {cause(error)}") from error
        if isinstance(answer, Raised):
            raise as_exception(answer)


def _nobody_asked(news: Fault | RuntimeFailed) -> None:
    """Whoever started the runtime did not want to know."""
