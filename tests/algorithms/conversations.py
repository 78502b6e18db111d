"""Conversations for tests of utterances: agents that say tokens, as plain Python, and batches of their decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from gymnasium import spaces as gym
from hypothesis import strategies as st

from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch

LENGTH, ACTIONS = 3, 3
SPACES = Spaces(
    gym.Dict({"context": gym.Box(-9.0, 9.0, (1,)), "utterance": gym.MultiDiscrete([ACTIONS + 1] * LENGTH)}),
    gym.Discrete(ACTIONS),
)


@dataclass
class Decision:
    """One token: the observation before it, its result, and the tokens of its utterance so far."""

    context: float
    said: list[int]
    action: int
    reward: float
    ends_utterance: bool
    terminated: bool = False
    truncated: bool = False
    after: dict[str, Any] = field(default_factory=dict)


Episode = list[Decision]


def seen(context: float, said: list[int]) -> dict[str, Any]:
    shown = [token + 1 for token in said] + [0] * (LENGTH - len(said))
    return {"context": np.array([context], np.float32), "utterance": np.array(shown, np.int64)}


def rows(observations: list[dict[str, Any]]) -> Array:
    return SPACES.encoder().stack(observations)


@st.composite
def episodes(draw: st.DrawFn, end_token: int | None, count: int = 3) -> list[Episode]:
    """Some episodes, which may end in an utterance or after one."""
    found = []
    for _ in range(draw(st.integers(1, count))):
        length, random = draw(st.integers(1, 9)), draw(st.randoms(use_true_random=False))
        episode, context, said = Episode(), random.uniform(-1, 1), list[int]()
        for step in range(length):
            action, is_last = random.randrange(ACTIONS), step == length - 1
            terminated = is_last and random.random() < 0.5
            is_whole = len(said) == LENGTH - 1 or action == end_token
            reward = random.uniform(-1, 1) if is_whole or terminated else 0.0
            made = Decision(context, list(said), action, reward, is_whole or terminated, terminated)
            made.truncated = is_last and not terminated
            said.append(action)
            if is_whole:
                context, said = random.uniform(-1, 1), []
            made.after = seen(context, said)
            episode.append(made)
        found.append(episode)
    return found


@st.composite
def fragments(draw: st.DrawFn, end_token: int | None) -> tuple[list[list[Episode]], list[list[list[Decision]]]]:
    """Episodes of two lanes, and the segments of one batch: pieces of them, cut at two moments."""
    lanes = [draw(episodes(end_token)) for _ in range(2)]
    cuts = sorted(draw(st.tuples(*[st.integers(0, 28)] * 3)))
    return lanes, [[lane[a:b] for a, b in pairwise(cuts)] for lane in map(_joined, lanes)]


def _joined(lane: list[Episode]) -> list[Decision]:
    return [decision for episode in lane for decision in episode]


def segments_of(lanes: list[list[Episode]], pieces: list[list[list[Decision]]]) -> list[tuple[int, int, int, Episode]]:
    """Each segment with its lane, its episode, and its first decision's number in the episode."""
    found = []
    for fragment in range(2):
        for lane, episodes_of_lane in enumerate(lanes):
            inside = {id(decision) for decision in pieces[lane][fragment]}
            for number, episode in enumerate(episodes_of_lane):
                own = [index for index, decision in enumerate(episode) if id(decision) in inside]
                if own:
                    found.append((lane, number, own[0], [episode[index] for index in own]))
    return found


def batch_of(segments: list[tuple[int, int, int, Episode]]) -> Batch:
    decisions = [decision for *_, segment in segments for decision in segment]
    columns = {
        "obs": rows([seen(decision.context, decision.said) for decision in decisions]),
        "action": np.array([decision.action for decision in decisions], np.int64),
        "reward": np.array([decision.reward for decision in decisions], np.float64),
        "version": np.zeros(len(decisions), np.int64),
        "t_agent": np.array([first + k for *_, first, segment in segments for k in range(len(segment))], np.int64),
    }
    lasts = [segment[-1] for *_, segment in segments]
    return Batch(
        columns,
        {
            "length": np.array([len(segment) for *_, segment in segments], np.int64),
            "terminated": np.array([last.terminated for last in lasts], bool),
            "truncated": np.array([last.truncated for last in lasts], bool),
            "carried": np.zeros(len(lasts), bool),
            "bootstrap_obs": rows([last.after for last in lasts]),
            "lane": np.array([lane for lane, *_ in segments], np.int64),
            "episode": np.array([number for _, number, *_ in segments], np.int64),
        },
    )
