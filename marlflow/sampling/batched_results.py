"""The results of the episodes of batched environments that have ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from marlflow.base.batch import Array
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.lanes import cost_of_agents
from marlflow.sampling.protocol import Matchup
from marlflow.sampling.receipts import EpisodeResult


class Ended(NamedTuple):
    """N ended episodes: environment, whether any agent was truncated, tick, number, and env steps, [N] each.

    `returns` and `costs` are of the agents by slot, [N, A].
    """

    env: Array
    truncated: Array
    tick: Array
    episode: Array
    env_steps: Array
    returns: Array
    costs: Array


def results_of(
    ended: Ended, envs: BatchedEnvPool, matchups: Sequence[Matchup], reads_costs: Array | None
) -> Iterator[EpisodeResult]:
    """Yield the results of these episodes, in their order.

    `matchups` are theirs, `reads_costs` bool [N, A] says whose costs are read; None: nobody's.
    """
    agents = list(envs.first.agents)
    # Converted at once, because numbers of numpy are slow one by one.
    columns = zip(matchups, *(column.tolist() for column in ended), strict=True)
    for at, (matchup, index, was_cut, tick, episode, env_steps, returns, costs) in enumerate(columns):
        return_of = dict(zip(agents, returns, strict=True))
        yield EpisodeResult(
            envs.env_indices[index],
            episode,
            env_steps,
            return_of,
            tick,
            matchup,
            truncated=was_cut,
            costs={} if reads_costs is None else cost_of_agents(agents, return_of, reads_costs[at], costs),
        )
