"""Level-based foraging (LBF) as a Parallel environment: agents of different levels load food together.

Christianos et al., "Shared experience actor-critic for multi-agent reinforcement learning", 2020,
https://arxiv.org/abs/2006.07169. The package `lbforaging`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import lbforaging  # noqa: F401  registers the environments

from marlflow.env import gymnasium_team
from marlflow.env.gymnasium_team import GymnasiumTeam

# The game's own time limit terminates episodes, so values would not be bootstrapped; `max_cycles` truncates them.
_NEVER = 10**9
USUAL_ID = "Foraging-8x8-2p-3f-v3"


def parallel_env(
    id: str = USUAL_ID,
    max_cycles: int = 50,
    arguments: Mapping[str, Any] | None = None,
    render_mode: str | None = None,
) -> GymnasiumTeam:
    """Make the game `id`, truncated after `max_cycles` env steps; `arguments` are those of its class."""
    return gymnasium_team.parallel_env(id, {"max_episode_steps": _NEVER, **(arguments or {})}, max_cycles, render_mode)
