"""Episodes of two policies of unequal size, in which agents join late, die, return, and sit env steps out."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.batches.batch import Batch
from marlflow.batches.joint import JointBatches

# Slot of each agent, by policy; slots interleave, and the policies see and do different things.
SLOTS = {"left": (1, 4), "right": (0, 2, 3)}
OBS = {"left": ((2,), np.float32), "right": ((3, 2), np.uint8)}


@dataclass
class Segment:
    """Decisions of one agent in a row; `ending` is cut, terminated or truncated."""

    policy: str
    agent: int
    env: int
    episode: int
    times: list[int] = field(default_factory=list)
    ending: str = "cut"
    carried: bool = False


@st.composite
def played(draw: st.DrawFn, idle: bool = True, min_size: int = 1) -> list[Segment]:
    """Segments in any order, cut anywhere; with `idle`, agents need not decide at each env step of their lives."""
    segments: list[Segment] = []
    places = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), unique=True, min_size=min_size, max_size=3)
    for env_index, episode in draw(places):
        for policy, slots in SLOTS.items():
            for agent in slots:
                times = sorted(draw(st.sets(st.integers(0, 7))))
                while times:
                    stop = draw(st.integers(1, len(times)))
                    if not idle:
                        gap = next((n for n in range(1, len(times)) if times[n] > times[n - 1] + 1), len(times))
                        stop = min(stop, gap)
                    goes_on = stop < len(times) and (idle or times[stop] == times[stop - 1] + 1)
                    endings = ["terminated", "truncated"] + ["cut"] * (goes_on or stop == len(times))
                    ending = draw(st.sampled_from(endings))
                    carried = draw(st.booleans())
                    segments.append(Segment(policy, agent, env_index, episode, times[:stop], ending, carried))
                    times = times[stop:]
    return draw(st.permutations(segments))


def batch_of(policy: str, segments: list[Segment], masked: bool = True, seed: int = 0) -> Batch:
    """A batch of random entries, but for what `segments` say; no entry of `obs` is 0."""
    rows, count = sum(len(one.times) for one in segments), len(segments)
    (shape, dtype), generator = OBS[policy], np.random.default_rng([seed, len(policy)])

    def seen(of: int) -> Array:
        return generator.integers(1, 256, (of, *shape)).astype(dtype)

    columns = {
        "obs": seen(rows),
        "action": generator.integers(1, 4, rows),
        "reward": generator.normal(size=rows),
        "behavior_logp": generator.normal(size=rows).astype(np.float32),
        "version": generator.integers(0, 9, rows),
        "t_env": np.array([time for one in segments for time in one.times], np.int32),
        "t_agent": np.zeros(rows, np.int32),
        "state": generator.integers(0, 256, (rows, 3), np.uint8),
        "memory": generator.normal(size=(rows, 2)).astype(np.float32),
    }
    table = {
        "length": np.array([len(one.times) for one in segments], np.int64),
        "terminated": np.array([one.ending == "terminated" for one in segments], bool),
        "truncated": np.array([one.ending == "truncated" for one in segments], bool),
        "carried": np.array([one.carried for one in segments], bool),
        "bootstrap_obs": seen(count),
        "bootstrap_state": generator.integers(0, 256, (count, 3), np.uint8),
        "env": np.array([one.env for one in segments], np.int64),
        "episode": np.array([one.episode for one in segments], np.int64),
        "agent": np.array([one.agent for one in segments], np.int64),
    }
    if masked and policy == "right":
        columns["action_mask"] = generator.random((rows, 4)) < 0.7
        table["bootstrap_mask"] = generator.random((count, 4)) < 0.7
    return Batch(columns, table)


def batches_of(segments: list[Segment], seed: int = 0) -> JointBatches:
    """The batches of both policies; only those of "right" have masks."""
    return JointBatches(
        {policy: batch_of(policy, [one for one in segments if one.policy == policy], seed=seed) for policy in SLOTS}
    )
