"""The actor that hosts a rollout worker, and replicas of learners that learn there."""

from __future__ import annotations

import gc
import pickle
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.items import Weights
from marlflow.flow.protocols import OperatorRaised
from marlflow.runtime.ray.host import RESIDENTS, ChainResult, Host, RemoteError, as_array, flats_of, remote_error
from marlflow.runtime.ray.inference import remote_actors
from marlflow.runtime.ray.inference_members import fetch_weights
from marlflow.runtime.ray.message_channel import Address, Outbox
from marlflow.runtime.sampling_worker import referee
from marlflow.runtime.spec import RunSpec
from marlflow.runtime.stage_chain import run_chain, shard
from marlflow.sampling.messages import HangMonitor, OutputCapture
from marlflow.sampling.protocol import EvaluationRequest, FrozenPolicy, Matchup, Request, Worker
from marlflow.sampling.receipts import MembersSent
from marlflow.sampling.watchdog import Deadline
from marlflow.sampling.worker import Referee

_KILL_AFTER_TIMEOUTS = 2
"""The process is killed after this many step timeouts, since an exception cannot interrupt code in C."""


Sent = TypeVar("Sent", Request, EvaluationRequest)


def without_parameters(request: Sent) -> tuple[Sent, list[Any]]:
    """Return a request without parameters, and these: of its live entries, then of its frozen ones."""
    live = {name: replace(new, flat=None) for name, new in request.weights.items()}
    frozen = {name: replace(entry, weights=replace(entry.weights, flat=None)) for name, entry in request.frozen.items()}
    flats = [
        *(new.flat for new in request.weights.values()),
        *(entry.weights.flat for entry in request.frozen.values()),
    ]
    return replace(request, weights=live, frozen=frozen), flats


def with_parameters(request: Sent, flats: Sequence[Any]) -> Sent:
    """Return the request with its parameters."""
    live, others = flats[: len(request.weights)], flats[len(request.weights) :]
    return replace(
        request,
        weights={
            name: replace(new, flat=flat) for (name, new), flat in zip(request.weights.items(), live, strict=True)
        },
        frozen={
            name: replace(entry, weights=replace(entry.weights, flat=flat))
            for (name, entry), flat in zip(request.frozen.items(), others, strict=True)
        },
    )


