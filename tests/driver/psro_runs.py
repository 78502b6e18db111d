"""Runs of PSRO on OpenSpiel's matrix games, and what their meta-strategies play."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete

import marlflow as mf
from marlflow.base.spaces import Spaces
from marlflow.env.simulators import openspiel
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from tests.driver.kept_runs import kept
from tests.runtime.small_runs import small_run

AGENTS = ["player_0", "player_1"]
SIDES = default_sides(AGENTS)
PPO_ORACLE = mf.PPO(
    batch_agent_steps=200, epochs=4, minibatch_agent_steps=100, learning_rate=1e-2, entropy_coefficient=0.0
)
MODEL = mf.MLP((16,))


def psro_run(
    game: str, env_steps: int, mode: mf.PSRO, runtime: Literal["inline", "ray"] = "inline", **changes: Any
) -> mf.Experiment:
    """One policy, `oracle`, is the oracle of both roles; its initial parameters are the first member."""
    members = Members(SIDES, {"oracle": AGENTS}, live=["oracle"])
    rules = mf.SnapshotRules(at_start=True, every_agent_steps=None)
    league = LeagueMatchmaker(members, mode, Payoffs(SIDES, ["oracle"]), Ratings(["oracle"]), rules)
    return small_run(
        runtime,
        env_steps,
        env=mf.Env(openspiel.env, {"game": game}, num_envs=16),
        policies={"oracle": mf.Policy(PPO_ORACLE, MODEL)},
        mapping=league,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=25),
        stop=mf.Stop(env_steps=env_steps),
        **changes,
    )


def league_of(run_dir: Path) -> Any:
    """The league's state in the newest checkpoint."""
    return kept(run_dir)["driver"]["dealer"]["matchmaker"]


def meta_strategies(run_dir: Path, actions: int) -> list[np.ndarray]:
    """The mixed strategy of each role: the probabilities of the game's actions, from its members' probabilities."""
    trees = kept(run_dir)
    return [
        sum(weight * _chances(trees[f"frozen.{name}"]["flat"], actions) for name, weight in mixture.items())
        for mixture in trees["driver"]["dealer"]["matchmaker"]["mode"]["meta"]
    ]


def _chances(flat: np.ndarray, actions: int) -> np.ndarray:
    spaces = Spaces(Box(-np.inf, np.inf, (1,), np.float32), Discrete(actions), masked=True)
    actor: Any = PPO_ORACLE.actor(spaces, MODEL, 0)
    actor.load_flat(flat[: len(actor.flat())])
    # Nothing is observed at the only decision.
    with torch.no_grad():
        return torch.softmax(actor(torch.zeros(1, 1)), -1)[0].numpy().astype(np.float64)
