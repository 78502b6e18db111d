"""A runtime whose actors are simulated: they answer after a set time, from the driver's own event loop.

Everything else is real: the run, its plans and executor, the handles of `runtime.ray`, requests, receipts, metrics,
schedules, matchups, and published versions. What Ray would serialize on the driver is serialized here too, with Ray's
pickler: arguments of calls, and answers that are awaited. Ray's own time for a call is measured by
`benchmarks.ray_calls`.
"""

from __future__ import annotations

import asyncio
import pickle
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ray import cloudpickle

from marlflow.base.errors import RuntimeFailed
from marlflow.batches.items import Inserted, Update
from marlflow.flow import StageTimes
from marlflow.runtime.protocol import RunComponents, RuntimeState
from marlflow.runtime.ray import RayRuntime
from marlflow.runtime.ray.host import ChainResult
from marlflow.runtime.ray.rollout_actor import RolloutActor
from marlflow.runtime.ray.workers import RayWorkers
from marlflow.runtime.resources import Machines
from marlflow.runtime.spec import RunSpec
from marlflow.runtime.stage_chain import InlinePlace
from marlflow.sampling.messages import News
from marlflow.sampling.protocol import Request
from marlflow.sampling.receipts import EpisodeResult, Fault, PolicyReceipt, Receipt


@dataclass(frozen=True)
class Load:
    """The load of the simulated processes: seconds of a collect and of an update, and the contents of a receipt."""

    collect_s: float = 1.0
    update_s: float = 0.0003
    agent_steps: int = 100
    """Of each policy in a fragment."""
    episodes: int = 10
    """That end in a fragment."""


class Reference:
    """An object reference; awaiting it unpickles the object, as Ray does on the driver."""

    def __init__(self, packed: bytes | None = None) -> None:
        self._packed = packed
        self._waiting: list[asyncio.Future[Any]] = []

    def arrive(self, packed: bytes) -> None:
        """Let the object be there."""
        self._packed = packed
        for future in self._waiting:
            if not future.done():
                future.set_result(pickle.loads(packed))  # noqa: S301  bytes made in this module
        self._waiting.clear()

    def __await__(self) -> Generator[Any, Any, Any]:
        future = asyncio.get_running_loop().create_future()
        if self._packed is None:
            self._waiting.append(future)
        else:
            future.set_result(pickle.loads(self._packed))  # noqa: S301  bytes made in this module
        return (yield from future.__await__())

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Reference, ()


class _Method:
    def __init__(self, actor: _Actor, name: str, num_returns: int = 1) -> None:
        self._actor, self._name, self._num_returns = actor, name, num_returns

    def options(self, num_returns: int) -> _Method:
        return _Method(self._actor, self._name, num_returns)

    def remote(self, *arguments: Any) -> Any:
        refs = [Reference() for _ in range(self._num_returns)]
        self._actor.call(self._name, refs, arguments)
        return refs if self._num_returns > 1 else refs[0]


_NONE = pickle.dumps(None)


class _Actor:
    """An actor that answers one call after the other."""

    def __init__(self, load: Load, counted: Counted) -> None:
        self._load, self._counted = load, counted
        self._free_s = 0.0

    def __getattr__(self, name: str) -> _Method:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Method(self, name)

    def call(self, name: str, refs: Sequence[Reference], arguments: Sequence[Any]) -> None:
        answer = getattr(self, f"_{name}", None)
        if answer is None:
            refs[0].arrive(_NONE)
            return
        # Ray serializes each argument by itself, and passes references on.
        for argument in arguments:
            if not isinstance(argument, Reference):
                self._counted.sent_bytes += len(cloudpickle.dumps(argument))
        self._counted.calls += 1
        self._counted.references += len(refs)
        began_s = time.thread_time()
        result, takes_s = answer(*arguments)
        packed = pickle.dumps(result, protocol=5)
        self._counted.simulated_s += time.thread_time() - began_s
        loop = asyncio.get_running_loop()
        self._free_s = max(self._free_s, loop.time()) + takes_s
        loop.call_at(self._free_s, refs[0].arrive, packed)


