"""The results of episodes that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from marlflow.base.batch import Array
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.receipts import EpisodeResult


class Ended(NamedTuple):
    """N ended episodes: environment, whether any agent was truncated, tick, number, and env steps.

    `returns` and `costs` are of the agents by slot, [N][A].
    """

    env: Sequence[int]
    truncated: Sequence[bool]
    tick: Sequence[int]
    episode: Sequence[int]
    env_steps: Sequence[int]
    returns: Sequence[Sequence[float]]
    costs: Sequence[Sequence[float]]


def results_of(
    ended: Ended, envs: EnvSource, matchups: Sequence[Matchup], reads_costs: Array | None
) -> Iterator[EpisodeResult]:
    """Yield the results of these episodes, in their order.

    `matchups` are theirs, `reads_costs` bool [N, A] says whose costs are read; None: nobody's.
    """
    columns = zip(matchups, *ended, strict=True)
    for at, (matchup, index, was_cut, tick, episode, env_steps, returns, costs) in enumerate(columns):
        agents, appeared = list(envs.adapter(index).agents), envs.appeared(index)
        return_of = dict(zip(agents, returns, strict=False))
        if appeared is not None:
            # An agent may have a return without having appeared: a reward before its first action.
            return_of = {a: returns[slot] for slot, a in enumerate(agents) if slot in appeared or returns[slot]}
        cost_of = {}
        if reads_costs is not None:
            is_read = reads_costs[at].tolist()
            cost_of = {a: costs[n] for n, a in enumerate(agents) if is_read[n] and (a in return_of or costs[n])}
        yield EpisodeResult(
            envs.env_indices[index], episode, env_steps, return_of, tick, matchup, truncated=was_cut, costs=cost_of
        )
