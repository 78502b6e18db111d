"""The results of the episodes of batched environments that have ended."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from marlflow.base.batch import Array
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.lanes import Lanes
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


def results_of(ended: Ended, lanes: Lanes, envs: BatchedEnvPool) -> Iterator[EpisodeResult]:
    """Yield the results of these episodes, in their order."""
    agents = list(envs.first.agents)
    # Once for all episodes: it goes through the lanes of all environments.
    reads_costs = lanes.reads_costs if envs.reads_costs else None
    # Converted at once, because numbers of numpy are slow one by one.
    for index, was_cut, tick, episode, env_steps, returns, costs in zip(*(c.tolist() for c in ended), strict=True):
        return_of = dict(zip(agents, returns, strict=True))
        yield EpisodeResult(
            envs.env_indices[index],
            episode,
            env_steps,
            return_of,
            tick,
            lanes.matchups[index],
            truncated=was_cut,
            costs={} if reads_costs is None else lanes.cost_of(index, agents, return_of, reads_costs, costs),
        )
