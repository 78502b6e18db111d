"""A limit on costs where nothing gives costs is refused before the start, with the remedy."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.env.batched.cartpole_team import BatchedCartPoleTeam
from marlflow.env.games import cartpole_team, toll
from marlflow.sampling.batched_pool import BatchedEnvPool
from tests.driver.costly import carts
from tests.runtime.small_runs import small_run
from tests.sentences import wrong_with

LIMIT = {"cost": mf.CostLimit(0.25)}
LIMITED = mf.PPO(batch_agent_steps=200, epochs=1, minibatch_agent_steps=64, parts=LIMIT)
ROADS = mf.Env(toll.parallel_env, {}, num_envs=4)


def experiment(algorithm: Any, env: mf.Env = ROADS, **changes: Any) -> mf.Experiment:
    return small_run(
        env=env, policies={"team": mf.Policy(algorithm, mf.MLP((8,)), **changes)}, mapping=[mf.Rule("*", "team")]
    )


def refused(algorithm: Any, env: mf.Env = ROADS, **changes: Any) -> str:
    (problem,) = wrong_with(experiment(algorithm, env, **changes))
    return problem


@pytest.mark.parametrize("algorithm", [LIMITED, replace(LIMITED, normalize_advantages=False), mf.SAC(parts=LIMIT)])
def test_what_can_have_a_limit(algorithm: Any) -> None:
    checked = ready(experiment(algorithm))
    assert checked.spec.columns.of_policy("team") == ("cost",)
    assert ready(experiment(replace(algorithm, parts={"cost": None}))).spec.columns.in_rows == ()


def test_a_central_critic_can_have_one() -> None:
    assert ready(experiment(mf.MAPPO(parts=LIMIT, minibatch_agent_steps=64))).spec.columns.of_policy("team") == (
        "cost",
    )


def test_infos_of_aec_environments_would_count_twice() -> None:
    assert refused(LIMITED, mf.Env(cartpole_team.env, {"max_cycles": 50}, num_envs=4)) == (
        "policy 'team' (ppo) has a CostLimit, and in env, an AEC environment, infos stay from one turn to the next, "
        "so that a cost would count several times; use the environment's parallel_env, or set algorithm.parts.cost=null"
    )


def test_batched_environments_without_costs_are_refused() -> None:
    batched = mf.Env(cartpole_team.parallel_env, {}, num_envs=4, batched=True)
    assert refused(LIMITED, batched) == (
        "policy 'team' (ppo) has a CostLimit, and parallel_env has a batched version (env.batched=true) that gives no "
        "costs; set env.batched=auto, or algorithm.parts.cost=null"
    )
    for how in (True, False, "auto"):
        assert refused(LIMITED, mf.Env(BatchedCartPoleTeam, {}, num_envs=4, batched=how)) == (
            "policy 'team' (ppo) has a CostLimit, and BatchedCartPoleTeam makes a BatchedEnv whose info_keys lack "
            "'cost'; give it in BatchedStep.infos and name it in info_keys, or set algorithm.parts.cost=null"
        )


@pytest.mark.parametrize("batched", [True, "auto"])
def test_batched_environments_with_costs_are_stepped_by_one_call(batched: Any) -> None:
    worker = ready(experiment(LIMITED, replace(ROADS, batched=batched))).spec.worker(0)
    assert isinstance(worker._envs, BatchedEnvPool)
    assert set(worker.collect(3)[1]["team"]["cost"].tolist()) == {0.0, 1.0}
    worker.close()


def costly_carts() -> Any:
    return carts(1.0)


costly_carts.batched = BatchedCartPoleTeam  # type: ignore[attr-defined]  # which gives no costs


def test_auto_takes_the_version_that_gives_costs() -> None:
    worker = ready(experiment(LIMITED, mf.Env(costly_carts, {}, num_envs=4, batched="auto"))).spec.worker(0)
    assert not isinstance(worker._envs, BatchedEnvPool)
    assert worker.collect(5)[1]["team"]["cost"].any()
    worker.close()
    assert "parallel_env gives no info['cost'] of cart_0, cart_1, cart_2 and others in its first env step" in refused(
        LIMITED, mf.Env(cartpole_team.parallel_env, {}, num_envs=4, batched="auto")
    )


def test_replicas_see_no_costs_of_others() -> None:
    assert refused(mf.DDPPO(parts=LIMIT)) == (
        "policy 'team' (ddppo) cannot have a CostLimit: no learner of it sees the costs of all workers; use ppo, "
        "mappo or sac, or leave the part out"
    )


@pytest.mark.parametrize("limit", [-0.25, float("nan"), float("inf")])
def test_a_limit_is_a_number_from_0_on(limit: float) -> None:
    assert "policies.team.algorithm.parts.cost.limit must be" in refused(
        replace(LIMITED, parts={"cost": mf.CostLimit(limit)})
    )


CARTS = mf.Env(cartpole_team.parallel_env, {}, num_envs=4)
IN_TURN = mf.Env(cartpole_team.env, {"max_cycles": 50}, num_envs=4)
BATCHED = mf.Env(BatchedCartPoleTeam, {}, num_envs=4)
PLAIN = replace(LIMITED, parts={})


@pytest.mark.parametrize(
    ("env", "columns", "metrics", "problem"),
    [
        (
            IN_TURN,
            {"step": "credited"},
            {},
            "stay from one turn to the next, so that a number would count several times",
        ),
        (IN_TURN, {"step": "info"}, {}, "infos are read at an agent's end only; use the environment's parallel_env"),
        (IN_TURN, {}, {"won": mf.InfoMetric("won", at="sum")}, "metrics.won sums info['won'], and in env, an AEC"),
        (
            CARTS,
            {"step": "info"},
            {},
            "gives no info['step'] of cart_0, cart_1, cart_2 and others in its first env step",
        ),
        (BATCHED, {"step": "info"}, {}, "makes a BatchedEnv whose info_keys lack 'step'"),
        (
            BATCHED,
            {},
            {"won": mf.InfoMetric("won")},
            "reads info['won'], and steps of BatchedCartPoleTeam have infos of",
        ),
        (ROADS, {"cost": "credited"}, {"cost": mf.InfoMetric("cost")}, "metrics.cost: 'cost' is a column of rows too"),
        (ROADS, {"reward": "info"}, {}, "has the column 'reward', which rows have already; give the info another key"),
        (ROADS, {"cost": "sum"}, {}, "policies.team.columns.cost must be one of credited, info, not 'sum'"),
    ],
)
def test_what_cannot_be_read_of_infos_is_refused(
    env: mf.Env, columns: Any, metrics: dict[str, mf.InfoMetric], problem: str
) -> None:
    run = replace(experiment(PLAIN, env, columns=columns), metrics=metrics)
    assert any(problem in found for found in wrong_with(run))


@pytest.mark.parametrize(
    ("env", "settings", "problem"),
    [
        (
            IN_TURN,
            {"reward_from": {"step": 1}},
            "has a reward_from 'step', and in env, an AEC environment, infos stay from one turn to the next",
        ),
        (CARTS, {"reward_from": {"step": 1}}, "or set policies.team.reward_from without 'step'"),
        (
            ROADS,
            {"reward_from": {"cost": 1.0}, "columns": {"cost": "info"}},
            "set policies.team.columns.cost=credited",
        ),
        (
            ROADS,
            {"reward_from": {"cost": "one"}},
            "policies.team.reward_from.cost must be a number or Schedule, not 'one'",
        ),
        (ROADS, {"reward_from": {"cost": mf.Linear(float("inf"), 0, 5)}}, "reward_from.cost.start must be a finite"),
    ],
)
def test_what_cannot_be_added_to_rewards_is_refused(env: mf.Env, settings: Any, problem: str) -> None:
    assert any(problem in found for found in wrong_with(experiment(PLAIN, env, **settings)))


def test_of_a_policy_that_does_not_learn_nothing_is_added_to_rewards() -> None:
    problem, _ = wrong_with(experiment(mf.Random(), ROADS, reward_from={"cost": 1.0}))
    assert problem == "policies.team.reward_from: random does not learn from rewards; leave it out"


def test_policies_name_one_kind_of_a_column() -> None:
    policies: dict[str, Any] = {
        name: mf.Policy(PLAIN, mf.MLP((8,)), columns={"cost": kind})
        for name, kind in (("a", "info"), ("b", "credited"))
    }
    run = small_run(env=ROADS, policies=policies, mapping=[mf.Rule("car_0", "a"), mf.Rule("*", "b")])
    (problem,) = wrong_with(run)
    assert problem == "policy 'b' (ppo) has the column 'cost' as another kind than another policy; name one kind"


def test_a_column_and_a_limit_are_one_column_of_costs() -> None:
    columns = ready(experiment(LIMITED, columns={"cost": "credited"})).spec.columns
    assert [column.name for column in columns.in_rows] == ["cost"]


@pytest.mark.parametrize("key", ["objective", "best"])
def test_a_goal_names_something_that_infos_have(key: str) -> None:
    def problems(goal: str) -> list[str]:
        run = replace(experiment(PLAIN), metrics={"paid": mf.InfoMetric("cost")})
        run = (
            replace(run, objective=goal)
            if key == "objective"
            else replace(run, checkpoint=mf.CheckpointConfig(best=goal))
        )
        return wrong_with(run)

    assert problems("policies.team.eval_infos.paid") == []
    (problem,) = problems("policies.team.infos.payed")
    assert "nothing in infos has this name (metrics.payed.info=<its key> gives one); did you mean 'paid'?" in problem


def test_the_way_out_of_a_limit_is_at_the_learner_that_has_it() -> None:
    learners = {"tax": mf.LearnerConfig(("team",), LIMITED)}
    run = replace(experiment(None, CARTS), learners=learners)
    (problem,) = wrong_with(run)
    assert problem.endswith("give 0.0 where nothing costs, or set learners.tax.algorithm.parts.cost=null")
    (problem,) = wrong_with(replace(run, env=IN_TURN))
    assert problem.endswith("use the environment's parallel_env, or set learners.tax.algorithm.parts.cost=null")
