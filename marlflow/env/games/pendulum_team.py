"""N independent pendulums, one per agent: gymnasium's Pendulum swing-up, with continuous actions."""

from __future__ import annotations

from typing import Any, ClassVar

from gymnasium.envs.classic_control.pendulum import PendulumEnv
from pettingzoo import AECEnv
from pettingzoo.utils import parallel_to_aec

from marlflow.base.arrays import Array
from marlflow.env.games.independent_team import IndependentTeam


class PendulumTeam(IndependentTeam[Array]):
    """Agents `pendulum_0`, `pendulum_1`, ...; reward from -16.3 to 0 per env step, 0 upright and at rest.

    Observations are cosine and sine of the angle from upright and the angular velocity (rad/s): float32 [3]; actions
    are torques from -2 to 2 N m: float32 [1]. All agents are truncated after `max_cycles` env steps.
    """

    metadata: ClassVar[dict[str, Any]] = {
        "name": "pendulum_team_v0",
        "render_modes": ["rgb_array"],
        "render_fps": 20,
        "is_parallelizable": True,
    }

    def __init__(self, num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> None:
        super().__init__("pendulum", lambda mode: PendulumEnv(render_mode=mode), num_agents, max_cycles, render_mode)


def parallel_env(num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> PendulumTeam:
    """Make the team as a ParallelEnv."""
    return PendulumTeam(num_agents, max_cycles, render_mode)


def env(num_agents: int = 4, max_cycles: int = 200, render_mode: str | None = None) -> AECEnv[str, Array, Array | None]:
    """Make the team as an AECEnv."""
    return parallel_to_aec(PendulumTeam(num_agents, max_cycles, render_mode))
