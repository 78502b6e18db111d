"""Rows of several policies go to an actor by reference, are joined there, and come back unopened."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import ray

import marlflow as mf
from marlflow.batches.items import Packed
from marlflow.flow import Outcome
from marlflow.flow.protocols import StageCall, stage_call
from marlflow.runtime.ray.actors import Actors
from marlflow.runtime.ray.handles import Handle, RestartableHost
from marlflow.runtime.ray.places import RayPlace
from tests.runtime.ray.unopened import guarded

pytestmark = pytest.mark.usefixtures("ray_session")


def batch_of(agent: int, env_index: int, rows: int) -> mf.Batch:
    names = {"agent": agent, "env": env_index, "episode": 0, "length": rows, "terminated": False, "truncated": False}
    return mf.Batch(
        {"reward": np.arange(rows) + 1.0, "t_env": np.arange(rows)},
        {**{name: np.array([value]) for name, value in names.items()}, "bootstrap_obs": np.ones((1, 2))},
    )


def called(place: RayPlace, calls: list[StageCall], items: list[Any]) -> Outcome:
    async def wait() -> Outcome:
        return await place.prepare(calls)(items)

    return asyncio.run(wait())


def counts_of(batches: Mapping[str, mf.Batch]) -> dict[str, int]:
    return {policy: batch.rows for policy, batch in batches.items()}


def kind_of(item: Any) -> str:
    return type(item).__name__


def test_an_actor_opens_by_key_and_what_it_joined_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    actors = Actors({"learner mixer": {"num_cpus": 1.0}})
    hosted = RestartableHost("learner mixer", actors, {"learner mixer": str}, lambda fault: pytest.fail(fault.reason))
    try:
        ray.get(hosted.start())
        place = RayPlace(hosted)
        learner: Any = Handle("mixer", "learner mixer", place)
        payloads = [batch_of(0, 0, 3), batch_of(1, 0, 2), batch_of(0, 1, 1), batch_of(1, 1, 4)]
        joint = Packed(10, tuple(map(ray.put, payloads)), ("left", "right") * 2)
        plain = Packed(3, (ray.put(payloads[0]),))
        with monkeypatch.context() as driver:
            guarded(driver, mf.JointBatch)
            (made,) = called(place, [stage_call(mf.Join(), learner)], [joint]).outputs
            assert called(place, [stage_call(counts_of)], [joint]).outputs == [{"left": 4, "right": 6}]
            assert called(place, [stage_call(kind_of)], [plain]).outputs == ["Batch"]
        assert made.rows == 10
        opened: mf.JointBatch = ray.get(made.payloads[0])
        assert opened.keys["env"].tolist() == [0, 0, 0, 1, 1, 1, 1]
        assert opened.present.sum(axis=0).tolist() == [4, 6]
    finally:
        actors.kill_all()
