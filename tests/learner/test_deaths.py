"""After a death, the value is the mean of the survivors', right after it: held against a loop over episodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.batches.batch import Batch
from marlflow.learner.advantages import advantages, bootstrap_by_survivors, values_around
from tests.learner.lives import Critic, Life, batch_of, lives

DISCOUNT, TRACE = 0.9, 0.7


def expected_values(batch: Batch) -> dict[int, float]:
    """By last row of a terminated segment that others outlive: the mean of what they are worth one step later."""
    segments, obs, t_env = batch.segments, batch.columns["obs"], batch.columns["t_env"]
    ends = batch.ends().tolist()
    found = {}
    for dead in np.flatnonzero(segments["terminated"]).tolist():
        worth = []
        for other, end in enumerate(ends):
            if any(segments[name][other] != segments[name][dead] for name in ("env", "episode")):
                continue
            for row in range(end + 1 - segments["length"][other], end + 1):
                if t_env[row] != t_env[ends[dead]]:
                    continue
                if row < end:
                    worth.append(float(obs[row + 1]))
                elif not segments["terminated"][other]:
                    worth.append(float(segments["bootstrap_obs"][other]))
        if worth:
            found[ends[dead]] = float(np.mean(worth))
    return found


@given(lives(), st.integers(0, 99))
def test_the_value_after_a_death_is_the_survivors_mean(lives: list[Life], seed: int) -> None:
    batch = batch_of(lives, np.random.default_rng(seed))
    _, before, _ = values_around(batch, Critic())
    next_value, is_dead = bootstrap_by_survivors(batch, before.copy())
    died = np.flatnonzero(is_dead)
    expected = expected_values(batch)
    assert died.tolist() == sorted(expected)
    others = np.setdiff1d(np.arange(batch.rows), died)
    np.testing.assert_array_equal(next_value[others], before[others])
    np.testing.assert_allclose(next_value[died], [expected[row] for row in died.tolist()], rtol=1e-5, atol=1e-6)


@given(lives(), st.integers(0, 99))
def test_fragments_apart_give_the_same(lives: list[Life], seed: int) -> None:
    """So the stage may run on the workers, fragment by fragment: all first parts of lives, then all others."""
    lives = [replace(life, cut=min(life.length, max(0, 2 - life.born))) for life in lives]
    batch = batch_of(lives, np.random.default_rng(seed))
    whole = advantages(batch, Critic(), DISCOUNT, TRACE, bootstrap_at_death=True)
    for early in (True, False):
        fragment = (batch.columns["t_env"][batch.ends()] < 2) == early
        alone = advantages(batch.only(fragment), Critic(), DISCOUNT, TRACE, bootstrap_at_death=True)
        rows = np.repeat(fragment, batch.segments["length"])
        for name, column in alone.columns.items():
            np.testing.assert_allclose(column, whole.columns[name][rows], atol=1e-6)


@given(lives(), st.integers(0, 99))
def test_advantages_use_it_only_if_asked_and_count_the_rows(lives: list[Life], seed: int) -> None:
    batch = batch_of(lives, np.random.default_rng(seed))
    plain = advantages(batch, Critic(), DISCOUNT, TRACE)
    assert plain.rows_bootstrapped_at_death() == 0
    found = advantages(batch, Critic(), DISCOUNT, TRACE, bootstrap_at_death=True)
    expected = expected_values(batch)
    assert found.rows_bootstrapped_at_death() == len(expected)
    ends = batch.ends()
    for segment, end in enumerate(ends.tolist()):
        first, raised = end + 1 - batch.segments["length"][segment], DISCOUNT * expected.get(end, 0.0)
        for row in range(end, first - 1, -1):
            difference = found.columns["advantage"][row] - plain.columns["advantage"][row]
            np.testing.assert_allclose(difference, raised, atol=1e-5)
            raised *= DISCOUNT * TRACE
    assert "bootstrapped_at_death" not in found.columns_for_losses()


def test_everybody_dies_in_one_step() -> None:
    batch = batch_of([Life(0, 0, agent, 0, 2, True, False, 0) for agent in range(3)], np.random.default_rng(0))
    assert not bootstrap_by_survivors(batch, np.zeros(6, np.float32))[1].any()
