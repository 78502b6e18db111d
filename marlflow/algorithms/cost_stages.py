"""The stage that plans of algorithms with a limit on costs have in common."""

from __future__ import annotations

from marlflow.algorithms.cost_limit import cost_limit_of
from marlflow.base.schedules import initial_value
from marlflow.stages import UpdateMultiplier


def update_multiplier(algorithm: object) -> UpdateMultiplier | None:
    """Return the stage that updates the multiplier by an algorithm's settings; None if costs have no limit."""
    limit = cost_limit_of(algorithm)
    if limit is None:
        return None
    rate = getattr(algorithm, "multiplier_learning_rate", 0.0)
    return UpdateMultiplier(initial_value(limit), initial_value(rate))
