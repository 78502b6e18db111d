"""A rollout worker as a Ray actor; a dead one is replaced by a new process (RLlib's restart_failed_env_runners)."""

from __future__ import annotations

import logging
import pickle
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray

from marlflow.base.errors import FaultKind
from marlflow.batches.items import Weights
from marlflow.runtime.ray.actors import UNEXPLAINED_EXIT, Actors, cause, never_ran
from marlflow.runtime.ray.host import RemoteError, as_exception
from marlflow.runtime.ray.inference_members import frozen_by_reference
from marlflow.runtime.ray.message_channel import Inbox
from marlflow.runtime.ray.rollout_actor import RolloutActor, without_parameters
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.population import StoredEntries
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Matchup, Request
from marlflow.sampling.receipts import Fault, Receipt
from marlflow.sampling.watchdog import Deadline
from marlflow.sampling.worker import worker_name

log = logging.getLogger("marlflow")

_LATE_S = 30.0
"""A replacement that has not begun after so long is reported: there may be no room for it."""
_MOST_SKIPPED = 12
"""The highest power of two of the episodes that a replacement skips."""


class SharedRequest:
    """A round's request to all workers; its common parts are serialized once for all of them.

    Matchups, and frozen entries to add and to forget, are not: they differ from worker to worker.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self._alike = replace(request, matchups=None, frozen={}, forget=())
        # By the policies whose weights a worker lacks.
        self._packed: dict[tuple[str, ...], tuple[bytes, list[Any]]] = {}

    def packed(self, unsent: Mapping[str, Weights]) -> tuple[bytes, list[Any]]:
        """Return the serialized request with these weights, and their parameters (references)."""
        names = tuple(unsent)
        if names not in self._packed:
            request, flats = without_parameters(replace(self._alike, weights=unsent))
            self._packed[names] = pickle.dumps(request, pickle.HIGHEST_PROTOCOL), flats
        return self._packed[names]


class RemoteWorker:
    """One rollout worker or referee, restarted after each loss; `generation` counts its processes.

    Weight synchronization: with a round it is sent the weights that it lacks, newer versions of live policies and
    frozen entries of its matchups.
    """

    def __init__(
        self,
        spec: RunSpec,
        number: int,
        actors: Actors,
        on_fault: Callable[[Fault], None],
        inference: Any,
        inbox: Inbox | None = None,
    ) -> None:
        self.name = worker_name(number, spec.num_workers)
        self.number = number
        self._spec = spec
        self._actors = actors
        self._on_fault = on_fault
        self._inference = inference
        self._inbox = inbox
        self._deadline: Deadline | None = None
        self.env_indices = spec.env_indices_of(number)
        self.next_episodes: Mapping[int, int] | None = None
        self.next_fragments: Mapping[str, Mapping[int, int]] = {}
        # How often its process was lost in a round since its last receipt, and whether it is in one.
        self._losses, self._is_in_round = 0, False
        # The version of each live policy, and the frozen entries, that the current process has.
        self._sent: dict[str, int] = {}
        self._frozen: set[str] = set()
        self._keeps_frozen = number < spec.num_workers
        # Whether weights that were sent were lost with a machine.
        self._reloads = False
        self.generation = 0
        # Resolves when a replacement is ready; None if the worker is ready.
        self.ready_ref: Any = None
        # When its lateness is reported, in seconds of time.monotonic().
        self._late_at_s = float("inf")
        self.actor: Any = None
        self._collect: Any = None
        self._num_learning = len(spec.learning)

    def start(self) -> Any:
        """Start the process; return a reference that resolves when it is ready."""
        self.actor = self._actors.start(
            RolloutActor,
            self.name,
            self._spec,
            *self.start_position,
            self._inference,
            None if self._inbox is None else self._inbox.address,
        )
        self._collect = self.actor.collect.options(num_returns=1 + self._num_learning)
        self.forget()
        self.generation += 1
        ready = self.actor.ready.remote()
        if self._deadline is not None:
            self.actor.end_by.remote(self._deadline)
        return ready

    def end_by(self, deadline: Deadline) -> None:
        """End later calls with the env step in which the deadline passes, also after restarts."""
        self._deadline = deadline
        self.actor.end_by.remote(deadline)

    def replace_lost(self, error: Exception) -> None:
        """Report the loss and start a replacement, which skips episodes that were begun before the lost round.

        After further losses without a round in between it skips more, since one of its episodes may end any process.
        """
        self._losses, self._is_in_round = self._losses + self._is_in_round, False
        reason = cause(error)
        # The watchdog ends a process whose environment is stuck in C code, which no exception can interrupt.
        if reason.endswith(UNEXPLAINED_EXIT) and self._spec.step_timeout_s is not None:
            reason += "; or its environment computed in C for longer than twice env.step_timeout_s, which ends it"
        self._on_fault(Fault(FaultKind.WORKERS_LOST, self.name, reason, "", 0))
        self._replace()

    def _replace(self) -> None:
        if self._inbox is not None:
            self._inbox.forget(self.number)
        self._actors.kill(self.actor)
        self.ready_ref = self.start()
        self._late_at_s = time.monotonic() + _LATE_S

    def record_progress(self, receipt: Receipt) -> None:
        """Record where a replacement would start."""
        self._losses, self._is_in_round = 0, False
        self.next_episodes, self.next_fragments = receipt.next_episodes, receipt.next_fragments

    def note_answer(self) -> None:
        """Record that the weights of a call arrived."""
        self._reloads = False

    @property
    def start_position(self) -> tuple[int, Mapping[int, int] | None, Mapping[str, Mapping[int, int]]]:
        """The worker's number and a replacement's next episodes and dataset fragments."""
        if self._losses < 2:
            return self.number, self.next_episodes, self.next_fragments
        # Twice as many each time: the episode may be far from the first one of the round.
        skipped = 2 ** min(self._losses - 2, _MOST_SKIPPED)
        first = self.next_episodes or {}
        return self.number, {env: first.get(env, 0) + skipped for env in self.env_indices}, self.next_fragments

    def is_ready(self) -> bool:
        """Return whether the worker can be called; raises the error that kept a replacement from starting."""
        while self.ready_ref is not None:
            if not ray.wait([self.ready_ref], timeout=0)[0]:
                if time.monotonic() >= self._late_at_s:
                    self._late_at_s = float("inf")
                    lacks = self._actors.describe_shortage(self.name)
                    log.warning("%s has no replacement after %.0f s: %s", self.name, _LATE_S, lacks)
                return False
            try:
                answer = ray.get(self.ready_ref)
            except ray.exceptions.RayActorError as error:
                # It was placed on a machine that was lost too: nothing ran, so there is no loss to report.
                if never_ran(error):
                    self._replace()
                else:
                    self.replace_lost(error)
                continue
            if isinstance(answer, RemoteError):
                raise as_exception(answer)
            self.ready_ref = None
        return True

    def collect(self, request: Request, shared: SharedRequest) -> Sequence[Any]:
        """Request a round; return references to its receipt and each learning policy's rows.

        `request` is the shared one, completed for this worker.
        """
        self._is_in_round = True
        matchups = None
        if request.matchups is not None:
            matchups = {env_index: request.matchups[env_index] for env_index in self.env_indices}
        seated = [matchup for of_env in (matchups or {}).values() for matchup in of_env]
        unsent, frozen = self.unsent(request.weights), self._unsent_frozen(request.frozen, seated)
        self._sent.update((name, new.version) for name, new in unsent.items())
        self._frozen.difference_update(request.forget)
        packed, flats = shared.packed(unsent)
        own: Request | None = None
        frozen_flats: list[Any] = []
        if matchups is not None or frozen or request.forget:
            own, frozen_flats = without_parameters(Request(matchups=matchups, frozen=frozen, forget=request.forget))
        refs = self._collect.remote(packed, own, *flats, *frozen_flats)
        # With num_returns=1 Ray gives the reference itself instead of a list.
        return refs if self._num_learning else [refs]

    def evaluate(self, request: EvaluationRequest) -> Any:
        """Request evaluation episodes; later rounds use the training weights again."""
        frozen = self._unsent_frozen(request.frozen, request.matchups or ())
        if not self._keeps_frozen:
            self._frozen.clear()
        request, flats = without_parameters(replace(request, frozen=frozen))
        return self.actor.evaluate.remote(request, *flats)

    def load(self, kept: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]) -> Any:
        """Restore the worker's environments; return a reference to its ResumeReport counts."""
        self._frozen.update(frozen)
        request, flats = without_parameters(Request(frozen=self._as_sent(frozen)))
        return self.actor.load.remote(kept, replay_max_env_steps, request, *flats)

    def _unsent_frozen(self, frozen: Mapping[str, FrozenPolicy], seated: Iterable[Matchup]) -> dict[str, FrozenPolicy]:
        names = dict.fromkeys(name for matchup in seated for name in matchup.values())
        load = frozen.reload if self._reloads and isinstance(frozen, StoredEntries) else frozen.__getitem__
        unsent = {name: load(name) for name in names if name in frozen and name not in self._frozen}
        # The caller sends them.
        self._frozen.update(unsent)
        return self._as_sent(unsent)

    def _as_sent(self, frozen: Mapping[str, FrozenPolicy]) -> dict[str, FrozenPolicy]:
        return dict(frozen) if self._inference is None else frozen_by_reference(frozen)

    def unsent(self, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        """Return the weights whose version this worker has not been sent."""
        return {name: entry for name, entry in weights.items() if self._sent.get(name) != entry.version}

    def mark_learned(self, policy: str, version: int) -> None:
        """Record weights that the worker learned itself, which need not be sent."""
        # With an inference actor, the worker has to be sent the version that it should ask for.
        if self._inference is None:
            self._sent[policy] = version

    def resend_weights(self) -> None:
        """Mark all weights as not sent, and as lost: frozen entries are put again from their files."""
        self.forget()
        self._reloads = True

    def forget(self) -> None:
        """Mark all weights as not sent."""
        self._sent = {}
        self._frozen = set()
