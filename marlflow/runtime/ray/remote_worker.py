"""A rollout worker as a Ray actor. A lost worker is replaced (restarted) by a new process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import ray

from marlflow.base.fault_kind import FaultKind
from marlflow.base.items import Weights
from marlflow.policy.actor import EvaluationMode
from marlflow.runtime.ray.actors import WITHOUT_A_WORD, Actors, cause, never_ran
from marlflow.runtime.ray.host import Raised, as_exception
from marlflow.runtime.ray.message_channel import Address
from marlflow.runtime.ray.rollout_actor import Headers, RolloutActor
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.deadline import Deadline
from marlflow.sampling.protocol import FrozenPolicy, Matchup, Request
from marlflow.sampling.receipts import Fault, Receipt


class RemoteWorker:
    """One rollout worker, restarted after each loss.

    Sends only weights that the worker does not have, by reference: newer versions of live policies, and frozen entries
    that its matchups use. `lives` counts the processes it has had.
    """

    def __init__(
        self,
        spec: RunSpec,
        number: int,
        actors: Actors,
        on_fault: Callable[[Fault], None],
        inference: Any,
        address: Address | None = None,
    ) -> None:
        self.what = f"rollout worker {number}"
        self.number, self._spec, self._actors, self._on_fault = number, spec, actors, on_fault
        self._inference, self._address = inference, address
        self._deadline: Deadline | None = None
        self.env_indices = spec.env_indices_of(number)
        self.next_episodes: Mapping[int, int] | None = None
        self.next_fragments: Mapping[str, Mapping[int, int]] = {}
        self._sent: dict[str, int] = {}
        self._frozen: set[str] = set()  # the frozen entries that its process has
        self.lives = 0
        self._coming: Any = None
        self.actor: Any = None
        self._collect: Any = None

    def start(self) -> Any:
        """Start the process; return a reference that resolves when it is ready."""
        self.actor = self._actors.start(
            RolloutActor,
            self.what,
            self._spec,
            self.number,
            self.next_episodes,
            self.next_fragments,
            self._inference,
            self._address,
        )
        self._collect = self.actor.collect.options(num_returns=1 + len(self._spec.learning))
        self.forget()
        self.lives += 1
        ready = self.actor.ready.remote()
        if self._deadline is not None:
            self.actor.end_by.remote(self._deadline)
        return ready

    def end_by(self, deadline: Deadline) -> None:
        """Make later calls end with the env step in which the deadline passes, after restarts too."""
        self._deadline = deadline
        self.actor.end_by.remote(deadline)

    def lost(self, error: Exception) -> None:
        """Report the loss and start a replacement, which begins the episodes not yet begun."""
        reason = cause(error)
        if reason.endswith(WITHOUT_A_WORD) and self._spec.step_timeout_s is not None:
            reason += "; or its environment computed in C for longer than twice env.step_timeout_s, which ends it"
        self._on_fault(Fault(FaultKind.WORKERS_LOST, self.what, reason, "", 0))
        self._replace()

    def _replace(self) -> None:
        self._actors.end(self.actor)
        self._coming = self.start()

    def has_come_to(self, receipt: Receipt) -> None:
        """Record the position in the receipt, where a replacement would start."""
        self.next_episodes, self.next_fragments = receipt.next_episodes, receipt.next_fragments

    @property
    def begins_at(self) -> tuple[int, Mapping[int, int] | None, Mapping[str, Mapping[int, int]]]:
        """The worker's number, and the next episodes and dataset fragments of a replacement."""
        return self.number, self.next_episodes, self.next_fragments

    @property
    def coming(self) -> Any:
        return self._coming

    def is_present(self) -> bool:
        """Return whether the worker can be called now; raises what kept a replacement from starting."""
        while self._coming is not None:
            if not ray.wait([self._coming], timeout=0)[0]:
                return False
            try:
                answer = ray.get(self._coming)
            except ray.exceptions.RayActorError as error:
                if never_ran(error):
                    self._replace()
                else:
                    self.lost(error)
                continue
            if isinstance(answer, Raised):
                raise as_exception(answer)
            self._coming = None
        return True

    def collect(self, request: Request) -> Sequence[Any]:
        """Request a round; return references to a receipt and to the rows of each learning policy."""
        new, dealt = self.unsent(request.weights), self._dealt(request.matchups)
        seated = [matchup for matchups in (dealt or {}).values() for matchup in matchups]
        headers, flats = Headers.of(new, self._lacking(request.frozen, seated))
        self._sent.update(headers.versions)
        self._frozen.difference_update(request.forget)
        made = self._collect.remote(headers, request.schedules, dealt, request.forget, *flats)
        return made if self._spec.learning else [made]

    def evaluate(
        self,
        episodes: Sequence[int],
        matchups: Sequence[Matchup] | None,
        mode: EvaluationMode,
        weights: Mapping[str, Weights],
        frozen: Mapping[str, FrozenPolicy],
    ) -> Any:
        """Request evaluation episodes with these weights; later rounds use the training weights again."""
        headers, flats = Headers.of(weights, self._lacking(frozen, matchups or ()))
        return self.actor.evaluate.remote(episodes, matchups, mode, headers, *flats)

    def load(self, kept: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]) -> Any:
        """Restore the worker's environments; return a reference to the counts of its ResumeReport."""
        self._frozen.update(frozen)
        headers, flats = Headers.of({}, frozen)
        return self.actor.load.remote(kept, replay_max_env_steps, headers, *flats)

    def _lacking(self, frozen: Mapping[str, FrozenPolicy], seated: Iterable[Matchup]) -> dict[str, FrozenPolicy]:
        """Return the frozen entries that these matchups use and the worker lacks; mark them as sent."""
        names = dict.fromkeys(name for matchup in seated for name in matchup.values())
        found = {name: frozen[name] for name in names if name in frozen and name not in self._frozen}
        self._frozen.update(found)
        return found

    def unsent(self, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        """Return the entries of weights whose version this worker has not been sent."""
        return {name: found for name, found in weights.items() if self._sent.get(name) != found.version}

    def has_learned(self, policy: str, version: int) -> None:
        """Record weights that need not be sent, because the worker itself learned them."""
        if self._inference is None:
            self._sent[policy] = version

    def forget(self) -> None:
        """Mark all weights as not sent."""
        self._sent = {}
        self._frozen = set()

    def _dealt(self, matchups: Mapping[int, Sequence[Matchup]] | None) -> Mapping[int, Sequence[Matchup]] | None:
        return None if matchups is None else {env_index: matchups[env_index] for env_index in self.env_indices}
