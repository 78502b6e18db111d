from __future__ import annotations

import asyncio
import pickle
from dataclasses import replace
from typing import Any

import pytest
import ray

from marlflow.base.errors import FaultKind
from marlflow.batches.items import Weights
from marlflow.config.experiment import Env
from marlflow.env.games.cartpole_team import CartPoleTeam
from marlflow.runtime.ray.remote_worker import RemoteWorker, SharedRequest
from marlflow.runtime.ray.workers import _answers
from marlflow.sampling.population import MemoryStore, StoredEntries
from marlflow.sampling.protocol import FrozenPolicy, Request
from marlflow.sampling.receipts import Fault
from tests.runtime.small_runs import small_spec

SAID_BY_RAY = "The actor died. pid: 12 namespace: x ip: 10.0.0.1 Worker unexpectedly exits with a connection error."
WITHOUT_A_WORD = "process 12 on 10.0.0.1: it ended without a word: killed, out of memory, or crashed"


@pytest.mark.parametrize(
    ("step_timeout_s", "reason"),
    [
        (None, WITHOUT_A_WORD),
        (
            5.0,
            f"{WITHOUT_A_WORD}; or its environment computed in C for longer than twice env.step_timeout_s, "
            "which ends it",
        ),
    ],
)
def test_a_process_that_ended_without_a_word_may_have_been_ended_for_its_environment(
    step_timeout_s: float | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Fault] = []
    nobody: Any = None
    monkeypatch.setattr(RemoteWorker, "_replace", lambda self: None)
    spec = small_spec(env=Env(CartPoleTeam, num_envs=4, step_timeout_s=step_timeout_s))
    RemoteWorker(spec, 1, nobody, faults.append, nobody).replace_lost(RuntimeError(SAID_BY_RAY))
    assert faults == [Fault(FaultKind.WORKERS_LOST, "rollout worker 1", reason, "", 0)]


class Reloading(MemoryStore):
    """A store that counts what is put again."""

    reloads = 0

    def reload(self, entry: str) -> FrozenPolicy:
        self.reloads += 1
        self[entry] = FrozenPolicy("hunters", Weights(1, f"put again {self.reloads}"))
        return self[entry]


class Sends:
    """In place of a process: keeps the weights that are sent."""

    def __init__(self) -> None:
        self.flats: list[Any] = []

    def remote(self, packed: bytes, own: Request | None, *flats: Any) -> list[Any]:
        self.flats = list(flats)
        return []


def test_weights_that_are_lost_with_their_machine_are_put_again_and_sent_again() -> None:
    nobody: Any = None
    worker, sends = RemoteWorker(small_spec(), 0, nobody, nobody, nobody), Sends()
    worker._collect = sends
    store = Reloading({"hunters@1": FrozenPolicy("hunters", Weights(1, "as frozen"))})
    matchups = {env: [{"ppo_0": "hunters@1"}] for env in worker.env_indices}
    request = Request(0, {"hunters": Weights(7, "live")}, {}, matchups, StoredEntries(store, ["hunters@1"]))

    def sent() -> list[Any]:
        worker.collect(request, SharedRequest(replace(request, matchups=None, frozen={})))
        return sends.flats

    async def lost() -> list[Any]:
        answer = asyncio.get_running_loop().create_future()
        answer.set_exception(ray.exceptions.ObjectLostError("00" * 28, None, ""))
        return await _answers([worker], [answer])

    assert sent() == ["live", "as frozen"]
    assert sent() == []
    assert asyncio.run(lost()) == [None]
    assert sent() == ["live", "put again 1"]
    worker.note_answer()
    assert sent() == []
    # A successor is sent what is there.
    worker.forget()
    assert sent() == ["live", "put again 1"]
    assert store.reloads == 1


def test_what_all_workers_get_alike_is_serialized_once() -> None:
    weights = {"hunters": Weights(7, "live"), "prey": Weights(2, "other")}
    shared = SharedRequest(Request(3, weights, {"prey": {"epsilon": 0.5}}))
    packed, flats = shared.packed(weights)
    assert shared.packed(weights)[0] is packed
    assert flats == ["live", "other"]
    without = {"hunters": Weights(7, None), "prey": Weights(2, None)}
    assert packed == pickle.dumps(Request(3, without, {"prey": {"epsilon": 0.5}}), pickle.HIGHEST_PROTOCOL)
    fewer, flats = shared.packed({"prey": weights["prey"]})
    assert flats == ["other"]
    assert len(fewer) < len(packed)
