"""A run of teams with central critics: MAPPO, recurrent MAPPO and HAPPO on one stream of experience."""

from __future__ import annotations

from typing import Any, Literal

import marlflow as mf
from marlflow.env.games import cartpole_team
from marlflow.env.wrappers.shipped import joint_state
from tests.runtime.small_runs import small_run

SETTINGS: dict[str, Any] = {
    "epochs": 2,
    "parts": {"values": mf.PopArt()},
    "bootstrap_at_death": True,
    "critic_sees": ("state", "agent"),
}
SMALL = mf.MLP((8,))


def teams(env_steps: int, runtime: Literal["inline", "ray"] = "inline", **changes: Any) -> mf.Experiment:
    """Six carts: two learn with MAPPO, two with recurrent MAPPO, and two, each with a policy of its own, with HAPPO."""
    mappo = mf.MAPPO(batch_agent_steps=60, minibatch_agent_steps=20, **SETTINGS)
    recurrent = mf.RecurrentPPO(batch_agent_steps=60, minibatch_agent_steps=20, sequence_agent_steps=8, **SETTINGS)
    happo = mf.HAPPO(batch_agent_steps=60, minibatch_agent_steps=20, **SETTINGS)
    policies = {
        "mappo": mf.Policy(mappo, SMALL, mf.PlacementOverrides(stages={"Advantages": "worker"})),
        "recurrent": mf.Policy(recurrent, mf.GRU(6, (8,))),
        "left": mf.Policy(model=SMALL),
        "right": mf.Policy(model=mf.MLP((6,))),
    }
    seats = ("mappo", "mappo", "recurrent", "recurrent", "left", "right")
    return small_run(
        runtime,
        env_steps,
        env=mf.Env(cartpole_team.parallel_env, {"num_agents": 6, "max_cycles": 30}, (joint_state,), num_envs=4),
        policies=policies,
        learners={"happo": mf.LearnerConfig(("left", "right"), happo)},
        mapping=[mf.Rule(f"cart_{number}", policy) for number, policy in enumerate(seats)],
        log=mf.Log(every_env_steps=120, console="none", tensorboard=False),
        **changes,
    )
