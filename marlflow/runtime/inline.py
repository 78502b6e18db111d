"""The inline runtime: one process and thread, deterministic to the bit."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from marlflow.base.allocator import keep_freed_memory
from marlflow.base.errors import ConfigInvalid, RuntimeFailed
from marlflow.base.limits import ClockLimit
from marlflow.base.serialization import Tree, from_bytes, to_bytes
from marlflow.batches.batch import Batch
from marlflow.flow import Outcome, StageCall
from marlflow.learner.learner import TorchLearner
from marlflow.replay.protocol import SavedReplay
from marlflow.runs.checkpoint_format import (
    WORKERS,
    check_names,
    learner_file,
    load_replay,
    replay_bytes,
    replay_state,
)
from marlflow.runtime.protocol import RunComponents, RuntimeState, make_round
from marlflow.runtime.resources import without_cuda
from marlflow.runtime.spec import LearnerSpec, RunSpec
from marlflow.runtime.stage_chain import (
    ON_WORKERS,
    AllShards,
    InlinePlace,
    over_all,
    pack_batch,
    payloads_by_worker,
    run_chain,
    shard,
    unpack_batch,
)
from marlflow.sampling.messages import HangMonitor, News
from marlflow.sampling.population import seated_in
from marlflow.sampling.protocol import Assign, EvaluationRequest, FrozenPolicy, Request, Round, Worker
from marlflow.sampling.receipts import Evaluated, Fault, Receipt
from marlflow.sampling.saved_state import ResumeReport, files_recorded, merged, share
from marlflow.sampling.watchdog import Deadline, close_by

log = logging.getLogger("marlflow")


class InlineWorkers:
    """Runs workers one after the other, in the caller's thread."""

    def __init__(self, spec: RunSpec, on_news: Callable[[News], None]) -> None:
        self._spec = spec
        self._watchdogs = {number: spec.watchdog() for number in range(spec.num_workers)}
        self._monitor = HangMonitor(self._watchdogs, on_news)
        self._workers: list[Worker] = []
        try:
            for number, watchdog in self._watchdogs.items():
                self._workers.append(spec.worker(number, watchdog=watchdog))
        except BaseException:
            # No object is returned that could be closed later.
            self.close()
            raise

    async def collect(self, request: Request, assign: Assign | None = None) -> Round:
        collected = [self._collect(number, request, assign) for number in range(len(self._workers))]
        receipts, batches = zip(*collected, strict=True)
        return make_round(request.round, receipts, batches)

    async def collect_next(self, request: Request | None, assign: Assign | None = None) -> Round:
        if request is None:
            raise RuntimeError("nothing is under way: each worker is done when it is asked")
        # Each request is for one worker alone, and all of them have rows from before a reset.
        for worker in self._workers if request.reset else ():
            worker.drop_unfinished(request.reset)
        # Workers take turns, so that asynchronous runs are deterministic, too.
        receipt, batches = self._collect(request.round % len(self._workers), request, assign)
        return make_round(request.round, [receipt], [batches])

    def _collect(self, number: int, request: Request, assign: Assign | None) -> tuple[Receipt, dict[str, Batch]]:
        if assign is not None:
            request = assign(request, self._spec.env_indices_of(number))
        return self._workers[number].collect(self._spec.ticks, request)

    # Every call has finished when it returns.
    under_way = 0

    async def evaluate(self, request: EvaluationRequest) -> Evaluated:
        # The results of an episode do not depend on the worker.
        return self._workers[0].evaluate(request)

    def end_by(self, deadline: Deadline) -> None:
        """Make later calls end with the env step in which the deadline passes."""
        for watchdog in self._watchdogs.values():
            watchdog.deadline = deadline

    def states(self) -> list[Tree]:
        """Return the state of each worker."""
        return [worker.state() for worker in self._workers]

    def restore(self, saved: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]) -> ResumeReport:
        """Restore all environments; the number of workers may have changed."""
        tree = from_bytes(saved)
        reports = []
        for number, worker in enumerate(self._workers):
            state = share(tree, self._spec.env_indices_of(number))
            reports.append(worker.load_state(state, replay_max_env_steps, seated_in(state, frozen)))
        return ResumeReport(*(sum(counts) for counts in zip(*reports, strict=True)))

    def close(self) -> tuple[Fault, ...]:
        """Close all environments; return failures."""
        self._monitor.close()
        # One deadline for all workers together.
        deadline_s = close_by()
        return tuple(fault for worker in self._workers for fault in worker.close(deadline_s - perf_counter()))


