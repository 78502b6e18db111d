"""The inline runtime: learners, replays and workers are plain objects here."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any

import torch

from marlflow.base.batch import Batch
from marlflow.base.errors import ConfigInvalid, RuntimeFailed
from marlflow.base.items import Weights
from marlflow.base.serialization import Tree, from_bytes, to_bytes
from marlflow.learner.learner import TorchLearner
from marlflow.policy.actor import EvaluationMode
from marlflow.replay.buffer import StoredReplay
from marlflow.runtime.checkpoint_files import (
    WORKERS,
    check_names,
    learner_file,
    load_replay,
    replay_bytes,
    replay_state,
)
from marlflow.runtime.inline.place import InlinePlace, InlineReplicasPlace
from marlflow.runtime.packing import pack_batch, unpack_batch
from marlflow.runtime.protocol import RunComponents, RuntimeState
from marlflow.runtime.resources import without_cuda
from marlflow.runtime.rounds import make_round
from marlflow.runtime.spec import RunSpec
from marlflow.sampling import env_closing as closing
from marlflow.sampling.deadline import Deadline
from marlflow.sampling.hang_monitor import HangMonitor
from marlflow.sampling.messages import News
from marlflow.sampling.population import seated_in
from marlflow.sampling.protocol import FrozenPolicy, Matchup, Request, Round, Worker
from marlflow.sampling.receipts import Evaluated, Fault, Receipt
from marlflow.sampling.saved_state import ResumeReport, files_recorded, merged, share
from marlflow.sampling.watchdog import Watchdog

log = logging.getLogger("marlflow")


class InlineWorkers:
    """All workers, one after the other, in the caller's thread; nothing here ever waits."""

    def __init__(self, spec: RunSpec, on_news: Callable[[News], None]) -> None:
        self._spec, self._ticks = spec, spec.ticks
        self._watchdogs = {number: Watchdog(spec.step_timeout_s) for number in range(spec.num_workers)}
        self._monitor = HangMonitor(self._watchdogs, on_news)
        self._workers: list[Worker] = []
        try:
            for number, watchdog in self._watchdogs.items():
                self._workers.append(spec.worker(number, watchdog=watchdog))
        except BaseException:
            self._monitor.close()
            raise

    async def collect(self, request: Request) -> Round:
        """One round."""
        made = [self._collected(worker, request) for worker in self._workers]
        return make_round(request.round, [receipt for receipt, _ in made], [batches for _, batches in made])

    async def collect_next(self, request: Request | None) -> Round:
        """What the next worker makes, each in its turn."""
        if request is None:
            raise RuntimeError("nothing is under way: each worker is done when it is asked")
        worker = self._workers[request.round % len(self._workers)]
        receipt, batches = self._collected(worker, request)
        return make_round(request.round, [receipt], [batches])

    def _collected(self, worker: Worker, request: Request) -> tuple[Receipt, dict[str, Batch]]:
        return worker.collect(
            self._ticks, request.weights, request.schedules, request.matchups, request.frozen, request.forget
        )

    under_way = 0

    async def evaluate(
        self,
        episodes: range,
        weights: Mapping[str, Weights],
        matchups: Sequence[Matchup] | None = None,
        mode: EvaluationMode = "greedy",
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> Evaluated:
        """Evaluation episodes, all on the first worker."""
        return self._workers[0].evaluate(episodes, weights, matchups, mode, frozen)

    def end_by(self, deadline: Deadline) -> None:
        """What is asked from here on ends with the env step in which the deadline passes."""
        for watchdog in self._watchdogs.values():
            watchdog.deadline = deadline

    def states(self) -> list[Tree]:
        """What each worker carries from one round to the next."""
        return [worker.state() for worker in self._workers]

    def restore(self, kept: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]) -> ResumeReport:
        """Each environment goes on from what was kept of it."""
        tree, counts = from_bytes(kept), []
        for number, worker in enumerate(self._workers):
            own = share(tree, self._spec.env_indices_of(number))
            counts.append(worker.load_state(own, replay_max_env_steps, seated_in(own, frozen)))
        return ResumeReport(*(sum(column) for column in zip(*counts, strict=True)))

    def close(self) -> tuple[Fault, ...]:
        """Closes all environments; returns what went wrong."""
        self._monitor.close()
        deadline_s = perf_counter() + closing.CLOSE_TIMEOUT_S
        return tuple(fault for worker in self._workers for fault in worker.close(deadline_s - perf_counter()))


