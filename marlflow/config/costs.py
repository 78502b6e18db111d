"""Check what a limit on costs (`cost_limit`) needs of an environment and of a policy's rows."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from marlflow.algorithms.cost_limit import cost_limit_of
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components
from marlflow.config.environment import environment_maker, environment_name
from marlflow.config.experiment import Env, Policy
from marlflow.config.records import offline_records
from marlflow.env import EnvAdapter
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.versions import BatchedMaker, makes_batches
from marlflow.env.random_action import random_legal_action

_MOST_NAMED = 3


def cost_environment_problems(
    env: Env, adapter: EnvAdapter, policies: Mapping[str, Policy], agents: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield why policies, each of which plays its `agents`, can read no costs in the environment.

    Whether a Parallel environment gives costs is known only from an env step, so it is played for one.
    """
    limited = _limited(policies)
    # Records are not stepped, and cost_row_problems is about their rows.
    if not limited or offline_records(env) is not None:
        return
    name = environment_name(env)
    own = BatchedMaker(env.factory, env.arguments) if makes_batches(env.factory) else None
    version = own or environment_maker(env).make_batched
    # `auto` takes the PettingZoo version if the batched one gives no costs.
    batched = version if own or env.batched is True else None
    for subject in limited.values():
        if not adapter.parallel and not isinstance(adapter, BatchedAdapter):
            yield (
                f"{subject} has a cost_limit, and in {name}, an AEC environment, infos stay from one turn to the next, "
                "so that a cost would count several times; use the environment's parallel_env, or set "
                "algorithm.cost_limit=null"
            )
        elif batched is not None and not batched.gives_costs():
            yield f"{subject} has a cost_limit, and {name} {_NO_VERSION if own is None else _NO_COSTS}"
    if adapter.parallel and batched is None and (version is None or not version.gives_costs()):
        yield from _missing_costs(
            adapter, name, {policy: (limited[policy], agents.get(policy, ())) for policy in limited}
        )


def _missing_costs(adapter: EnvAdapter, name: str, limited: Mapping[str, tuple[str, Sequence[str]]]) -> Iterator[str]:
    try:
        without = _agents_without_cost(adapter)
    except EnvironmentFailed as error:
        for subject, _ in limited.values():
            yield f"{subject} has a cost_limit, and {name} cannot show whether it gives costs: {error.reason}"
        return
    for policy, (subject, agents) in limited.items():
        if missing := [agent for agent in agents if agent in without]:
            named = [*missing[:_MOST_NAMED], *(["others"] if missing[_MOST_NAMED:] else [])]
            shown = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
            yield (
                f"{subject} has a cost_limit, and {name} gives no info['cost'] of {shown} in its first env step; give "
                f"0.0 where nothing costs, or set policies.{policy}.algorithm.cost_limit=null"
            )


def _agents_without_cost(adapter: EnvAdapter) -> set[str]:
    """Return the agents without a cost after a first env step of random actions; raises EnvironmentFailed."""
    random, actions = np.random.default_rng(0), []
    adapter.reads_costs = True
    started = adapter.reset(0, 0 if adapter.has_tasks else None)
    for number, slot in enumerate(started.deciding):
        agent = adapter.agents[slot]
        # A copy, so that the generator of the environment's own space is left alone.
        space = copy.deepcopy(adapter.action_space(agent))
        space.seed(number)
        mask = started.masks[number] if started.masks else None
        if mask is None or not isinstance(space, DISCRETE_KINDS):
            actions.append(space.sample())
        elif all(part.any() for part in components(np.asarray(mask)[None], choices_of(space))):
            actions.append(random_legal_action(space, mask, random))
        else:
            raise EnvironmentFailed(f"agent {agent!r}", f"the action mask of {agent!r} allows no action")
    stepped = adapter.act(actions)
    costs = zip(stepped.reward_slots, stepped.costs, strict=True)
    return {adapter.agents[slot] for slot, cost in costs if cost is None}


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
