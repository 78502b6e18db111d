"""Check what columns of infos need of an environment and of a policy's rows: costs, named columns, and metrics."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from marlflow.algorithms.algorithm import parts_of
from marlflow.algorithms.info_columns import columns_of_rows
from marlflow.algorithms.part import Part, kind_of
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.info_columns import COST, At, InfoColumn
from marlflow.base.sentences import enumerated
from marlflow.base.spaces import DISCRETE_KINDS, choices_of, components
from marlflow.batches.batch import Batch
from marlflow.config.environment import environment_maker, environment_name
from marlflow.config.experiment import Experiment, InfoMetric, Policy
from marlflow.config.records import offline_records
from marlflow.env import EnvAdapter
from marlflow.env.batched.adapter import BatchedAdapter
from marlflow.env.batched.versions import BatchedMaker, makes_batches
from marlflow.env.masking import random_legal_action

_MOST_NAMED = 3
_Setting: TypeAlias = Literal["columns", "reward_from", "parts"]


def metric_columns(metrics: Mapping[str, InfoMetric]) -> tuple[InfoColumn, ...]:
    """Return the columns of `Experiment.metrics`."""
    return tuple(InfoColumn(name, metric.info, metric.at) for name, metric in metrics.items())


class _Need(NamedTuple):
    """A column that a policy's rows need, because of a setting of the policy, its algorithm, or its `learner`."""

    policy: str
    subject: str
    column: str
    at: At
    setting: _Setting
    part: tuple[str, Part] | None = None
    learner: str | None = None

    @property
    def is_cost(self) -> bool:
        return self.part is not None and self.column == COST

    @property
    def needs(self) -> str:
        if self.setting == "reward_from":
            return f"has a reward_from {self.column!r}"
        return f"has the column {self.column!r}" if self.part is None else f"has a {kind_of(self.part[1])}"

    @property
    def way_out(self) -> str:
        if self.part is not None:
            owner = "" if self.learner is None else f"learners.{self.learner}."
            return f"{owner}algorithm.parts.{self.part[0]}=null"
        return f"{self.setting} without {self.column!r}"

    @property
    def way_out_of_policy(self) -> str:
        of_learner = self.part is not None and self.learner is not None
        return self.way_out if of_learner else f"policies.{self.policy}.{self.way_out}"

    @property
    def amount(self) -> str:
        return "a cost" if self.is_cost else "a number"


def _needs(policies: Mapping[str, Policy], experiment: Experiment) -> list[_Need]:
    learner_of = {name: key for key, learner in experiment.learners.items() for name in learner.policies}
    found = []
    for name, policy in policies.items():
        subject = f"policy {name!r} ({policy.acts_by.name})"
        for column, at in columns_of_rows(policy.acts_by, policy.row_columns).items():
            reading = ((key, part) for key, part in parts_of(policy.acts_by).items() if column in part.credited)
            if column in policy.reward_from or column in policy.columns:
                setting: _Setting = "reward_from" if column in policy.reward_from else "columns"
                found.append(_Need(name, subject, column, at, setting))
            else:
                found.append(_Need(name, subject, column, at, "parts", next(reading), learner_of.get(name)))
    return found


