"""The robotic warehouse (RWARE) as a Parallel environment: agents bring requested shelves to a station.

Papoudakis et al., "Benchmarking multi-agent deep reinforcement learning algorithms in cooperative tasks", 2021,
https://arxiv.org/abs/2006.07869. The package `rware`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import rware  # noqa: F401  registers the environments

from marlflow.env import gymnasium_team
from marlflow.env.gymnasium_team import GymnasiumTeam


def parallel_env(
    id: str = "rware-tiny-2ag-v2",
    max_cycles: int = 500,
    arguments: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> GymnasiumTeam:
    """Make the warehouse `id`, truncated after `max_cycles` env steps; `arguments` are those of its class."""
    # The warehouse's own time limit terminates episodes, so values would not be bootstrapped.
    return gymnasium_team.parallel_env(id, {"max_steps": None, **(arguments or {})}, max_cycles, render_mode)
