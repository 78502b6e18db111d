"""Stages of on-policy learners of several policies: advantages by one critic, and updates in turn (HAPPO).

Kuba et al., "Trust region policy optimisation in multi-agent reinforcement learning", 2022,
https://arxiv.org/abs/2109.11251, algorithm 1 and equation 11.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.random import key
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.batches.items import Update
from marlflow.batches.joint import EstimatedJointBatches, JointBatches, joint_rows
from marlflow.flow import Traits
from marlflow.flow.protocols import describe
from marlflow.flow.traits import traits_of
from marlflow.learner.advantages import Critic, actor_log_probs, advantages, normalized
from marlflow.learner.learner import TorchLearner
from marlflow.learner.protocol import Learner
from marlflow.stages.estimates import with_central
from marlflow.stages.updates import loss_input

# The columns and segment properties that advantages depend on; policies may differ in the others.
_COLUMNS = ("reward", "t_env", "central", "obs")
_SEGMENTS = ("length", "terminated", "env", "episode", "bootstrap_central", "bootstrap_obs")


def joint_advantages(
    batches: JointBatches, critic: Critic, discount: float, gae_lambda: float, bootstrap_at_death: bool
) -> EstimatedJointBatches:
    """Add `value`, `advantage` and `value_target` (float32 [N]) to each policy's batch, by one critic of all policies.

    Each agent has advantages for its own decisions; they are normalized over the rows of all policies. The batches have
    the column `central` if the critic is central. With `bootstrap_at_death`, survivors may belong to any of the
    policies.
    """
    present = {policy: batch for policy, batch in batches.items() if batch.rows}
    if not present:
        return EstimatedJointBatches(
            {policy: advantages(batch, critic, discount, gae_lambda) for policy, batch in batches.items()}
        )
    team = Batch.concat([_common_part(batch) for batch in present.values()])
    estimated = normalized(advantages(team, critic, discount, gae_lambda, bootstrap_at_death))
    new = [name for name in estimated.columns if name not in _COLUMNS]
    ends = np.cumsum([batch.rows for batch in present.values()])[:-1]
    split = {name: np.split(estimated.columns[name], ends) for name in new}
    parts = {policy: {name: split[name][number] for name in new} for number, policy in enumerate(present)}
    none = {name: estimated.columns[name][:0] for name in new}
    return EstimatedJointBatches(
        {
            policy: EstimatedBatch({**batch.columns, **parts.get(policy, none)}, batch.segments)
            for policy, batch in batches.items()
        }
    )


def _common_part(batch: Batch) -> Batch:
    # A central critic does not see `obs`, which may differ in shape.
    unseen = {"obs", "bootstrap_obs"} if "central" in batch.columns else set()
    return Batch(
        {name: batch.columns[name] for name in _COLUMNS if name in batch.columns.keys() - unseen},
        {name: batch.segments[name] for name in _SEGMENTS if name in batch.segments.keys() - unseen},
    )


def update_in_order(
    learner: TorchLearner, batches: EstimatedJointBatches, epochs: int, minibatch_agent_steps: int | None
) -> Update:
    """Train the policies one after another, in random order, and return the update of all.

    A policy's advantages are multiplied by the factor M of their joint row: the product, over the agents of the
    policies before it that decided there, of the ratios of their actions' probabilities after and before their update.
    The order depends on the learner's seed and its number of updates.
    """
    policies = list(batches)
    order = turn_order(learner.seed, learner.updates, len(policies))
    # An update without any rows is still reported.
    turns = [policies[turn] for turn in order if batches[policies[turn]].rows] or policies[:1]
    keys, rows = joint_rows(batches) if len(turns) > 1 else (np.zeros((3, 0)), {})
    factor = np.ones(keys.shape[1])
    updates: list[Update] = []
    distances: list[Array] = []
    for number, policy in enumerate(turns):
        batch, actor = batches[policy], learner.module.actors[policy]
        if number:
            own = factor[rows[policy]]
            distances.append(np.abs(own - 1.0))
            advantage = (own * batch.columns["advantage"]).astype(np.float32)
            batch = EstimatedBatch({**batch.columns, "advantage": advantage}, batch.segments)
        is_last = number == len(turns) - 1
        before = None if is_last else actor_log_probs(actor, batch, learner.device)
        updates.append(learner.update(batch, epochs, minibatch_agent_steps, policy))
        if before is not None:
            multiply_ratios(factor, rows[policy], actor_log_probs(actor, batch, learner.device), before)
        # The run ends: the later policies would take no step either.
        if updates[-1].minibatches_left:
            break
    if len(updates) == 1:
        return updates[0]
    return merged(updates, {"factor_distance": float(np.concatenate(distances).mean())})


def turn_order(seed: int, updates: int, policies: int) -> list[int]:
    """Return a permutation of `policies` numbers, uniformly distributed over `updates`."""
    return sorted(range(policies), key=lambda policy: key(seed, *b"order", updates, policy))


def multiply_ratios(factor: Array, rows: Array, logp_after: Array, logp_before: Array) -> None:
    """Multiply `factor`, float64 [joint rows], by the probability ratios [N] of the decisions at joint `rows` [N]."""
    ratio = np.exp(logp_after.astype(np.float64) - logp_before.astype(np.float64))
    # Several agents of a policy may decide at one joint row.
    np.multiply.at(factor, rows, ratio)


def merged(updates: Sequence[Update], terms: Mapping[str, float]) -> Update:
    """Return one report of consecutive updates of a learner, with more loss terms.

    Loss terms are means over the optimizer steps of all updates that have them, and staleness is a mean over rows.
    """
    names = dict.fromkeys(name for update in updates for name in update.loss)
    loss = {}
    for name in names:
        having = [update for update in updates if name in update.loss]
        loss[name] = _mean([update.loss[name] for update in having], [update.updates for update in having])
    rows = [update.rows for update in updates]
    return Update(
        learner=updates[0].learner,
        rows=sum(rows),
        updates=sum(update.updates for update in updates),
        version=updates[0].version,
        loss={**loss, **{name: term for name, term in terms.items() if math.isfinite(term)}},
        staleness_mean=_mean([update.staleness_mean for update in updates], rows),
        stale_rows_dropped=sum(update.stale_rows_dropped for update in updates),
        rows_carried=sum(update.rows_carried for update in updates),
        rows_bootstrapped_at_death=sum(update.rows_bootstrapped_at_death for update in updates),
        updates_skipped=sum(update.updates_skipped for update in updates),
        minibatches_left=sum(update.minibatches_left for update in updates),
        compiles=sum(update.compiles for update in updates),
        compile_s=sum(update.compile_s for update in updates),
        note="; ".join(update.note for update in updates if update.note),
    )


def _mean(values: Sequence[float], weights: Sequence[int]) -> float:
    total = sum(weights)
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / total if total else 0.0


@dataclass(frozen=True, slots=True)
class EachPolicy:
    """Applies `operator`, which takes a Batch and the learner, to the rows of each policy of a joint stream."""

    operator: Callable[[Batch, Any], Batch]

    @property
    def description(self) -> str:
        """The text of a drawn plan, with the operator's."""
        return f"EachPolicy({describe(self.operator)})"

    @property
    def traits(self) -> Traits:
        """The traits, with the operator's `max_staleness`."""
        return Traits(max_staleness=traits_of(self.operator, None, "__call__", None).max_staleness)

    def __call__(self, batches: JointBatches, learner: Learner) -> JointBatches:
        return JointBatches({policy: self.operator(batch, learner) for policy, batch in batches.items()})


