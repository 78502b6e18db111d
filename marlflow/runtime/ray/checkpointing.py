"""Everything that a run's actors know, as bytes that they made themselves, and back: the driver opens no rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import ray

from marlflow.base.errors import ActorLost
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.offline.dataset_reader import next_fragments
from marlflow.runtime.checkpoint_files import WORKERS, Read, ReplayState, check_names, learner_file, replay_bytes
from marlflow.runtime.protocol import RuntimeState
from marlflow.runtime.ray.actors import cause
from marlflow.runtime.ray.handles import Hosted, LearnerHandle, ReplayHandle
from marlflow.runtime.ray.host import Raised, as_exception
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.ray.replicas import RayReplicas
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.population import seated_in
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.saved_state import ResumeReport, files_recorded, merged, share


class RayCheckpointing:
    """Keeps and restores the parts of a run. Everything here blocks: it is for when nothing is in flight."""

    def __init__(
        self,
        spec: RunSpec,
        workers: RayWorkers,
        hosts: Sequence[Hosted | RayReplicas],
        learners: Mapping[str, LearnerHandle],
        replays: Mapping[str, ReplayHandle],
    ) -> None:
        self._spec, self._workers, self._hosts = spec, workers, hosts
        self._learners, self._replays = learners, replays
        self._lost: list[str] = []

    # -- keeping --------------------------------------------------------------------------------------------------

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """All files; raises ActorLost if a process died, once its successor is there or on its way."""
        learners = {name: one.actor.kept_learner.remote(one.key) for name, one in self._learners.items()}
        replays = {
            name: one.actor.kept_replay.options(num_returns=4).remote(one.key, rows_saved.get(name, 0))
            for name, one in self._replays.items()
        }
        workers = self._workers.ask_states()
        found_learners = {name: self._of(self._learners[name], ref) for name, ref in learners.items()}
        found_replays = {name: self._of(self._replays[name], refs) for name, refs in replays.items()}
        states = [self._of_worker(worker, ref) for worker, ref in workers]
        self._raise_if_lost()
        files, held = {}, {}
        for name, learner in found_learners.items():
            files[learner_file(name)] = self._learners[name].kept = learner.tobytes()
        for name, (state, rows, numbers, held[name]) in found_replays.items():
            files |= ReplayState(state.tobytes(), rows.tobytes(), numbers, held[name]).files(name)
        trees = [from_bytes(memoryview(state)) for state in states]
        files[WORKERS] = to_bytes(merged(trees))
        return RuntimeState(files, held, files_recorded(trees))

    def _of(self, handle: LearnerHandle | ReplayHandle, refs: Any) -> Any:
        """What a host answered; None if it died, and was started again."""
        hosted: Hosted | RayReplicas = handle.place.hosted
        try:
            return ray.get(refs)
        except ray.exceptions.RayActorError as error:
            if hosted.name not in self._lost:  # it may host another part, whose question it did not answer either
                self._lost.append(hosted.name)
                hosted.revive_now(error)
            return None

    def _of_worker(self, worker: RemoteWorker, ref: Any) -> Any:
        try:
            return _unless_raised(ray.get(ref))
        except ray.exceptions.RayActorError as error:
            if worker.what not in self._lost:
                self._lost.append(worker.what)
                worker.lost(error)
            return None

    def _raise_if_lost(self) -> None:
        lost, self._lost = self._lost, []
        if lost:
            raise ActorLost(f"{' and '.join(lost)} died while the run's state was taken: nothing was kept this time")

    # -- restoring ------------------------------------------------------------------------------------------------

    def restore(
        self, read: Read, names: Collection[str], replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        """Every part goes on from its files; raises ActorLost if a process dies meanwhile."""
        check_names(self._spec.learners, names)
        try:
            return self._restore(read, names, replay_max_env_steps, frozen)
        except ray.exceptions.RayActorError as error:
            raise ActorLost(f"a process of the run died while it took up what was kept: {cause(error)}") from error

    def _restore(
        self, read: Read, names: Collection[str], replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        for name, learner in self._learners.items():
            learner.goes_on(_unless_raised(ray.get(learner.restored(bytes(read(learner_file(name)))))))
        for name, replay in self._replays.items():
            if (found := replay_bytes(name, read, names)) is not None:
                state, rows = found
                answer = ray.get(replay.actor.load_replay.remote(replay.key, _array(state), *map(_array, rows)))
                replay.goes_on(*_unless_raised(answer))
        return self._restore_workers(from_bytes(read(WORKERS)), replay_max_env_steps, frozen)

    def _restore_workers(
        self, tree: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        workers, entries = self._workers.all, self._workers.as_sent(frozen)
        following = {one["env"]: one["next_episode"] for one in tree["envs"]}
        asked = []
        for worker in workers:
            own = share(tree, worker.env_indices)
            worker.forget()
            asked.append(worker.load(_array(to_bytes(own)), replay_max_env_steps, seated_in(own, entries)))
            worker.next_episodes = {env_index: following.get(env_index, 0) for env_index in worker.env_indices}
            worker.next_fragments = next_fragments(tree, worker.env_indices)
        counts = [_unless_raised(answer) for answer in ray.get(asked)]
        return ResumeReport(*(sum(column) for column in zip(*counts, strict=True)))

    # -- rows that wait on the driver -----------------------------------------------------------------------------

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Each as bytes, made by an actor; raises ActorLost if that died, or rows went with their machine."""
        try:
            return [packed.tobytes() for packed in ray.get(self._by_a_host("pack", payloads))]
        except ray.exceptions.ObjectLostError as error:
            raise ActorLost(f"rows that wait were lost: {error}") from error
        except ray.exceptions.RayActorError as error:
            self._hosts[0].revive_now(error)
            raise ActorLost(f"{self._hosts[0].name} died while it packed rows that wait") from error

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """References to what they were, made by an actor."""
        return self._by_a_host("unpack", [_array(part) for part in packed])

    def _by_a_host(self, method: str, arguments: Sequence[Any]) -> list[Any]:
        if not arguments:
            return []
        asked = getattr(self._hosts[0].actor, method).options(num_returns=len(arguments))
        made = asked.remote(*arguments)
        return made if len(arguments) > 1 else [made]


def _array(data: Any) -> Any:
    """Bytes in the form that Ray carries without copying."""
    return np.frombuffer(data, np.uint8)


def _unless_raised(answer: Any) -> Any:
    if isinstance(answer, Raised):
        raise as_exception(answer)
    return answer
