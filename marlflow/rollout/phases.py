"""Collects in phases for meta-learning: policies adapt between phases, each environment to its own task.

No episode spans two collects, and every collect starts from published weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from marlflow.base.batch import Batch
from marlflow.flow import StageTimes
from marlflow.policy.actor import Actor
from marlflow.policy.adapted import AdaptingActor
from marlflow.rollout.fragment import PolicyReceipt


def adapting(actors: Iterable[Actor]) -> list[AdaptingActor]:
    """Return the actors that adapt."""
    return [actor for actor in actors if isinstance(actor, AdaptingActor)]


def phase_ticks(ticks: int, actors: Sequence[AdaptingActor]) -> list[int]:
    """Return the env steps of each phase, by the most inner steps of an actor."""
    phases = 1 + max(actor.inner_steps for actor in actors)
    return [ticks // phases + (phase < ticks % phases) for phase in range(phases)]


def joined(
    made: Sequence[Mapping[str, tuple[PolicyReceipt, Batch]]],
) -> dict[str, tuple[PolicyReceipt, Batch]]:
    """Concatenate each policy's receipts and batches over all phases."""
    return {policy: _joined([phase[policy] for phase in made]) for policy in made[0]}


def _joined(made: Sequence[tuple[PolicyReceipt, Batch]]) -> tuple[PolicyReceipt, Batch]:
    receipts = [receipt for receipt, _ in made]
    receipt = replace(
        receipts[-1],
        rows=sum(one.rows for one in receipts),
        rows_carried=sum(one.rows_carried for one in receipts),
        reward_unattributed=sum(one.reward_unattributed for one in receipts),
        finished=tuple(_one(times) for times in zip(*(one.finished for one in receipts), strict=True)),
    )
    batches = [batch for _, batch in made]
    whole = Batch.concat(batches)
    return receipt, type(batches[0])(whole.columns, whole.segments)


def _one(times: Sequence[StageTimes]) -> StageTimes:
    began_s = times[0].began_s
    busy_s = sum(one.ended_s - one.began_s for one in times)
    return StageTimes(began_s, began_s + busy_s, sum(one.rows for one in times))
