"""Rows by task against plain loops, and advantages of linear critics that know nothing of other environments."""

from __future__ import annotations

import numpy as np
import pytest

import marlflow as mf
from marlflow.learner.task_batches import by_task, laid_out, linear_advantages
from tests.learner.experience import ragged

LENGTHS = [13, 15, 1, 14, 12, 16, 17, 22]
COPY = np.array([4, 4, 4, 9, 9, 2, 2, 7])


def played(seed: int = 0) -> mf.Batch:
    """Segments of four environments, as a worker hands them over."""
    batch = ragged(LENGTHS, seed)
    t_agent = np.concatenate([np.arange(length) for length in LENGTHS])
    return mf.Batch({**batch.columns, "t_agent": t_agent}, {**batch.segments, "env": COPY})


def test_advantages_are_normalized_in_each_copy_and_rows_stay_where_they_are() -> None:
    batch = played()
    found = linear_advantages(batch, 0.9, 0.8)
    for name, column in batch.columns.items():
        np.testing.assert_array_equal(found.columns[name], column)
    for env_index in np.unique(COPY):
        mine = found.columns["advantage"][found["env"] == env_index]
        assert mine.mean() == pytest.approx(0.0, abs=1e-6)
        assert mine.std() == pytest.approx(1.0, abs=1e-3)


def test_no_copy_knows_of_another() -> None:
    """Without the others each environment's advantages are the same; with other rewards in one, the others' are."""
    batch = played()
    found = linear_advantages(batch, 0.9, 0.8)["advantage"]
    alone = linear_advantages(batch.only(COPY == 9), 0.9, 0.8)["advantage"]
    np.testing.assert_array_equal(found[batch["env"] == 9], alone)
    reward = np.where(batch["env"] == 2, np.arange(batch.rows) ** 2.0, batch["reward"])
    other = linear_advantages(batch.with_columns(reward=reward), 0.9, 0.8)["advantage"]
    same = found == other
    assert same[batch["env"] != 2].all()
    assert not same[batch["env"] == 2].any()


def test_a_return_that_time_explains_leaves_no_advantage() -> None:
    """Of rewards of 1 until 20 steps are over, where the pole falls, the linear critic knows all: each value is right.

    A segment that is cut in the middle is followed by its own value, so it is explained as well.
    """
    lengths, begins = np.array([20, 20, 8, 12]), np.array([0, 0, 0, 8])
    t_agent = np.concatenate([begin + np.arange(length) for begin, length in zip(begins, lengths, strict=True)])
    rows, segments = len(t_agent), len(lengths)
    batch = mf.Batch(
        {
            "obs": np.zeros((rows, 2), np.float32),
            "reward": np.ones(rows),
            "t_agent": t_agent,
            "behavior_logp": np.zeros(rows, np.float32),
        },
        {
            "length": lengths,
            "terminated": begins + lengths == 20,
            "truncated": np.zeros(segments, bool),
            "bootstrap_obs": np.zeros((segments, 2), np.float32),
            "env": np.zeros(segments, np.int64),
        },
    )
    found = linear_advantages(batch, 1.0, 0.9)
    np.testing.assert_allclose(found.columns["value"], 20 - t_agent, atol=0.3)


def test_there_may_be_nothing() -> None:
    nothing = played().only(np.zeros(len(COPY), bool))
    found = linear_advantages(nothing, 0.9, 0.8)
    assert found.rows == 0
    assert set(linear_advantages(played(), 0.9, 0.8).columns) == set(found.columns)
    assert all(column.shape[:2] == (2, 0) for column in laid_out(found, np.zeros(0, np.int64), 2).values())


def several_iterations(seed: int = 0) -> mf.Batch:
    """Env 4 has two tasks, of which one is without rows of the last phase; 9, 2 and 7 have one each."""
    batch = linear_advantages(played(seed), 0.9, 0.8)
    return mf.Batch(
        batch.columns,
        {
            **batch.segments,
            "adapted": np.array([0, 1, 0, 0, 1, 1, 0, 1]),
            "task": np.array([50, 50, 60, 50, 50, 33, 33, 1]),
        },
    )


def test_rows_are_laid_out_by_task_and_phase_as_a_plain_loop_does() -> None:
    batch = several_iterations()
    found = by_task(batch, inner_steps=1)
    tasks = [(2, 33), (4, 50), (7, 1), (9, 50)]  # and (4, 60) shows nothing of its result
    assert found.rows == len(tasks)
    assert found.agent_steps == sum(LENGTHS) - LENGTHS[2]
    for index, (env_index, task) in enumerate(tasks):
        for phase in range(2):
            rows = [
                row
                for row in range(batch.rows)
                if (batch["env"][row], batch["task"][row], batch["adapted"][row]) == (env_index, task, phase)
            ]
            for name in ("obs", "action", "behavior_logp", "advantage"):
                laid = found.columns[name][index, phase]
                np.testing.assert_array_equal(laid[: len(rows)], batch.columns[name][rows])
                assert not laid[len(rows) :].any()
            expected = [1.0 / max(1, len(rows))] * len(rows) + [0.0] * (max(LENGTHS) - len(rows))
            np.testing.assert_allclose(found.columns["weight"][index, phase], expected)


def test_where_no_task_is_complete_there_is_nothing_to_learn() -> None:
    batch = several_iterations()
    found = by_task(batch.only(batch.segments["adapted"] == 0), inner_steps=1)
    assert (found.rows, found.agent_steps) == (0, 0)


def test_what_changes_actors_is_not_for_learners() -> None:
    with pytest.raises(TypeError, match="worker"):
        mf.Adapt(0.9, 0.8)(played(), object())  # type: ignore[arg-type]