def info_environment_problems(
    experiment: Experiment, adapter: EnvAdapter, policies: Mapping[str, Policy], agents: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    """Yield why the columns of policies, each of which plays its `agents`, or metrics, cannot be read.

    Whether a Parallel environment gives them is known only from an env step, so it is played for one.
    """
    env, needs, metrics = experiment.env, _needs(policies, experiment), experiment.metrics
    yield from _not_added(policies)
    yield from _clashes(metrics, needs)
    # Records are not stepped, and column_row_problems is about their rows.
    if not (needs or metrics) or offline_records(env) is not None:
        return
    name = environment_name(env)
    own = BatchedMaker(env.factory, env.arguments, tuple(env.wrappers)) if makes_batches(env.factory) else None
    version = own or environment_maker(env).make_batched
    keys = set() if version is None else set(version.info_keys())
    # `auto` takes the PettingZoo version if the batched one lacks a number.
    is_batched = version is not None and (own is not None or env.batched is True)
    takes_turns = not adapter.parallel and not isinstance(adapter, BatchedAdapter)
    for need in needs:
        if takes_turns:
            why = _in_turns(name, need.amount if need.at == "sum" else None)
            yield f"{need.subject} {need.needs}, and {why}, or set {need.way_out}"
        elif is_batched and need.column not in keys:
            lacking = _lacks_own(need) if own is not None else _lacks_version(need)
            yield f"{need.subject} {need.needs}, and {name} {lacking}"
    for metric, of in metrics.items():
        if takes_turns and of.at == "sum":
            yield f"metrics.{metric} sums info[{of.info!r}], and {_in_turns(name, 'a number')}, or set at=end"
        elif is_batched and of.info not in keys:
            given = f"only {enumerated([repr(key) for key in sorted(keys)])}" if keys else "none"
            way_out = "name one of these" if keys else "leave the metric out"
            yield f"metrics.{metric} reads info[{of.info!r}], and steps of {name} have infos of {given}; {way_out}"
    if needs and adapter.parallel and not is_batched and not {need.column for need in needs} <= keys:
        yield from _missing(adapter, name, needs, agents)


def _not_added(policies: Mapping[str, Policy]) -> Iterator[str]:
    """Yield why numbers cannot be added to rewards."""
    for name, policy in policies.items():
        if policy.reward_from and not policy.acts_by.capabilities.learns:
            yield f"policies.{name}.reward_from: {policy.acts_by.name} does not learn from rewards; leave it out"
        for column in policy.reward_from:
            if policy.columns.get(column) == "info":
                yield f"policies.{name}.reward_from.{column} is a sum; set policies.{name}.columns.{column}=credited"


def _clashes(metrics: Mapping[str, InfoMetric], needs: Sequence[_Need]) -> Iterator[str]:
    columns = {need.column for need in needs}
    for name in metrics:
        if name in Batch.RESERVED or "." in name:
            yield f"metrics.{name}: {name!r} is no name for a figure; use another one, without dots"
        if name in columns:
            yield f"metrics.{name}: {name!r} is a column of rows too, which is in the metrics already; use another name"
    kinds: dict[str, At] = {}
    for need in needs:
        if kinds.setdefault(need.column, need.at) != need.at:
            yield f"{need.subject} {need.needs} as another kind than another policy; name one kind"
        if "." in need.column:
            yield f"{need.subject} {need.needs}, and no column has dots in its name; use another key"
        if need.column in Batch.RESERVED:
            yield f"{need.subject} {need.needs}, which rows have already; give the info another key"


def _in_turns(name: str, amount: str | None) -> str:
    why = "are read at an agent's end only"
    if amount is not None:
        why = f"stay from one turn to the next, so that {amount} would count several times"
    return f"in {name}, an AEC environment, infos {why}; use the environment's parallel_env"


def _missing(
    adapter: EnvAdapter, name: str, needs: Sequence[_Need], agents: Mapping[str, Sequence[str]]
) -> Iterator[str]:
    try:
        without = _without(adapter, list(dict.fromkeys(need.column for need in needs)))
    except EnvironmentFailed as error:
        for need in needs:
            what = "costs" if need.is_cost else "it"
            yield f"{need.subject} {need.needs}, and {name} cannot show whether it gives {what}: {error.reason}"
        return
    for need in needs:
        if missing := [agent for agent in agents.get(need.policy, ()) if agent in without[need.column]]:
            named = [*missing[:_MOST_NAMED], *(["others"] if missing[_MOST_NAMED:] else [])]
            shown = " and ".join(filter(None, [", ".join(named[:-1]), named[-1]]))
            nothing = "nothing costs" if need.is_cost else "there is none"
            yield (
                f"{need.subject} {need.needs}, and {name} gives no info[{need.column!r}] of {shown} in its first env "
                f"step; give 0.0 where {nothing}, or set {need.way_out_of_policy}"
            )


def _without(adapter: EnvAdapter, columns: Collection[str]) -> dict[str, set[str]]:
    """Return the agents without each column after a first env step of random actions; raises EnvironmentFailed."""
    random, actions = np.random.default_rng(0), []
    adapter.info_keys = list(columns)
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
    infos = {adapter.agents[slot]: info for slot, info in zip(stepped.reward_slots, stepped.infos, strict=True)}
    return {column: {agent for agent, info in infos.items() if (info or {}).get(column) is None} for column in columns}


def column_row_problems(
    experiment: Experiment, policies: Mapping[str, Policy], recorded: Collection[str]
) -> Iterator[str]:
    """Yield why rows of policies lack their columns: the rows are `recorded`, or other policies made them."""
    for need in _needs(policies, experiment):
        kind = "costs" if need.is_cost else "such numbers"
        if need.policy in recorded:
            why = f"learns from records, whose {kind} it is not given"
            yield f"{need.subject} {need.needs}, and {why}; set {need.way_out}"
        elif list(policies[need.policy].learns_from or [need.policy]) != [need.policy]:
            yield (
                f"{need.subject} {need.needs}, and learns from rows of other policies, whose {kind} are not its own; "
                f"set {need.way_out}, or leave learns_from out"
            )


def _lacks_own(need: _Need) -> str:
    return (
        f"makes a BatchedEnv whose info_keys lack {need.column!r}; give it in BatchedStep.infos and name it in "
        f"info_keys, or set {need.way_out}"
    )


def _lacks_version(need: _Need) -> str:
    given = "costs" if need.is_cost else f"info[{need.column!r}]"
    return f"has a batched version (env.batched=true) that gives no {given}; set env.batched=auto, or {need.way_out}"
