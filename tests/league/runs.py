"""Small runs of leagues: rock, paper, scissors with one policy, and teams with several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import marlflow as mf
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

OFTEN = mf.SnapshotRules(every_agent_steps=150)
MAIN = mf.Policy(replace(SMALL_PPO, batch_agent_steps=60, minibatch_agent_steps=32), SMALL)
LEAGUES = {
    "self_play": mf.League(mf.NaiveSelfPlay(), snapshots=OFTEN),
    "latest_past": mf.League(mf.LatestPast(window=2), snapshots=OFTEN),
    "pfsp": mf.League(mf.PFSP(), snapshots=OFTEN),
}


def league_run(
    league: mf.League, env_steps: int, runtime: Literal["inline", "ray"] = "inline", **changes: Any
) -> mf.Experiment:
    """Four environments on two workers; an episode takes ten env steps, and a round six of each environment."""
    experiment = small_run(
        runtime,
        env=mf.Env(RockPaperScissors, num_envs=4),
        policies={"main": MAIN},
        mapping=None,
        league=league,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=12),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
        evaluation=mf.Evaluation(every_env_steps=200, episodes=3),
    )
    return replace(experiment, **{"stop": mf.Stop(env_steps=env_steps), **changes})
