"""Lives of agents as batches: segments of several agents, episodes and environments, cut at any row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch


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
