from __future__ import annotations

from typing import Any

import pytest

from marlflow.base.fault_kind import FaultKind
from marlflow.config.experiment import Env
from marlflow.env.cartpole_team import CartPoleTeam
from marlflow.runtime.ray.remote_worker import RemoteWorker
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
