"""Whole runs in one process: every stop condition works, returns equal the episodes', other environments train too."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest

import marlflow as mf
from marlflow.base.arrays import Array
from tests.driver.watching import EVALUATION_KEYS, POLICY_KEYS, Seen, reports, standing
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run

# -- when to stop ---------------------------------------------------------------------------------------------------


def test_env_steps_stop_a_run_at_the_end_of_the_round_that_reaches_them(tmp_path: Path) -> None:
    result = mf.train(small_run(env_steps=130), tmp_path)
    assert result.metrics["env_steps"] == 160
    assert result.stopped_by == "stop.env_steps=130"


def test_time_stops_a_run(tmp_path: Path) -> None:
    result = mf.train(small_run(stop=mf.Stop(time_s=1e-6)), tmp_path)
    assert result.stopped_by == "stop.time_s=1e-06"
    assert result.metrics["env_steps"] == 0


def test_returns_stop_a_run_when_all_have_reached_theirs(tmp_path: Path) -> None:
    near = mf.train(
        small_run(stop=mf.Stop(env_steps=20_000, policies={"hunters": 9.0, "prey": 9.0})), tmp_path / "near"
    )
    assert near.stopped_by == "stop.policies.hunters.return_mean=9, stop.policies.prey.return_mean=9"
    assert 100 <= near.metrics["episodes"] < 140, "a mean of fewer than 100 episodes is not settled"
    far = mf.train(small_run(stop=mf.Stop(env_steps=4_000, policies={"hunters": 9.0, "prey": 51.0})), tmp_path / "far")
    assert far.stopped_by == "stop.env_steps=4000"


def test_a_run_ends_when_every_plan_has_ended(tmp_path: Path) -> None:
    ending = {
        "hunters": mf.Policy(SMALL_PPO, SMALL, stop=mf.PolicyStop(agent_steps=300)),
        "prey": mf.Policy(SMALL_DQN, SMALL, stop=mf.PolicyStop(agent_steps=600)),
    }
    result = mf.train(small_run(env_steps=20_000, policies=ending), tmp_path)
    assert result.stopped_by == "every policy's own stop"
    assert result.metrics["env_steps"] < 2_000
    assert result.metrics["policies"]["prey"]["agent_steps_sampled"] >= 600


def test_a_policys_own_stop_ends_its_plan_and_it_goes_on_acting(tmp_path: Path, seen: Seen) -> None:
    ending = {
        "hunters": mf.Policy(SMALL_PPO, SMALL, stop=mf.PolicyStop(agent_steps=500)),
        "prey": mf.Policy(SMALL_DQN, SMALL),
    }
    result = mf.train(small_run(env_steps=2_000, policies=ending), tmp_path)
    hunters, prey = (standing(result.metrics, name) for name in ("hunters", "prey"))
    # In two epochs, from all rows up to the round in which it has had enough, and from none of those after it.
    sampled = accumulate(receipt.policies["hunters"].rows for receipt in seen.receipts)
    assert hunters["agent_steps_trained"] / 2 in [count for count in sampled if 500 <= count < 700]
    assert hunters["agent_steps_sampled"] > 700
    assert hunters["updates"] > 0
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert result.metrics["env_steps"] == 2_000
    versions = [receipt.policies["hunters"].version for receipt in seen.receipts]
    assert versions[-1] == max(versions) == hunters["version"]
    assert versions == sorted(versions)
    assert {receipt.policies["hunters"].rows > 0 for receipt in seen.receipts[-6:]} == {True}


@pytest.mark.parametrize("ends", ["hunters", "prey"])
def test_a_return_ends_a_policys_plan_too(ends: str, tmp_path: Path) -> None:
    ending = policies(hunters=SMALL_PPO, prey=SMALL_DQN)
    ending[ends] = replace(ending[ends], stop=mf.PolicyStop(return_mean=1.0))
    result = mf.train(small_run(env_steps=5_000, policies=ending), tmp_path)
    lasts = reports(tmp_path)[-4:]
    (other,) = {"hunters", "prey"} - {ends}
    assert len({record["learners"][ends]["updates"] for record in lasts}) == 1
    assert lasts[0]["learners"][other]["updates"] < lasts[-1]["learners"][other]["updates"]
    assert result.metrics["policies"][ends]["episodes"] == result.metrics["episodes"] > 100


# -- returns --------------------------------------------------------------------------------------------------------


def test_return_means_are_those_of_the_last_100_episodes(tmp_path: Path, seen: Seen) -> None:
    result = mf.train(small_run(env_steps=4_000), tmp_path)
    by_policy = {"hunters": ("cart_0", "cart_1"), "prey": ("cart_2", "cart_3")}
    assert len(seen.episodes) == result.metrics["episodes"] > 100
    for name, agents in by_policy.items():
        last = deque((fmean(episode.returns[agent] for agent in agents) for episode in seen.episodes), maxlen=100)
        assert result.metrics["policies"][name]["return_mean"] == pytest.approx(fmean(last))
        for agent in agents:
            own = [episode.returns[agent] for episode in seen.episodes][-100:]
            assert result.metrics["agents"][agent]["return_mean"] == pytest.approx(fmean(own))
    # Every env step gives 1 to every upright cart, so returns equal numbers of rows.
    finished = sum(sum(episode.returns.values()) for episode in seen.episodes)
    assert finished <= result.metrics["agent_steps"] <= finished + 4 * 4 * 50


# -- who does not learn ---------------------------------------------------------------------------------------------


def push_right(obs: Array, action_mask: Array | None, generator: mf.RowRandom) -> Array:
    return np.ones(len(obs), np.int64)


def test_policies_that_do_not_learn_leave_only_episode_results(tmp_path: Path, seen: Seen) -> None:
    algorithms = policies(pushed=mf.Scripted(push_right), careless=mf.Random(), hunters=SMALL_PPO)
    rules = (mf.Rule("cart_0", "pushed"), mf.Rule("cart_1", "careless"), mf.Rule("*", "hunters"))
    result = mf.train(small_run(policies=algorithms, mapping=rules, evaluation=mf.Evaluation(600, 2)), tmp_path)
    for name, acted in {"pushed": "greedy", "careless": "sampled"}.items():
        policy: Any = result.metrics["policies"][name]
        assert policy["episodes"] == len(seen.episodes) > 10
        assert policy["return_mean"] is not None
        assert policy["eval_return_mean"] is not None
        assert (policy["eval_mode"], policy["eval_episodes"], policy["eval_env_steps"]) == (acted, 2, 1_200)
        of_episodes = {"return_mean", "return_std", "team_return_mean", "episode_env_steps_mean", "episodes"}
        assert policy["infos"] == policy["infos_unattributed"] == {}
        zero = POLICY_KEYS - EVALUATION_KEYS - of_episodes - {"infos", "infos_unattributed"}
        assert {key: policy[key] for key in zero} == dict.fromkeys(zero, 0)
        assert name not in result.metrics["learners"]
    assert {name for receipt in seen.receipts for name in receipt.policies} == {"hunters"}
    assert {stage.split("/")[0] for stage in result.metrics["stages"]} == {"rollouts", "hunters"}
    kept = (tmp_path / "checkpoints" / "1200").glob("learner.*")
    assert [path.name for path in kept] == ["learner.hunters.safetensors"]
    # A cart that is always pushed to the right lasts eight to ten steps, a random one about twenty.
    means: dict[str, Any] = {name: result.metrics["policies"][name]["return_mean"] for name in algorithms}
    assert 8 <= means["pushed"] <= 11
    assert means["careless"] > 13
    # Their steps are played and counted as steps, and are in no row.
    sampled = result.metrics["policies"]["hunters"]["agent_steps_sampled"]
    others = sum(episode.returns["cart_0"] + episode.returns["cart_1"] for episode in seen.episodes)
    assert result.metrics["agent_steps"] >= sampled + others


# -- other environments ---------------------------------------------------------------------------------------------


def connect_four() -> mf.Experiment:
    return small_run(
        env_steps=1_500,
        env=mf.Env("pettingzoo.classic.connect_four_v3.env", num_envs=4),
        mapping=(mf.Rule("player_0", "hunters"), mf.Rule("player_1", "prey")),
    )


def test_turns_and_masks_train_with_every_count_exact(tmp_path: Path, seen: Seen, gathers: list[mf.Concat]) -> None:
    result = mf.train(connect_four(), tmp_path)
    hunters, prey = (standing(result.metrics, name) for name in ("hunters", "prey"))
    assert prey["updates"] == (prey["agent_steps_sampled"] - 100) // 10
    assert min(hunters["rows_carried"], prey["rows_carried"]) > 0
    held = sum(fragment.rows for fragment in gathers[-1].held)
    assert hunters["agent_steps_sampled"] == hunters["agent_steps_trained"] / 2 + held
    assert sum(update.stale_rows_dropped for update in seen.of("hunters")) == 0
    # Carried rows keep their older version, and they alone make a batch older than its learner.
    for update in seen.of("hunters"):
        assert 0 <= update.staleness_mean <= update.rows_carried / (update.rows / 2)
    # The winner gets 1 and the loser -1, so the sum over an episode is 0 unless a move was illegal.
    assert {sum(episode.returns.values()) for episode in seen.episodes} == {0.0}
    assert all(set(episode.returns.values()) <= {-1.0, 0.0, 1.0} for episode in seen.episodes)
    # Rows of an episode: each turn is one row of one player.
    assert result.metrics["env_steps"] == result.metrics["agent_steps"] >= 1_500


def test_groups_of_agents_with_different_spaces_train_side_by_side(tmp_path: Path, gathers: list[mf.Concat]) -> None:
    experiment = small_run(
        env_steps=800,
        env=mf.Env("mpe2.simple_tag_v3.parallel_env", {"max_cycles": 25}, num_envs=4),
        policies=policies(adversary=SMALL_PPO, agent=SMALL_DQN),
        mapping=(),
    )
    result = mf.train(experiment, tmp_path)
    adversary, agent = (standing(result.metrics, name) for name in ("adversary", "agent"))
    assert (adversary["agent_steps_sampled"], agent["agent_steps_sampled"]) == (2_400, 800)
    assert agent["updates"] == (800 - 100) // 10
    held = sum(fragment.rows for fragment in gathers[-1].held)
    assert adversary["agent_steps_trained"] == 2 * (2_400 - held)
    assert result.metrics["episodes"] == 32
    assert list(result.metrics["agents"]) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert adversary["rows_carried"] == agent["rows_carried"] == 0
