import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlflow.observe.rates import (
    Progress,
    StageShares,
    progress,
    return_targets,
    rollout_shares,
    stage_shares,
    updates_per_s,
    with_last_evaluations,
)
from tests.observe.records import evaluation, record


def test_rates_are_differences_between_two_reports() -> None:
    later = record(3)
    later["time_s"] = 16.0
    assert updates_per_s(record(2), later) == {"adversary": 10.0, "agent": 50.0}
    # It was metered for three of eight seconds: a call that runs is not.
    assert stage_shares(record(2), later)["adversary/Learn"] == StageShares(busy=1 / 3, starved=2 / 3, blocked=0.0)


def test_the_first_report_counts_from_the_beginning() -> None:
    assert updates_per_s(None, record(2)) == {"adversary": 20.0, "agent": 100.0}
    assert stage_shares(None, record(2))["rollouts/Collect"] == StageShares(busy=0.75, starved=0.0, blocked=0.25)


def test_a_policy_and_a_stage_that_are_new_count_from_nothing() -> None:
    before = record(1)
    before["learners"], before["stages"] = {}, {}
    assert updates_per_s(before, record(2))["agent"] == 200.0
    assert stage_shares(before, record(2))["adversary/Learn"] == StageShares(1 / 3, 2 / 3, 0.0)


@given(*(st.floats(0.0, 1e6) for _ in range(3)))
def test_shares_sum_to_one_and_percents_to_a_hundred(busy_s: float, starved_s: float, blocked_s: float) -> None:
    before, now = record(1), record(1)
    stage = now["stages"]["adversary/Learn"]
    before["stages"]["adversary/Learn"] = {**stage}  # type: ignore[typeddict-item]
    now["stages"]["adversary/Learn"] = stage | {  # type: ignore[typeddict-item]
        name: stage[name] + spent_s  # type: ignore[literal-required]
        for name, spent_s in (("busy_s", busy_s), ("starved_s", starved_s), ("blocked_s", blocked_s))
    }
    share = stage_shares(before, now)["adversary/Learn"]
    total = share.busy + share.starved + share.blocked
    assert total == 0.0 or abs(total - 1.0) < 1e-9
    assert sum(share.percents) == (100 if total else 0)
    exact = (share.busy, share.starved, share.blocked)
    assert all(abs(percent - 100 * part) <= 1.0 for percent, part in zip(share.percents, exact, strict=True))
    assert min(share.percents) >= 0


def test_a_report_without_an_evaluation_leaves_the_last_one_standing() -> None:
    first, second, third = record(1), record(2), record(3)
    assert with_last_evaluations(None, first) == first
    assert with_last_evaluations(first, second) == second
    standing = with_last_evaluations(second, third)
    for policy in ("adversary", "agent", "goal"):
        expected = {key: second["policies"][policy][key] for key in evaluation(2)}  # type: ignore[literal-required]
        assert standing["policies"][policy] == {**third["policies"][policy], **expected}
    assert with_last_evaluations(standing, record(4)) == record(4)


def test_rollout_workers_share_out_the_time_since_the_last_report() -> None:
    later = record(3)
    later["rollouts"] = {"env_s": 5.0, "policy_s": 3.0, "bookkeeping_s": 2.0}
    assert rollout_shares(record(2), later) == {"environments": 0.5, "policies": 0.25, "bookkeeping": 0.25}
    assert rollout_shares(record(1), record(1)) == {}


def test_no_time_between_reports_gives_no_rate() -> None:
    assert updates_per_s(record(1), record(1)) == dict.fromkeys(("adversary", "agent"))
    assert set(stage_shares(record(1), record(1)).values()) == {StageShares(0.0, 0.0, 0.0)}


@pytest.mark.parametrize(
    ("stop", "expected"),
    [
        ({}, None),
        ({"policies.agent.return_mean": 3.0}, None),
        ({"env_steps": 10_000}, Progress(0.2, 32.0)),
        ({"time_s": 16.0}, Progress(0.5, 8.0)),
        ({"env_steps": 10_000, "time_s": 16.0}, Progress(0.5, 8.0)),
        ({"env_steps": 2500, "time_s": 16.0}, Progress(0.8, 2.0)),
        ({"env_steps": 1000}, Progress(1.0, 0.0)),
    ],
)
def test_progress_is_to_the_nearest_end(stop: dict[str, float], expected: Progress | None) -> None:
    assert progress(record(2), stop) == expected


def test_without_speed_the_time_left_is_unknown() -> None:
    still = record(2)
    still["env_steps_per_s"] = 0.0
    assert progress(still, {"env_steps": 10_000}) == Progress(0.2, None)
    assert progress(still, {"env_steps": 10_000, "time_s": 16.0}) == Progress(0.5, 8.0)


@given(st.integers(0, 200), st.floats(1, 1e9), st.floats(0.1, 1e9))
def test_progress_stays_within_bounds(number: int, env_steps: float, time_s: float) -> None:
    ahead = progress(record(number), {"env_steps": env_steps, "time_s": time_s})
    assert ahead is not None
    assert ahead.left_s is not None
    assert 0.0 <= ahead.fraction <= 1.0
    assert ahead.left_s >= 0.0


def test_return_targets_are_found_by_policy() -> None:
    stop = {"env_steps": 1.0, "policies.a.b.return_mean": 2.0, "grace_period_s": 30.0}
    assert return_targets(stop) == {"a.b": 2.0}
