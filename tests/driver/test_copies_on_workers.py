"""A policy that copies another one drops its rows on every worker, also if each request is for one worker alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import marlflow as mf
from marlflow.driver.policy_changes import PolicyChanges
from marlflow.sampling import RolloutWorker
from tests.driver.test_population_training import run


def test_every_worker_drops_what_a_policy_had_before_it_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # By worker, the policies whose rows it has not dropped yet.
    left: dict[int, set[str]] = {0: set(), 1: set()}
    make, collect, drop = PolicyChanges.make, RolloutWorker.collect, RolloutWorker.drop_unfinished
    copied: list[str] = []

    def made(changes: PolicyChanges) -> Any:
        answer = make(changes)
        copied.extend(answer)
        for policies in left.values():
            policies.update(answer)
        return answer

    def dropped(worker: RolloutWorker, policies: Any) -> None:
        left[worker._config.worker] -= {*policies}
        drop(worker, policies)

    def collected(worker: RolloutWorker, *arguments: Any) -> Any:
        answer = collect(worker, *arguments)
        assert not left[worker._config.worker]
        return answer

    monkeypatch.setattr(PolicyChanges, "make", made)
    monkeypatch.setattr(RolloutWorker, "drop_unfinished", dropped)
    monkeypatch.setattr(RolloutWorker, "collect", collected)
    rollouts = mf.Rollouts(num_workers=2, fragment_env_steps=40, pace="asynchronous")
    mf.train(run(mf.IMPALA(batch_agent_steps=70), rollouts=rollouts, env_steps=640), tmp_path)
    assert copied