class RolloutActor(Host):
    """Hosts rollout worker or referee `number`; a replacement starts where the lost worker had got to.

    The actor `inference` computes its actions; None: it computes them itself.
    """

    def __init__(
        self,
        spec: RunSpec,
        number: int,
        next_episodes: Mapping[int, int] | None,
        next_fragments: Mapping[str, Mapping[int, int]],
        inference: Any = None,
        address: Address | None = None,
    ) -> None:
        super().__init__(
            {f"learner {name}": each.learner for name, each in spec.learners.items() if each.on_workers}
            if number < spec.num_workers
            else {},
            1,
        )
        self._spec, self._number = spec, number
        # A property whose time grows with the square of the learners.
        self._learning = spec.learning
        self._next_episodes, self._next_fragments = next_episodes, next_fragments
        self._inference = inference
        self._worker: Any = None
        self._learned: dict[str, Weights] = {}
        timeout_s = spec.step_timeout_s
        self._watchdog = spec.watchdog(None if timeout_s is None else _KILL_AFTER_TIMEOUTS * timeout_s)
        self._outbox = self._capture = None
        if address is not None:
            self._outbox = Outbox(address, number)
            self._capture = OutputCapture(number, self._watchdog, self._outbox.send)
            self._capture.install(address.log_level)
            HangMonitor({number: self._watchdog}, self._outbox.send)

    def ready(self) -> RemoteError | None:
        if (failed := super().ready()) is not None:
            return failed
        try:
            self._worker = self._make_worker()
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return self._failed(error)
        # The environments live as long as the process, so garbage collections need not scan them.
        gc.freeze()
        return None

    def _make_worker(self) -> Worker | Referee:
        if self._number >= self._spec.num_workers:
            return referee(self._spec, self._number, self._watchdog)
        actors = None if self._inference is None else remote_actors(self._spec, self._inference)
        return self._spec.worker(
            self._number, actors, self._next_episodes, self._watchdog, fetch_weights, self._next_fragments
        )

    def collect(self, packed: bytes, own: Request | None, *flats: Any) -> Any:
        """Return a pickled receipt or RemoteError, and a batch per learning policy.

        `packed` is the serialized request of all workers, `own` has this worker's matchups and changes of its table of
        weights, if any. `flats` are the parameters of both.
        """
        learning = self._learning
        request: Request = pickle.loads(packed)  # noqa: S301  made by the driver
        if own is not None:
            request = replace(request, matchups=own.matchups, frozen=own.frozen, forget=own.forget)
        request = with_parameters(request, flats)
        # Weights that a replica here has learned since the last round were not sent.
        request = replace(request, weights={**self._learned, **request.weights})
        self._learned.clear()
        try:
            receipt, batches = self._worker.collect(self._spec.ticks, request)
            seated = [matchup for of_env in (request.matchups or {}).values() for matchup in of_env]
            receipt = replace(receipt, sent=self._sent(request.frozen, seated))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            receipt, batches = self._failed(error), dict.fromkeys(learning)
        # Ray passes bytes on unchanged. Other values it pickles slowly, and unpickles in another thread.
        answer = pickle.dumps(receipt, pickle.HIGHEST_PROTOCOL)
        # Without learning policies there is one return value, which Ray does not accept in a tuple.
        return (answer, *(batches[name] for name in learning)) if learning else answer

    def learn(self, name: str, chain: int, returns: int, *payloads: Any) -> Any:
        """Run a chain on this worker's shard; return a receipt and, if `returns` > 1, parameters per policy."""
        learner = RESIDENTS[name]
        version = learner.version
        try:
            outputs, times = run_chain(self._chains[chain], [shard(payloads)])
        except OperatorRaised as error:
            # The other replicas must not wait for one that is out of step.
            learner.disband()
            failed = remote_error(error.__cause__ or error, error.position)
            return failed if returns == 1 else (failed, *[None] * (returns - 1))
        published = learner.version != version
        if published and self._inference is None:
            self._learned.update(learner.published)
        result = ChainResult(outputs, times, learner.version if published else None)
        if returns == 1:
            return result
        return result, *(flats_of(learner) if published else [None] * (returns - 1))

    def disband(self, name: str) -> None:
        """Leave the learner's group."""
        RESIDENTS[name].disband()

    def published(self, name: str) -> tuple[Any, ...]:
        """Return the replica's version and published parameters."""
        return RESIDENTS[name].version, *flats_of(RESIDENTS[name])

    def evaluate(self, request: EvaluationRequest, *flats: Any) -> Any:
        """Return the results of evaluation episodes; `flats` are the request's parameters."""
        try:
            request = with_parameters(request, flats)
            evaluated = self._worker.evaluate(request)
            return replace(evaluated, sent=self._sent(request.frozen, request.matchups or ()))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return self._failed(error)

    def _sent(self, frozen: Mapping[str, FrozenPolicy], matchups: Iterable[Matchup]) -> MembersSent:
        seated = {name for matchup in matchups for name in matchup.values()}
        # With an inference actor the parameters are references.
        size_bytes = sum(getattr(entry.weights.flat, "nbytes", 0) for entry in frozen.values())
        return MembersSent(len(frozen), size_bytes, len(seated.difference(self._spec.actors, frozen)))

    def end_by(self, deadline: Deadline) -> None:
        """End later calls with the env step in which the deadline passes."""
        self._watchdog.deadline = deadline

    def _failed(self, error: Exception) -> RemoteError:
        # The driver then shows the output from before the error.
        self._flush()
        return remote_error(error)

    def _flush(self) -> None:
        if self._capture is not None and self._outbox is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            self._capture.tell_left_out()
            self._outbox.flush()

    def kept(self) -> Any:
        """Return the worker's serialized state."""
        try:
            return as_array(to_bytes(self._worker.state()))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)

    def close(self) -> Any:
        """Close environments and dataset files; return the faults."""
        try:
            return self._worker.close()
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
        finally:
            self._flush()

    def beginning(
        self, number: int, next_episodes: Mapping[int, int] | None, next_fragments: Mapping[str, Mapping[int, int]]
    ) -> Any:
        """Return another worker's initial state, while that is being restarted."""
        worker = self._spec.worker(number, next_episodes=next_episodes, next_fragments=next_fragments)
        try:
            return as_array(to_bytes(worker.state()))
        finally:
            worker.close()

    def load(self, kept: Any, replay_max_env_steps: int, request: Request, *flats: Any) -> Any:
        """Restore the worker's environments, with the request's frozen entries; return the ResumeReport counts."""
        frozen = with_parameters(request, flats).frozen
        try:
            return tuple(self._worker.load_state(from_bytes(memoryview(kept)), replay_max_env_steps, frozen))
        except Exception as error:  # noqa: BLE001  carried over and raised on the driver
            return remote_error(error)
