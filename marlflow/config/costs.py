"""Check what a limit on costs (`cost_limit`) needs of an environment and of a policy's rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from marlflow.algorithms.cost_limit import cost_limit_of
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Env, Policy
from marlflow.env import EnvAdapter
from marlflow.env.batched.versions import makes_batches


def cost_environment_problems(env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why policies can read no costs in the environment."""
    for subject in _limited(policies).values():
        name = environment_name(env)
        if not adapter.parallel:
            yield (
                f"{subject} has a cost_limit, and in {name}, an AEC environment, infos stay from one turn to the next, "
                "so that a cost would count several times; use the environment's parallel_env, or set "
                "algorithm.cost_limit=null"
            )
        elif makes_batches(env.factory):
            yield (
                f"{subject} has a cost_limit, and {name} makes a BatchedEnv, which gives no costs; use a ParallelEnv "
                "with info['cost'], or set algorithm.cost_limit=null"
            )
        elif env.batched is True:
            yield (
                f"{subject} has a cost_limit, and environments that are stepped by one call (env.batched=true) give no "
                "costs; set env.batched=auto, or algorithm.cost_limit=null"
            )


def cost_row_problems(policies: Mapping[str, Policy], recorded: Collection[str]) -> Iterator[str]:
    """Yield why the rows of policies have no costs: they are `recorded`, or those of other policies."""
    for name, subject in _limited(policies).items():
        if name in recorded:
            yield (
                f"{subject} has a cost_limit, and learns from records, which have no costs; set "
                "algorithm.cost_limit=null"
            )
        elif list(policies[name].learns_from or [name]) != [name]:
            yield (
                f"{subject} has a cost_limit, and learns from rows of other policies, whose costs are not its own; set "
                "algorithm.cost_limit=null, or leave learns_from out"
            )


def _limited(policies: Mapping[str, Policy]) -> dict[str, str]:
    """Return the policies whose costs have a limit, and how to name them."""
    return {
        name: f"policy {name!r} ({policy.acts_by.name})"
        for name, policy in policies.items()
        if cost_limit_of(policy.acts_by) is not None
    }
