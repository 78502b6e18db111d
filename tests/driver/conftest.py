"""Fixtures that watch a run."""

from __future__ import annotations

import pytest

from marlflow.algorithms import ppo as ppo_module
from marlflow.stages import Concat
from tests.driver.watching import Seen


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(monkeypatch)


@pytest.fixture
def gathers(monkeypatch: pytest.MonkeyPatch) -> list[Concat]:
    """The gathers of PPO's plans as they are made: for the check first, and last for the run itself."""
    made: list[Concat] = []

    def make(agent_steps: int) -> Concat:
        made.append(Concat(agent_steps))
        return made[-1]

    monkeypatch.setattr(ppo_module, "Concat", make)
    return made
