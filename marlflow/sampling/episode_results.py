"""The results of episodes that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan
from typing import NamedTuple

import numpy as np

from marlflow.base.batch import Array
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.receipts import EpisodeResult


class Ended(NamedTuple):
    """N ended episodes: environment, whether any agent was truncated, tick, number, and env steps.

    `returns` are of the agents by slot, [N][A].
    """

    env: Sequence[int]
    truncated: Sequence[bool]
    tick: Sequence[int]
    episode: Sequence[int]
    env_steps: Sequence[int]
    returns: Sequence[Sequence[float]]


def results_of(
    ended: Ended, envs: EnvSource, matchups: Sequence[Matchup], infos: Array | None
) -> Iterator[EpisodeResult]:
    """Yield the results of these episodes, in their order.

    `matchups` are theirs, `infos` their info columns, [K, N, A], NaN where there is no number; None: there are none.
    """
    names = () if infos is None or np.isnan(infos).all() else envs.columns.names
    columns = zip(matchups, *ended, strict=True)
    for at, (matchup, index, was_cut, tick, episode, env_steps, returns) in enumerate(columns):
        agents, appeared = list(envs.adapters[index].agents), envs.appeared(index)
        return_of = dict(zip(agents, returns, strict=False))
        if appeared is not None:
            # An agent may have a return without having appeared: a reward before its first action.
            return_of = {a: returns[slot] for slot, a in enumerate(agents) if slot in appeared or returns[slot]}
        infos_of = {}
        for number, name in enumerate(names):
            assert infos is not None, "then there are no names"
            given = zip(agents, infos[number, at].tolist(), strict=False)
            if known := {a: value for a, value in given if not isnan(value) and (value or a in return_of)}:
                infos_of[name] = known
        yield EpisodeResult(
            envs.env_indices[index], episode, env_steps, return_of, tick, matchup, truncated=was_cut, infos=infos_of
        )