class InlineRuntime:
    """Runs everything in one process and thread; the same seed gives the same bits."""

    def __init__(self) -> None:
        self._learners: dict[str, TorchLearner] = {}
        self._replays: dict[str, SavedReplay] = {}
        self._workers: InlineWorkers | None = None
        self._update_limit, self._round_limit = ClockLimit(), ClockLimit()
        self._threads = torch.get_num_threads()

    def machines(self) -> None:
        return

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """Build all components; raises ConfigInvalid if a learner needs a GPU and there is none.

        Data-parallel learners are one here, workers act without inference actor and play the matches of referees;
        results are the same.
        """
        # There is no other process that could be lost.
        del on_fault
        if problems := without_cuda(replace(spec, inference=None)):
            raise ConfigInvalid(problems)
        # The number of threads changes the order of sums, and so the bits of results. `close` restores it.
        torch.set_num_threads(1)
        keep_freed_memory()
        for name, learner_spec in spec.learners.items():
            place = InlinePlace(f"learner {name}")
            learner = self._learners[name] = replace(learner_spec, update_limit=self._update_limit).learner()
            learner.place = InlineReplicasPlace(spec.num_workers) if learner_spec.on_workers else place
            for number, replay_name in enumerate(learner_spec.replays):
                replay = self._replays[replay_name] = learner_spec.replay(number)
                replay.place = InlinePlace(f"replay {replay_name}") if learner_spec.replays_apart else place
        spec = replace(spec, round_limit=self._round_limit)
        self._workers = InlineWorkers(spec, on_news or (lambda _: None))
        return RunComponents(self._workers, dict(self._learners), dict(self._replays))

    def end_by(self, deadline: Deadline) -> None:
        self._running_workers.end_by(deadline)

    def end_updates_at(self, at_s: float) -> None:
        self._update_limit.at_s = at_s

    def end_rounds_at(self, at_s: float) -> None:
        self._round_limit.at_s = at_s

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        files, held = {}, {}
        for name, learner in self._learners.items():
            files[learner_file(name)] = to_bytes(learner.state())
        for name, replay in self._replays.items():
            state = replay_state(replay, rows_saved.get(name, 0))
            files |= state.files(name)
            held[name] = state.held
        states = self._running_workers.states()
        files[WORKERS] = to_bytes(merged(states))
        return RuntimeState(files, held, files_recorded(states))

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        check_names(self._learners, names)
        for name, learner in self._learners.items():
            learner.load_state(from_bytes(read(learner_file(name))))
        for name, replay in self._replays.items():
            if (saved := replay_bytes(name, read, names)) is not None:
                load_replay(replay, *saved)
        return self._running_workers.restore(read(WORKERS), replay_max_env_steps, frozen or {})

    def reset_learner(self, start: LearnerSpec, acting: Sequence[Any] = ()) -> None:
        self._learners[start.name].reset(start.learner(acting))
        for name in start.replays:
            self._replays[name].clear()

    def copy_learners(self, sources: Mapping[str, str]) -> None:
        states = {source: self._learners[source].state() for source in sources.values()}
        for name, source in sources.items():
            self._learners[name].copy(states[source])

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        return [pack_batch(payload) for payload in payloads]

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        return [unpack_batch(part) for part in packed]

    def object_store_bytes(self) -> None:
        return

    @property
    def _running_workers(self) -> InlineWorkers:
        if self._workers is None:
            raise RuntimeError("the runtime has not been started, or is closed")
        return self._workers

    def close_environments(self) -> tuple[Fault, ...]:
        workers, self._workers = self._workers, None
        return () if workers is None else workers.close()

    def close(self) -> None:
        for fault in self.close_environments():
            log.warning("%s: %s", fault.where, fault.reason)
        torch.set_num_threads(self._threads)


@dataclass(frozen=True, slots=True)
class InlineReplicasPlace:
    """The place of a learner with replicas: inline, one learner handles all workers' shards."""

    workers: int
    name: str = ON_WORKERS

    def prepare(self, calls: Sequence[StageCall]) -> Callable[[Sequence[Any]], Outcome]:
        chain = [over_all(call) for call in calls]

        def call(items: Sequence[Any]) -> Outcome:
            return Outcome(*run_chain(chain, [self._unpacked(item) for item in items]))

        return call

    def _unpacked(self, item: Any) -> AllShards:
        return AllShards([shard(payloads) for payloads in payloads_by_worker(item, self.workers)])