@dataclass(frozen=True, slots=True)
class JointAdvantages:
    """Generalized advantage estimation (GAE) of several policies by one central critic, normalized over all rows.

    Each agent has advantages for its own decisions, as in `Advantages`. `bootstrap_at_death`: see
    `learner.advantages`; survivors may belong to any of the policies.
    """

    discount: float
    gae_lambda: float
    bootstrap_at_death: bool = False

    def __call__(self, batches: JointBatches, learner: Learner) -> EstimatedJointBatches:
        """Add `value`, `advantage` and `value_target` to each policy's rows, and for a central critic `central`."""
        now = learner.scheduled
        discount, gae_lambda = now.get("discount", self.discount), now.get("gae_lambda", self.gae_lambda)
        seen = JointBatches({policy: with_central(batch, learner) for policy, batch in batches.items()})
        estimated = joint_advantages(seen, learner, discount, gae_lambda, self.bootstrap_at_death)
        for policy, batch in estimated.items():
            by = {"estimated_by": np.full(len(batch.segments["length"]), learner.version)}
            estimated[policy] = EstimatedBatch(batch.columns, {**batch.segments, **by})
        return estimated


@dataclass(frozen=True, slots=True)
class LearnInOrder:
    """Trains one policy after another, in random order, each for `epochs` in minibatches of at least `minibatch` rows.

    Each policy accounts for the changes of the policies before it (HAPPO; Kuba et al., 2022, arXiv:2109.11251,
    algorithm 1).
    """

    traits: ClassVar[Traits] = Traits(accepts=loss_input, updates=True)

    epochs: int = 1
    minibatch: int | None = None

    def __call__(self, batches: EstimatedJointBatches, learner: Learner) -> Update:
        return update_in_order(cast("TorchLearner", learner), batches, self.epochs, self.minibatch)
