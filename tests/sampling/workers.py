"""Rollout workers made in one call, for tests of what they do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium.spaces import Discrete

from marlflow.base.info_columns import COST, InfoColumn, InfoColumns
from marlflow.batches.items import as_it_is
from marlflow.policy.actor import Actor
from marlflow.policy.scripted import RandomActor
from marlflow.sampling import RolloutWorker, Rule, SamplerConfig

EVERYBODY = [Rule("*", "all")]


def costs_of(*policies: str) -> InfoColumns:
    """Costs as a column of the rows of `policies`; without any, no columns."""
    return InfoColumns((InfoColumn(COST, COST, policies=frozenset(policies)),) if policies else ())


def every_column_of_costs(*policies: str) -> InfoColumns:
    """Costs as columns of both kinds in the rows of `policies`, and as figures of both kinds."""
    in_rows = frozenset(policies)
    return InfoColumns(
        (
            InfoColumn("spent", COST, "sum"),
            InfoColumn("last_cost", COST, "end"),
            InfoColumn("price", COST, "end", in_rows),
            InfoColumn("missing", "nothing", "sum"),
            InfoColumn(COST, COST, "sum", in_rows),
        )
    )


def rollout_worker(
    make_env: Callable[[], Any],
    env_indices: Sequence[int],
    mapping: Any,
    actors: Mapping[str, Actor],
    seed: int,
    *,
    watchdog: Any = None,
    worker_stages: Any = None,
    writer: Any = None,
    **settings: Any,
) -> RolloutWorker:
    """A worker with these very `actors`, which has no frozen entries; `settings` are further ones of SamplerConfig."""
    config = SamplerConfig(make_env, env_indices, mapping, seed, **settings)
    makers = {name: lambda actor=actor: as_it_is(actor) for name, actor in actors.items()}
    return RolloutWorker(config, makers, watchdog, worker_stages, writer)


def lone_worker(
    make_env: Any, actor: Any = None, env_indices: Sequence[int] = (0,), seed: int = 0, **settings: Any
) -> RolloutWorker:
    """A worker of one policy, `all`, that plays every agent; without an actor, at random among two actions."""
    return rollout_worker(
        make_env, env_indices, EVERYBODY, {"all": actor or RandomActor(Discrete(2))}, seed, **settings
    )


def rows_in(batches: Any) -> dict[str, Any]:
    """The columns and segments of each policy's rows, as a tree."""
    return {key: {"columns": dict(rows.columns), "segments": dict(rows.segments)} for key, rows in batches.items()}
