"""Checkpoints on Ray: actors serialize their own state, so the driver never opens rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import ray

from marlflow.base.errors import ActorLost
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.offline.dataset_reader import next_fragments
from marlflow.runs.checkpoint_format import WORKERS, Read, ReplayState, check_names, learner_file, replay_bytes
from marlflow.runtime.protocol import RuntimeState
from marlflow.runtime.ray.actors import cause
from marlflow.runtime.ray.handles import LearnerHandle, ReplayHandle, RestartableHost
from marlflow.runtime.ray.host import RemoteError, as_array, as_exception
from marlflow.runtime.ray.remote_worker import RemoteWorker
from marlflow.runtime.ray.replicas import RayReplicas
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.spec import RunSpec
from marlflow.runtime.stage_chain import batch_class
from marlflow.sampling.population import seated_in
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.saved_state import ResumeReport, files_recorded, merged, share


class RayCheckpointing:
    """Saves and restores a run's components. Methods block; call them when nothing is in flight."""

    def __init__(
        self,
        spec: RunSpec,
        workers: RayWorkers,
        hosts: Sequence[RestartableHost | RayReplicas],
        learners: Mapping[str, LearnerHandle],
        replays: Mapping[str, ReplayHandle],
    ) -> None:
        self._spec = spec
        self._workers = workers
        self._hosts = hosts
        self._learners = learners
        self._replays = replays
        self._lost: list[str] = []

    # -- saving ---------------------------------------------------------------------------------------------------

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Return all checkpoint files; raises ActorLost after restarting any lost process."""
        # All are requested before any answer is awaited, so that they serialize in parallel.
        learners = {name: handle.actor.kept_learner.remote(handle.key) for name, handle in self._learners.items()}
        replays = {
            name: handle.actor.kept_replay.options(num_returns=4).remote(handle.key, rows_saved.get(name, 0))
            for name, handle in self._replays.items()
        }
        workers = self._workers.request_states()
        learner_states = {name: self._answer_of(self._learners[name], ref) for name, ref in learners.items()}
        replay_states = {name: self._answer_of(self._replays[name], refs) for name, refs in replays.items()}
        states = [self._answer_of_worker(worker, ref) for worker, ref in workers]
        # Only now, so that every lost process is restarted and the error names them all.
        self._raise_if_lost()
        files, held = {}, {}
        for name, learner in learner_states.items():
            files[learner_file(name)] = self._learners[name].kept = learner.tobytes()
        for name, (state, rows, numbers, held[name]) in replay_states.items():
            files |= ReplayState(state.tobytes(), rows.tobytes(), numbers, held[name]).files(name)
        trees = [from_bytes(memoryview(state)) for state in states]
        files[WORKERS] = to_bytes(merged(trees))
        return RuntimeState(files, held, files_recorded(trees))

    def _answer_of(self, handle: LearnerHandle | ReplayHandle, refs: Any) -> Any:
        host: RestartableHost | RayReplicas = handle.place.host
        try:
            return ray.get(refs)
        except ray.exceptions.RayActorError as error:
            # The same actor may host a learner and replays: restart it once.
            if host.name not in self._lost:
                self._lost.append(host.name)
                host.restart_blocking(error)
            return None

    def _answer_of_worker(self, worker: RemoteWorker, ref: Any) -> Any:
        try:
            return _unless_raised(ray.get(ref))
        except ray.exceptions.RayActorError as error:
            if worker.name not in self._lost:
                self._lost.append(worker.name)
                worker.replace_lost(error)
            return None

    def _raise_if_lost(self) -> None:
        lost, self._lost = self._lost, []
        if lost:
            raise ActorLost(f"{' and '.join(lost)} died while the run's state was taken: nothing was kept this time")

    # -- restoring ------------------------------------------------------------------------------------------------

    def restore(
        self, read: Read, names: Collection[str], replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        """Restore all components from their files; raises ActorLost if a process is lost meanwhile."""
        check_names(self._spec.learners, names)
        try:
            return self._restore(read, names, replay_max_env_steps, frozen)
        except ray.exceptions.RayActorError as error:
            raise ActorLost(f"a process of the run ended while it restored its checkpoint: {cause(error)}") from error

    def _restore(
        self, read: Read, names: Collection[str], replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        for name, learner in self._learners.items():
            learner.confirm_restored(_unless_raised(ray.get(learner.restore(bytes(read(learner_file(name)))))))
        for name, replay in self._replays.items():
            if (saved := replay_bytes(name, read, names)) is not None:
                state, rows = saved
                answer = ray.get(replay.actor.load_replay.remote(replay.key, as_array(state), *map(as_array, rows)))
                replay.confirm_restored(*_unless_raised(answer))
        return self._restore_workers(from_bytes(read(WORKERS)), replay_max_env_steps, frozen)

    def _restore_workers(
        self, tree: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]
    ) -> ResumeReport:
        workers = self._workers.all
        next_episodes = {env["env"]: env["next_episode"] for env in tree["envs"]}
        answers = []
        for worker in workers:
            state = share(tree, worker.env_indices)
            worker.forget()
            answers.append(worker.load(as_array(to_bytes(state)), replay_max_env_steps, seated_in(state, frozen)))
            # A worker that is lost before its next receipt restarts here.
            worker.next_episodes = {env_index: next_episodes.get(env_index, 0) for env_index in worker.env_indices}
            worker.next_fragments = next_fragments(tree, worker.env_indices)
        counts = [_unless_raised(answer) for answer in ray.get(answers)]
        return ResumeReport(*(sum(column) for column in zip(*counts, strict=True)))

    # -- queued rows ----------------------------------------------------------------------------------------------

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Serialize queued rows in an actor; raises ActorLost if it or the rows are lost."""
        try:
            return [packed.tobytes() for packed in ray.get(self._in_host("pack", payloads))]
        except ray.exceptions.ObjectLostError as error:
            raise ActorLost(f"rows that wait were lost: {error}") from error
        except ray.exceptions.RayActorError as error:
            self._hosts[0].restart_blocking(error)
            raise ActorLost(f"{self._hosts[0].name} died while it packed rows that wait") from error

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """Return references to the rows that `pack` serialized."""
        # The driver knows a user's own classes, and another process may have none of the modules that they are in.
        kinds = [batch_class(part) for part in packed]
        return self._in_host("unpack", [as_array(part) for part in packed], kinds)

    def _in_host(self, method: str, arguments: Sequence[Any], *about: Any) -> list[Any]:
        if not arguments:
            return []
        remote_method = getattr(self._hosts[0].actor, method).options(num_returns=len(arguments))
        refs = remote_method.remote(*about, *arguments)
        # With num_returns=1 Ray gives the reference itself instead of a list.
        return refs if len(arguments) > 1 else [refs]


def _unless_raised(answer: Any) -> Any:
    if isinstance(answer, RemoteError):
        raise as_exception(answer)
    return answer
