"""A run of two policies that learn and one that does not, as the records of it would be."""

from pathlib import Path
from typing import Any

from marlflow.observe.record import (
    MetricsRecord,
    ObjectStoreMetrics,
    PolicyInfo,
    PolicyMetrics,
    RolloutMetrics,
    RunInfo,
    StageMetrics,
)

INFO = RunInfo(
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


def evaluation(number: int) -> dict[str, Any]:
    """What is known of the last evaluation: nothing before the second report."""
    keys = ("return_mean", "mode", "episodes", "env_steps", "version")
    values = (7.25, "greedy", 20, 2000, 160) if number >= 2 else (None,) * len(keys)
    return {f"eval_{key}": value for key, value in zip(keys, values, strict=True)}


def policy(number: int, updates: int, loss: dict[str, float], return_mean: float | None) -> PolicyMetrics:
    return PolicyMetrics(
        return_mean=return_mean,
        **evaluation(number if updates else 0),
        episodes=10 * number,
        agent_steps_sampled=3000 * number,
        agent_steps_trained=12_000 * number,
        updates=updates,
        version=updates,
        staleness_mean=0.5 if updates else None,
        stale_rows_dropped=0,
        rows_carried=4 * number,
        reward_unattributed=0.0,
        schedules={"learning_rate": 0.001 / number} if updates else {},
        loss=loss,
    )


def record(number: int) -> MetricsRecord:
    """The report after `number` times 4 seconds and 1000 env steps."""
    return MetricsRecord(
        time_s=4.0 * number,
        env_steps=1000 * number,
        agent_steps=5000 * number,
        episodes=10 * number,
        env_steps_per_s=250.0,
        policies={
            "adversary": policy(number, 80 * number, {"policy": -0.0125, "value": 3.5}, -12.5 + number),
            "agent": policy(number, 400 * number, {"td": 0.43}, 20.0 - number),
            "goal": policy(number, 0, {}, None),
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
