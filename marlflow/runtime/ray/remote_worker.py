"""One rollout worker as an actor, and its successors: what it is asked, and what it has been sent."""

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
    """One worker, and its successors.

    It is sent only the weights that it does not have yet, by reference: newer versions of live policies, and frozen
    entries that its own matchups seat.
    `lives` counts the processes that it has had.
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
        """Starts the process; what has to be waited for."""
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
        """It and its successors end what they are asked from here on with the step in which the deadline passes."""
        self._deadline = deadline
        self.actor.end_by.remote(deadline)

    def lost(self, error: Exception) -> None:
        """Says so, and starts a successor, which begins the episodes that this one had not begun."""
        reason = cause(error)
        if reason.endswith(WITHOUT_A_WORD) and self._spec.step_timeout_s is not None:
            reason += "; or its environment computed in C for longer than twice env.step_timeout_s, which ends it"
        self._on_fault(Fault(FaultKind.WORKERS_LOST, self.what, reason, "", 0))
        self._replace()

    def _replace(self) -> None:
        self._actors.end(self.actor)
        self._coming = self.start()

    def has_come_to(self, receipt: Receipt) -> None:
        """A successor would begin where this receipt ends."""
        self.next_episodes, self.next_fragments = receipt.next_episodes, receipt.next_fragments

    @property
    def begins_at(self) -> tuple[int, Mapping[int, int] | None, Mapping[str, Mapping[int, int]]]:
        """Its number, and where a successor would begin: which episodes, and which recorded fragments."""
        return self.number, self.next_episodes, self.next_fragments

    @property
    def coming(self) -> Any:
        """What its successor answers when it is ready; None if it is there."""
        return self._coming

    def is_present(self) -> bool:
        """Whether it can be asked now. Raises what kept a successor from beginning."""
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
        """Its part of a round: a receipt, and for each learning policy its rows, all to come."""
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
        """Its part of an evaluation, to come. It goes on with the weights that it had before."""
        headers, flats = Headers.of(weights, self._lacking(frozen, matchups or ()))
        return self.actor.evaluate.remote(episodes, matchups, mode, headers, *flats)

    def load(self, kept: Any, replay_max_env_steps: int, frozen: Mapping[str, FrozenPolicy]) -> Any:
        """What it says of going on from what was kept of its environments, to come."""
        self._frozen.update(frozen)
        headers, flats = Headers.of({}, frozen)
        return self.actor.load.remote(kept, replay_max_env_steps, headers, *flats)

    def _lacking(self, frozen: Mapping[str, FrozenPolicy], seated: Iterable[Matchup]) -> dict[str, FrozenPolicy]:
        """The frozen entries that its matchups seat and its process does not have; from here on it has them."""
        names = dict.fromkeys(name for matchup in seated for name in matchup.values())
        found = {name: frozen[name] for name in names if name in frozen and name not in self._frozen}
        self._frozen.update(found)
        return found

    def unsent(self, weights: Mapping[str, Weights]) -> dict[str, Weights]:
        """Those that it does not have."""
        return {name: found for name, found in weights.items() if self._sent.get(name) != found.version}

    def has_learned(self, policy: str, version: int) -> None:
        """It has weights that it need not be sent: it learned them. One that does not act itself has to be told."""
        if self._inference is None:
            self._sent[policy] = version

    def forget(self) -> None:
        """It has no weights any more, or it is not known which."""
        self._sent = {}
        self._frozen = set()

    def _dealt(self, matchups: Mapping[int, Sequence[Matchup]] | None) -> Mapping[int, Sequence[Matchup]] | None:
        """Those of its own environments."""
        return None if matchups is None else {env_index: matchups[env_index] for env_index in self.env_indices}
