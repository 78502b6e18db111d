"""Check what a limit on costs (`cost_limit`) needs of an environment and of a policy's rows."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from marlflow.algorithms.cost_limit import cost_limit_of
from marlflow.config.environment import environment_maker, environment_name
from marlflow.config.experiment import Env, Policy
from marlflow.env import EnvAdapter
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.versions import BatchedMaker, makes_batches


def cost_environment_problems(env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why policies can read no costs in the environment."""
    limited = _limited(policies).values()
    if not limited:
        return
    name = environment_name(env)
    own = BatchedMaker(env.factory, env.arguments) if makes_batches(env.factory) else None
    # `auto` takes the PettingZoo version if the batched one gives no costs.
    batched = own or (environment_maker(env).make_batched if env.batched is True else None)
    for subject in limited:
        if not adapter.parallel and not isinstance(adapter, BatchedAdapter):
            yield (
                f"{subject} has a cost_limit, and in {name}, an AEC environment, infos stay from one turn to the next, "
                "so that a cost would count several times; use the environment's parallel_env, or set "
                "algorithm.cost_limit=null"
            )
        elif batched is not None and not batched.gives_costs():
            yield f"{subject} has a cost_limit, and {name} {_NO_VERSION if own is None else _NO_COSTS}"


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


_NO_COSTS = (
    "makes a BatchedEnv without gives_costs=True, so its steps have no costs; give BatchedStep.costs and set "
    "gives_costs, or set algorithm.cost_limit=null"
)
_NO_VERSION = (
    "has a batched version (env.batched=true) that gives no costs; set env.batched=auto, or algorithm.cost_limit=null"
)
