"""The report of a process that loads a replay of joint rows: agent steps stored, and the next row's number."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import find

from marlflow.replay.sampling import Uniform
from marlflow.runs.checkpoint_format import replay_state
from marlflow.runtime.ray import host
from tests.replay.joint_batches import joint_batches, put
from tests.replay.test_joint_replay import make_replay


def test_agent_steps_are_not_joint_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = find(joint_batches(), lambda batch: batch.rows > batch.count > 1)
    replay, empty = make_replay(200, sampling=Uniform()), make_replay(200, sampling=Uniform())
    inserted = put(replay, batch)
    assert inserted.stored == batch.rows
    saved = replay_state(replay, 0)
    monkeypatch.setitem(host.RESIDENTS, "team", empty)
    owner: Any = None
    found = host.Host.load_replay(owner, "team", host.as_array(saved.state), host.as_array(saved.rows))
    assert found == (batch.rows, batch.count)
    assert [empty.state()[name] for name in ("first", "stop")] == [replay.state()[name] for name in ("first", "stop")]