class InlineRuntime:
    """One process, one thread; the same seed gives the same bits."""

    def __init__(self) -> None:
        self._learners: dict[str, TorchLearner] = {}
        self._replays: dict[str, StoredReplay[Any]] = {}
        self._workers: InlineWorkers | None = None
        self._threads = torch.get_num_threads()

    def machines(self) -> None:
        """One process takes what it gets."""

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        """Builds every part here; there is no other process to lose, so nothing is told to `on_fault`.

        One learner stands for as many as were asked for, and each worker acts for itself: the same numbers. Raises
        ConfigInvalid if a learner is to compute on a GPU and there is none.
        """
        del on_fault
        if problems := without_cuda(replace(spec, inference=None)):
            raise ConfigInvalid(problems)
        torch.set_num_threads(1)
        for name, one in spec.learners.items():
            place = InlinePlace(f"learner {name}")
            learner = self._learners[name] = one.learner()
            learner.place = InlineReplicasPlace(spec.num_workers) if one.on_workers else place
            for shard, own in enumerate(one.replays):
                replay = self._replays[own] = one.replay(shard)
                replay.place = InlinePlace(f"replay {own}") if one.replays_apart else place
        self._workers = InlineWorkers(spec, on_news or _nobody_asked)
        return RunComponents(self._workers, dict(self._learners), dict(self._replays))

    def end_by(self, deadline: Deadline) -> None:
        """All workers; see Runtime."""
        self._playing.end_by(deadline)

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        """Everything, as bytes; see Runtime."""
        files, held = {}, {}
        for name, learner in self._learners.items():
            files[learner_file(name)] = to_bytes(learner.state())
        for name, replay in self._replays.items():
            kept = replay_state(replay, rows_saved.get(name, 0))
            files |= kept.files(name)
            held[name] = kept.held
        states = self._playing.states()
        files[WORKERS] = to_bytes(merged(states))
        return RuntimeState(files, held, files_recorded(states))

    def restore(
        self,
        read: Callable[[str], Any],
        names: Sequence[str],
        replay_max_env_steps: int,
        frozen: Mapping[str, FrozenPolicy] | None = None,
    ) -> ResumeReport:
        """Goes on from what `keep` gave; see Runtime."""
        check_names(self._learners, names)
        for name, learner in self._learners.items():
            learner.load_state(from_bytes(read(learner_file(name))))
        for name, replay in self._replays.items():
            if (found := replay_bytes(name, read, names)) is not None:
                load_replay(replay, *found)
        return self._playing.restore(read(WORKERS), replay_max_env_steps, frozen or {})

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        """Each batch as bytes."""
        return [pack_batch(payload) for payload in payloads]

    def unpack(self, packed: Sequence[bytes]) -> list[Any]:
        """The batches again."""
        return [unpack_batch(part) for part in packed]

    def object_store_bytes(self) -> None:
        """Nothing leaves this process."""

    @property
    def _playing(self) -> InlineWorkers:
        if self._workers is None:
            raise RuntimeError("the runtime has not been started, or is closed")
        return self._workers

    def close_environments(self) -> tuple[Fault, ...]:
        """All of them; see Runtime."""
        workers, self._workers = self._workers, None
        return () if workers is None else workers.close()

    def close(self) -> None:
        """Closes all environments that are still open."""
        for fault in self.close_environments():
            log.warning("%s: %s", fault.where, fault.reason)
        torch.set_num_threads(self._threads)


def _nobody_asked(news: News) -> None:
    """Whoever started the runtime did not want to know."""
