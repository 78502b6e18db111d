"""A run of two policies that learn and one that does not, as the records of it would be."""

from pathlib import Path

import marlflow as mf
from marlflow.observe.report import (
    EvaluationMetrics,
    LearnerMetrics,
    ObjectStoreMetrics,
    PolicyInfo,
    PolicyMetrics,
    RolloutMetrics,
    StageMetrics,
)
from marlflow.observe.sinks import JsonlSink

INFO = mf.RunInfo(
    name="tag",
    run_dir=Path("runs/tag"),
    policies={
        "adversary": PolicyInfo("ppo", ("adversary_0", "adversary_1", "adversary_2")),
        "agent": PolicyInfo("dqn", ("agent_0",)),
        "goal": PolicyInfo("random", ("goal_0",)),
    },
    runtime="inline",
    stop={"env_steps": 100_000, "policies.adversary.return_mean": 40.0},
)


def evaluation(number: int) -> EvaluationMetrics:
    """What is new of evaluations: every second report has one, made 500 env steps before it."""
    is_new = number > 0 and number % 2 == 0
    return EvaluationMetrics(
        eval_return_mean=7.25 if is_new else None,
        eval_return_std=1.5 if is_new else None,
        eval_team_return_mean=14.5 if is_new else None,
        eval_episode_env_steps_mean=31.0 if is_new else None,
        eval_episodes=20 if is_new else None,
        eval_episodes_asked=20 if is_new else None,
        eval_episodes_distinct=19 if is_new else None,
        eval_mode="greedy" if is_new else None,
        eval_env_steps=1000 * number - 500 if is_new else None,
        eval_version=80 * number if is_new else None,
        eval_against={"random": 7.25} if is_new else {},
        eval_infos={},
    )


def policy(number: int, updates: int, return_mean: float | None) -> PolicyMetrics:
    return PolicyMetrics(
        return_mean=return_mean,
        return_std=None if return_mean is None else 2.0,
        team_return_mean=None if return_mean is None else 3.0 * return_mean,
        episode_env_steps_mean=None if return_mean is None else 25.0,
        **evaluation(number if updates else 0),
        episodes=10 * number,
        agent_steps_sampled=3000 * number,
        version=updates,
        rows_carried=4 * number,
        reward_unattributed=0.0,
        infos={},
        infos_unattributed={},
    )


def learner(number: int, updates: int, loss: dict[str, float]) -> LearnerMetrics:
    is_new = number > 0 and number % 2 == 0
    return LearnerMetrics(
        return_mean=-1.25,
        team_return_mean=-5.0,
        eval_return_mean=6.5 if is_new else None,
        eval_team_return_mean=26.0 if is_new else None,
        agent_steps_trained=12_000 * number,
        updates=updates,
        updates_skipped=0,
        version=updates,
        staleness_mean=0.5 if updates else None,
        stale_rows_dropped=0,
        rows_bootstrapped_at_death=0,
        compiles=0,
        compile_s=0.0,
        seats_left_early=0,
        schedules={"learning_rate": 0.001 / number} if updates else {},
        loss=loss,
    )


def record(number: int) -> mf.Report:
    """The report after `number` times 4 seconds and 1000 env steps."""
    return mf.Report(
        time_s=4.0 * number,
        env_steps=1000 * number,
        agent_steps=5000 * number,
        episodes=10 * number,
        episode_env_steps_mean=25.0,
        team_return_mean=4.5,
        eval_team_return_mean=29.0 if number % 2 == 0 else None,
        env_steps_per_s=250.0,
        policies={
            "adversary": policy(number, 80 * number, -12.5 + number),
            "agent": policy(number, 400 * number, 20.0 - number),
            "goal": policy(number, 0, None),
        },
        learners={
            "adversary": learner(number, 80 * number, {"policy": -0.0125, "value": 3.5}),
            "agent": learner(number, 400 * number, {"td": 0.43}),
        },
        agents={"adversary_0": {"return_mean": 1.5}, "goal_0": {"return_mean": None}},
        stages={
            "rollouts/Collect": StageMetrics(
                items=number,
                rows=5000 * number,
                dropped=0,
                rows_dropped=0,
                busy_s=3.0 * number,
                starved_s=0.0,
                blocked_s=1.0 * number,
            ),
            "adversary/Learn": StageMetrics(
                items=number,
                rows=3000 * number,
                dropped=0,
                rows_dropped=0,
                busy_s=1.0 * number,
                starved_s=2.0 * number,
                blocked_s=0.0,
            ),
        },
        rollouts=RolloutMetrics(env_s=1.5 * number, policy_s=1.0 * number, bookkeeping_s=0.5 * number),
        object_store=ObjectStoreMetrics(bytes=2**20),
        faults={"workers_lost": 1 if number > 2 else 0},
    )


def tell(sink: mf.Callback, *records: mf.Report, info: mf.RunInfo = INFO, error: str | None = None) -> None:
    """A run from its beginning to its end, as a sink is told of it."""
    sink.began(info)
    for each in records:
        sink.reported(each)
    sink.ended(mf.RunEnd("stop.env_steps=3000", records[-1] if records else record(0), error))


def write(path: Path, *records: mf.Report, info: mf.RunInfo = INFO) -> Path:
    """The metrics.jsonl of a run with these reports."""
    tell(JsonlSink(path), *records, info=info)
    return path
