"""Small runs of leagues: rock, paper, scissors with one policy, and teams with several."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from marlflow.config.experiment import CheckpointConfig, Env, Evaluation, Experiment, Policy, Rollouts, Stop
from marlflow.league import PFSP, LatestPast, League, NaiveSelfPlay, SnapshotRules
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.runtime.small_runs import SMALL, SMALL_PPO, small_run

OFTEN = SnapshotRules(every_agent_steps=150)
MAIN = Policy(replace(SMALL_PPO, batch_agent_steps=60, minibatch_agent_steps=32), SMALL)
LEAGUES = {
    "self_play": League(NaiveSelfPlay(), snapshots=OFTEN),
    "latest_past": League(LatestPast(window=2), snapshots=OFTEN),
    "pfsp": League(PFSP(), snapshots=OFTEN),
}


def league_run(
    league: League, env_steps: int, runtime: Literal["inline", "ray"] = "inline", **changes: Any
) -> Experiment:
    """Four environments on two workers; an episode takes ten env steps, and a round six of each environment."""
    experiment = small_run(
        runtime,
        env=Env(RockPaperScissors, num_envs=4),
        policies={"main": MAIN},
        mapping=None,
        league=league,
        rollouts=Rollouts(num_workers=2, fragment_env_steps=12),
        checkpoint=CheckpointConfig(every_env_steps=None),
        evaluation=Evaluation(every_env_steps=200, episodes=3),
    )
    return replace(experiment, **{"stop": Stop(env_steps=env_steps), **changes})
