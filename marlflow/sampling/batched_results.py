"""The results of the episodes of batched environments that have ended."""

from __future__ import annotations

from collections.abc import Iterator

from marlflow.base.batch import Array
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.lanes import Lanes
from marlflow.sampling.receipts import EpisodeResult


def results_of(over: Array, truncated: Array, lanes: Lanes, envs: BatchedEnvPool, tick: int) -> Iterator[EpisodeResult]:
    """Yield the results of the environments `over` (int64 [N]); `truncated` bool [N]: whether any agent was."""
    agents = list(envs.first.agents)
    returns_of = lanes.returns.reshape(-1, lanes.stride)[over]
    columns = (over, lanes.episode[over * lanes.stride], envs.env_steps[over], returns_of, truncated)
    # Once for all episodes: it goes through the lanes of all environments.
    reads_costs = lanes.reads_costs if envs.reads_costs else None
    # Converted at once, because numbers of numpy are slow one by one.
    for index, episode, env_steps, returns, was_cut in zip(*(c.tolist() for c in columns), strict=True):
        return_of = dict(zip(agents, returns, strict=True))
        yield EpisodeResult(
            envs.env_indices[index],
            episode,
            env_steps,
            return_of,
            tick,
            lanes.matchups[index],
            truncated=was_cut,
            costs={} if reads_costs is None else lanes.cost_of(index, agents, return_of, reads_costs),
        )