class _Worker(_Actor):
    def __init__(self, load: Load, counted: Counted, spec: RunSpec, number: int) -> None:
        super().__init__(load, counted)
        envs = spec.env_indices_of(number)
        self._version = dict.fromkeys(spec.learning, 0)
        self._next = dict.fromkeys(envs, 0)
        rows = {name: PolicyReceipt(load.agent_steps, 0, 0.0, 0) for name in spec.learning}
        mapping = spec.mapping
        assert isinstance(mapping, Mapping)
        returns = dict.fromkeys(mapping, 20.0)
        episodes = tuple(
            EpisodeResult(envs[index % len(envs)], index, 20, returns, index, mapping) for index in range(load.episodes)
        )
        total = load.agent_steps * len(rows)
        self._receipt = Receipt(number, spec.ticks * len(envs), total, episodes, rows, 0, 0.5, 0.3, 0.2)

    def _collect(self, packed: bytes, own: Any, *flats: Any) -> tuple[bytes, float]:
        del own, flats
        request: Request = pickle.loads(packed)  # noqa: S301  made by the driver
        if self._receipt.worker == 0:
            self._counted.round_begins.append((time.perf_counter(), time.thread_time() - self._counted.simulated_s))
        for env_index in self._next:
            self._next[env_index] += 1
        self._version.update((name, new.version) for name, new in request.weights.items())
        rows = {name: PolicyReceipt(self._load.agent_steps, 0, 0.0, version) for name, version in self._version.items()}
        receipt = replace(self._receipt, policies=rows, next_episodes=self._next, began_s=time.time())
        return pickle.dumps(receipt, pickle.HIGHEST_PROTOCOL), self._load.collect_s


class _Host(_Actor):
    def __init__(self, load: Load, counted: Counted) -> None:
        super().__init__(load, counted)
        self._chains: dict[int, Any] = {}
        self._versions: dict[int, int] = {}

    def call(self, name: str, refs: Sequence[Reference], arguments: Sequence[Any]) -> None:
        if name == "prepare":
            number, calls = arguments
            self._chains[number] = calls
        super().call(name, refs, arguments)

    def _run(self, call: bytes, *payloads: Any) -> tuple[ChainResult, float]:
        del payloads
        chain, items, counts, _ = pickle.loads(call)  # noqa: S301  made by the driver
        calls = self._chains[chain]
        learner = next((call.at for call in calls if call.traits.publishes), None)
        now_s = time.time()
        times = [StageTimes(now_s, now_s + self._load.update_s, 1)] * len(calls)
        if learner is None:
            inserted = [Inserted(count * self._load.agent_steps, 1_000_000) for count in counts]
            return ChainResult(inserted, times, None), self._load.update_s
        version = self._versions[chain] = self._versions.get(chain, 0) + 1
        self._counted.versions += 1
        loss = {"policy": 0.1, "value": 0.2, "entropy": 0.3, "kl": 0.01}
        updates = [Update(learner.name, 64, 1, version - 1, loss, 0.0) for _ in items]
        self._counted.updates += len(updates)
        return ChainResult(updates, times, version), self._load.update_s * len(items)


@dataclass
class Counted:
    """The calls and references that the driver sent."""

    calls: int = 0
    references: int = 0
    """Return values, each with a reference that the driver owns."""
    sent_bytes: int = 0
    """Of arguments, without references."""
    versions: int = 0
    updates: int = 0
    simulated_s: float = 0.0
    """CPU time of what other processes would do: they make receipts."""
    round_begins: list[tuple[float, float]] = field(default_factory=list)
    """When the first worker was called: seconds, and seconds of the thread's CPU time."""


class _Actors:
    """In place of `runtime.ray.actors.Actors`."""

    def __init__(self, load: Load, counted: Counted) -> None:
        self._load, self._counted = load, counted

    def start(self, kind: type, process: str, *arguments: Any) -> Any:
        del process
        if kind is RolloutActor:
            return _Worker(self._load, self._counted, *arguments[:2])
        return _Host(self._load, self._counted)

    def threads(self, process: str) -> int:
        del process
        return 1


class SimulatedRuntime(RayRuntime):
    """The Ray runtime, with simulated actors and without Ray."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        self._load = load
        self.counted = Counted()

    def machines(self) -> Machines:
        return Machines([{"CPU": 1e6}], here=True)

    def start(
        self,
        spec: RunSpec,
        on_fault: Callable[[Fault], None] | None = None,
        on_loss: Callable[[RuntimeFailed], None] | None = None,
        on_news: Callable[[News], None] | None = None,
    ) -> RunComponents:
        del on_loss, on_news
        actors: Any = _Actors(self._load, self.counted)
        report = on_fault or _ignore
        workers = self._workers = RayWorkers(spec, actors, report, self._current_weights)
        workers.start()
        for learner in spec.learners.values():
            for host in self._host_learner(learner, actors, report):
                host.start()
        for name, handle in self._learners.items():
            handle.set_published(0, [Reference() for _ in spec.learners[name].policies])
        handles: Any = self._learners, self._replays
        return RunComponents(workers, *handles, InlinePlace(fetch=_unopened, put=_unopened))

    def object_store_bytes(self) -> None:
        return

    def close_environments(self) -> tuple[Fault, ...]:
        return ()

    def save(self, rows_saved: Mapping[str, int]) -> RuntimeState:
        del rows_saved
        return RuntimeState({}, {})

    def pack(self, payloads: Sequence[Any]) -> list[bytes]:
        return [b""] * len(payloads)


def _ignore(fault: Fault) -> None: ...


def _unopened(value: Any) -> Any:
    raise RuntimeError(f"the driver opens or puts {value!r}, which simulated actors do not have")
