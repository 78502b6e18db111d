"""AlphaStar's league in a run: exploiters begin again after each snapshot, mains never do."""

from pathlib import Path

import marlflow as mf
from marlflow.league.dealing import LeagueMatchmaker
from marlflow.league.members import Members
from marlflow.league.payoffs import Payoffs
from marlflow.league.ratings import Ratings
from marlflow.league.sides import default_sides
from tests.driver.resumed_runs import resumes_exactly
from tests.driver.rock_paper_scissors import RockPaperScissors
from tests.runtime.small_runs import SMALL_DQN, SMALL_PPO, policies, small_run

AGENTS = ["player_0", "player_1"]
RULES = mf.SnapshotRules(at_start=True, every_agent_steps=None)


def alphastar(env_steps: int) -> mf.Experiment:
    live = ["main", "finder"]
    members = Members(default_sides(AGENTS), dict.fromkeys(live, AGENTS), live)
    mode = mf.AlphaStar({"finder": "main_exploiter"}, phase_agent_steps=150, reset_to="initial")
    league = LeagueMatchmaker(members, mode, Payoffs(members.sides, live), Ratings(live), RULES)
    return small_run(
        env=mf.Env(RockPaperScissors, num_envs=4),
        policies=policies(main=SMALL_PPO, finder=SMALL_DQN),
        mapping=league,
        rollouts=mf.Rollouts(num_workers=2, fragment_env_steps=20),
        checkpoint=mf.CheckpointConfig(every_env_steps=None),
        stop=mf.Stop(env_steps=env_steps),
    )


def test_an_exploiter_begins_again_and_a_resumed_run_does_the_same(tmp_path: Path) -> None:
    driver = resumes_exactly(alphastar(1_600), tmp_path, 800).trees["driver"]
    league = driver["dealer"]["matchmaker"]
    assert driver["resets"]["main"] == league["members"]["incarnations"]["main"] == 0
    assert driver["resets"]["finder"] == league["members"]["incarnations"]["finder"] >= 2
    snapshots = [one for one in league["members"]["snapshots"] if one["policy"] == "finder"]
    # The one at the start, and one before each reset.
    assert [one["incarnation"] for one in snapshots] == [0, *range(len(snapshots) - 1)]
    assert len(snapshots) == 1 + driver["resets"]["finder"]
