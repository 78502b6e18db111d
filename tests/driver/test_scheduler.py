"""Settings of learners reach their parts: when they change, and again after a reset, which forgets them."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from marlflow.driver.scheduler import Scheduler
from tests.runtime.small_runs import SMALL_DQN, small_spec


class Sent:
    """A part that keeps what it is sent."""

    def __init__(self) -> None:
        self.settings: list[Mapping[str, float]] = []

    def set_schedule(self, settings: Mapping[str, float]) -> None:
        self.settings.append(settings)


def test_a_changed_setting_is_sent_again_after_a_reset() -> None:
    part, spec = Sent(), small_spec()
    parts: Any = SimpleNamespace(of=lambda learner: [part] if learner == "prey" else [])
    metrics: Any = SimpleNamespace(agent_steps_sampled_for=lambda learner: 0, cost_totals={})
    scheduler = Scheduler(spec, parts, metrics)
    scheduler.now()
    scheduler.change("prey", {"learning_rate": 0.25})
    scheduler.now()
    scheduler.now()
    sent = [settings.get("learning_rate") for settings in part.settings]
    assert sent in ([0.25], [SMALL_DQN.learning_rate, 0.25])  # what never changes need not be sent
    scheduler.restart("prey")
    assert scheduler.now()["prey"]["learning_rate"] == 0.25
    assert [settings.get("learning_rate") for settings in part.settings] == [*sent, 0.25]
