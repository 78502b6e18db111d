"""After a death, the value is the mean of the survivors', right after it: held against a loop over episodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from marlflow.base.batch import Array, Batch
from marlflow.learner.advantages import advantages, values_around
from marlflow.learner.deaths import bootstrap_by_survivors

DISCOUNT, TRACE = 0.9, 0.7


@dataclass(frozen=True)
class Life:
    """One agent's decisions at env steps `born` to `born + length - 1`, cut into fragments after `cut` of them."""

    env: int
    episode: int
    agent: int
    born: int
    length: int
    terminated: bool
    truncated: bool
    cut: int


@st.composite
def lives(draw: st.DrawFn) -> list[Life]:
    found = []
    for env in range(draw(st.integers(1, 2))):
        for episode in range(draw(st.integers(1, 2))):
            for agent in range(draw(st.integers(1, 4))):
                end = draw(st.sampled_from(["terminated", "terminated", "truncated", "cut"]))
                length = draw(st.integers(1, 4))
                life = (env, episode, agent, draw(st.integers(0, 3)), length, end == "terminated", end == "truncated")
                found.append(Life(*life, cut=draw(st.integers(0, length))))
    return draw(st.permutations(found))


def batch_of(lives: list[Life], rng: np.random.Generator) -> Batch:
    """The batch, with values as observations: each row's is a random number, the same for row and bootstrap."""
    rows: dict[str, list[float]] = {"obs": [], "t_env": [], "reward": []}
    names = ("length", "terminated", "truncated", "env", "episode", "agent", "lane", "bootstrap_obs")
    segments: dict[str, list[float]] = {name: [] for name in names}
    for life in lives:
        values = rng.standard_normal(life.length + 1)
        stops = [stop for stop in sorted({life.cut, life.length}) if stop]
        for start, stop in zip([0, *stops], stops, strict=False):
            rows["obs"] += values[start:stop].tolist()
            rows["t_env"] += range(life.born + start, life.born + stop)
            rows["reward"] += rng.standard_normal(stop - start).tolist()
            ends = stop == life.length
            lane = life.env * 10 + life.agent
            segment = (stop - start, ends and life.terminated, ends and life.truncated)
            segment += (life.env, life.episode, life.agent, lane, values[stop])
            for name, value in zip(names, segment, strict=True):
                segments[name].append(value)
    kinds = {
        "obs": np.float32,
        "reward": np.float64,
        "bootstrap_obs": np.float32,
        "terminated": bool,
        "truncated": bool,
    }
    columns = {name: np.array(column, kinds.get(name, np.int64)) for name, column in rows.items()}
    return Batch(columns, {name: np.array(column, kinds.get(name, np.int64)) for name, column in segments.items()})


class Critic:
    """The value is the observation."""

    def values(self, obs: Array, memory: Array | None = None) -> Array:
        return obs.astype(np.float32)


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
    next_value = before.copy()
    died = np.flatnonzero(bootstrap_by_survivors(batch, next_value))
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
    assert not bootstrap_by_survivors(batch, np.zeros(6, np.float32)).any()
