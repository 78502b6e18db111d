"""The Ray runtime: start or join a cluster, start the actors of a run, shut everything down."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from marlflow.base.errors import ActorLost, RuntimeFailed
from marlflow.batches.items import Weights
from marlflow.learner.protocol import Learner
from marlflow.replay.protocol import Replay, first_row_of
from marlflow.runtime.protocol import RunComponents, RuntimeState
from marlflow.runtime.ray.actors import Actors, cause
from marlflow.runtime.ray.checkpointing import RayCheckpointing
from marlflow.runtime.ray.cluster import join, reserve
from marlflow.runtime.ray.handles import LearnerHandle, ReplayHandle, RestartableHost, call_restarting
from marlflow.runtime.ray.health import (
    CONNECT_POLL_S,
    DAEMON_POLL_S,
    Endpoints,
    Watch,
    dead_daemon,
    joined_cluster,
)
from marlflow.runtime.ray.host import RemoteError, as_exception
from marlflow.runtime.ray.inference import start_inference
from marlflow.runtime.ray.local_ray import LocalRay, start_local
from marlflow.runtime.ray.message_channel import Inbox, LimitPost
from marlflow.runtime.ray.places import RayPlace
from marlflow.runtime.ray.private_api import (
    dashboard_url,
    log_raylets_messages,
    object_store_bytes,
    without_signal_handlers,
)
from marlflow.runtime.ray.replicas import RayReplicas
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.resources import Machines, local_resources
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport
from marlflow.sampling.watchdog import Deadline


class RayRuntime:
    """Runs every learner, replay and rollout worker in an actor.

    Joins the cluster at `address` (`auto` finds one on this machine). Without one, it uses the Ray that this process is
    connected to, or starts a private one. That has an object store of `object_store_bytes` (None: Ray's default) and
    listens on loopback only, unless `node_ip_address` is the address at which other machines reach it, and serves Ray's
    dashboard only with `dashboard`.
    """

    def __init__(
        self,
        address: str | None = None,
        object_store_bytes: int | None = None,
        node_ip_address: str | None = None,
        dashboard: bool = False,
    ) -> None:
        self._address = address
        self._store_bytes = object_store_bytes
        self._node_ip_address = node_ip_address
        self._dashboard = dashboard
        self._dashboard_url: str | None = None
        self._show_raylets_messages: Callable[[], None] = lambda: None
        self._has_joined = False
        self._local: LocalRay | None = None
        self._watch: Watch | None = None
        self._group: PlacementGroup | None = None
        self._actors: Actors | None = None
        self._learners: dict[str, LearnerHandle] = {}
        self._replays: dict[str, ReplayHandle] = {}
        self._keeping: RayCheckpointing | None = None
        self._workers: RayWorkers | None = None
        self._referees: RayWorkers | None = None
        self._inbox: Inbox | None = None
        self._update_limit, self._round_limit = LimitPost(), LimitPost()

    def machines(self) -> Machines | None:
        # Totals, not free resources: an earlier run returns its resources only after a moment.
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
        try:
            self._connect(on_loss or _ignore)
            return self._start_actors(spec, self._faults_until_loss(on_fault or _ignore), on_news)
        except BaseException as error:
            # If Ray itself was lost meanwhile, that is the cause of whatever failed first.
            loss = self._loss()
            self.close()
            if loss is not None and isinstance(error, Exception):
                raise RuntimeFailed(loss) from error
            raise

    def _start_actors(
        self, spec: RunSpec, on_fault: Callable[[Fault], None], on_news: Callable[[News], None] | None
    ) -> RunComponents:
        limit = self._update_limit.limit
        learners = {name: replace(learner, update_limit=limit) for name, learner in spec.learners.items()}
        spec = replace(spec, learners=learners, round_limit=self._round_limit.limit)
        reservation = reserve(spec)
        self._group = reservation.group
        self._actors = Actors(reservation.options)
        inference = start_inference(spec, self._actors)
        self._inbox = None if on_news is None else Inbox(on_news)
        workers = RayWorkers(spec, self._actors, on_fault, self._current_weights, inference, self._inbox)
        self._workers = workers
        refs = workers.start() + ([] if inference is None else [inference.ready.remote()])
        if spec.num_referees:
            self._referees = self._create_referees(spec, self._actors, on_fault)
            refs += self._referees.start()
        hosts: list[RestartableHost | RayReplicas] = []
        for name, learner in spec.learners.items():
            if learner.on_workers:
                hosts.append(replicas := RayReplicas(learner, workers, on_fault))
                self._learners[name] = replicas.learner
            else:
                hosts += self._host_learner(learner, self._actors, on_fault)
        # All processes start in parallel; only now wait for them.
        for host in hosts:
            refs += host.start()
        for handle in self._learners.values():
            handle.request_first_weights()
        _wait(refs)
        self._keeping = RayCheckpointing(spec, workers, hosts, self._learners, self._replays)
        # In plans the handles take the place of the objects that they become in their actors.
        return RunComponents(
            workers,
            {name: cast("Learner", handle) for name, handle in self._learners.items()},
            {name: cast("Replay", handle) for name, handle in self._replays.items()},
            InlinePlace(fetch=_fetch, put=ray.put),
            self._referees,
            self._dashboard_url,
        )

    def _create_referees(self, spec: RunSpec, actors: Actors, on_fault: Callable[[Fault], None]) -> RayWorkers:
        numbers = range(spec.num_workers, spec.num_workers + spec.num_referees)
        # Referees compute their policies themselves: the inference actor is for the rollout workers.
        return RayWorkers(spec, actors, on_fault, self._current_weights, None, self._inbox, numbers)

    def end_by(self, deadline: Deadline) -> None:
        for workers in self._running_workers():
            for worker in workers.all:
                worker.end_by(deadline)

    def end_updates_at(self, at_s: float) -> None:
        self._update_limit.end_at(at_s)

    def end_rounds_at(self, at_s: float) -> None:
        self._round_limit.end_at(at_s)

    def _running_workers(self) -> list[RayWorkers]:
        return [workers for workers in (self._workers, self._referees) if workers is not None]

    def _host_learner(
        self, spec: LearnerSpec, actors: Actors, on_fault: Callable[[Fault], None]
    ) -> list[RestartableHost]:
        learner = f"learner {spec.name}"
        replays = {f"replay {name}": partial(spec.replay, shard) for shard, name in enumerate(spec.replays)}
        builders: dict[str, Callable[[], Any]] = {learner: spec.learner}
        if not spec.replays_apart:
            builders |= replays
        followers = [f"{learner} rank {rank}" for rank in range(1, spec.placement.num_learners)]
        hosts = [RestartableHost(learner, actors, builders, on_fault, followers)]
        place = RayPlace(hosts[0])
        self._learners[spec.name] = hosts[0].learner = LearnerHandle(spec, place)
        # Unless they are placed apart, replays share the learner's actor, so that rows need no copies.
        for shard, (name, (key, build)) in enumerate(zip(spec.replays, replays.items(), strict=True)):
            if spec.replays_apart:
                hosts.append(RestartableHost(key, actors, {key: build}, on_fault))
                place = RayPlace(hosts[-1])
            self._replays[name] = hosts[-1].replay = ReplayHandle(name, place, first_row_of(shard))
        return hosts

    async def _current_weights(self) -> Mapping[str, Weights]:
        # A learner may have been lost with the same machine, unnoticed so far: restart it first.
        for learner in self._learners.values():
            await learner.place.host.check()
        return {name: weights for learner in self._learners.values() for name, weights in learner.published.items()}

    # -- checkpoints ----------------------------------------------------------------------------------------------

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        return self._kept.save(rows_saved)

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        return self._kept.restore(read, names, replay_max_env_steps, frozen or {})

    def reset_learner(self, start: LearnerSpec, acting: Sequence[Any] = ()) -> None:
        call_restarting(self._learners[start.name], lambda learner: learner.reset(start, acting))
        for name in start.replays:
            call_restarting(self._replays[name], ReplayHandle.clear)

    def copy_learners(self, sources: Mapping[str, str]) -> None:
        states: dict[str, Any] = {}

        def fetch(learner: LearnerHandle) -> None:
            states[learner.name] = ray.get(learner.actor.kept_learner.remote(learner.key))

        for source in dict.fromkeys(sources.values()):
            call_restarting(self._learners[source], fetch)
        for name, source in sources.items():
            call_restarting(self._learners[name], partial(LearnerHandle.copy, state=states[source]))

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        return self._kept.pack(payloads)

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        return self._kept.unpack(packed)

    @property
    def _kept(self) -> RayCheckpointing:
        if self._keeping is None:
            raise RuntimeError("the runtime has not been started")
        return self._keeping

    def object_store_bytes(self) -> int | None:
        return object_store_bytes() if ray.is_initialized() and self._loss() is None else None

    # -- connecting and closing -----------------------------------------------------------------------------------

    def close_environments(self) -> tuple[Fault, ...]:
        closing = self._running_workers()
        self._workers = self._referees = None
        return tuple(fault for workers in closing for fault in workers.close())

    def close(self) -> None:
        self._keeping = None
        self._update_limit.close()
        self._round_limit.close()
        is_lost = self._loss() is not None
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        if self._inbox is not None:
            self._inbox.close(answers=ray.is_initialized() and not is_lost)
            self._inbox = None
        if ray.is_initialized():
            self._disconnect(is_lost)
        self._show_raylets_messages()

    def _disconnect(self, is_lost: bool) -> None:
        # Calls to a lost Ray would hang.
        if self._actors is not None and not is_lost:
            self._actors.kill_all()
        if self._group is not None and not is_lost:
            remove_placement_group(self._group)
        self._actors = self._group = None
        if self._local is not None:
            if is_lost:
                self._local.kill()
            self._local.close()
        elif self._has_joined:
            ray.shutdown()
        self._local, self._has_joined = None, False

    def _loss(self) -> str | None:
        return (None if self._watch is None else self._watch.loss) or dead_daemon()

    def _faults_until_loss(self, on_fault: Callable[[Fault], None]) -> Callable[[Fault], None]:
        def report_fault(fault: Fault) -> None:
            # The loss of Ray itself explains the loss of its actors.
            if (loss := self._loss()) is not None:
                raise RuntimeFailed(loss)
            on_fault(fault)

        return report_fault

    def _watch_over(self, on_loss: Callable[[RuntimeFailed], None], cluster: Endpoints | None = None) -> None:
        def ended(loss: str) -> None:
            # Before the kill, which makes the calls in flight fail: the loss of Ray is to be the error that is raised.
            on_loss(RuntimeFailed(loss))
            if self._local is not None:
                self._local.kill()

        if cluster is None:
            self._watch = Watch(dead_daemon, ended, DAEMON_POLL_S)
        else:
            self._watch = Watch(cluster.unreachable, ended, CONNECT_POLL_S)

    def _connect(self, on_loss: Callable[[RuntimeFailed], None]) -> None:
        if ray.is_initialized():
            self._watch_over(on_loss)
            return
        self._show_raylets_messages = log_raylets_messages()
        if self._address is not None:
            with without_signal_handlers():
                join(self._address)
            self._has_joined = True
            self._watch_over(on_loss, joined_cluster(self._address))
        else:
            local = local_resources()
            with without_signal_handlers():
                self._local = start_local(
                    self._node_ip_address,
                    num_cpus=int(local["CPU"]),
                    num_gpus=int(local["GPU"]),
                    include_dashboard=self._dashboard,
                    object_store_memory=self._store_bytes,
                )
            self._dashboard_url = dashboard_url() if self._dashboard else None
            self._watch_over(on_loss)


def _fetch(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except ray.exceptions.ObjectLostError as error:
        raise ActorLost(f"rows or weights were lost with their machine: {error}") from error


def _wait(refs: Sequence[Any]) -> None:
    # In order, not all at once: later ones may wait forever for one that failed.
    for ref in refs:
        try:
            answer = ray.get(ref)
        except ray.exceptions.RayError as error:
            raise ActorLost(f"a process of the run died while it started: {cause(error)}") from error
        if isinstance(answer, RemoteError):
            raise as_exception(answer)


def _ignore(news: Fault | RuntimeFailed) -> None:
    """Ignore it."""
