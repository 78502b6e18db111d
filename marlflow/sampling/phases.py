"""Collects in phases for meta-learning: policies adapt between phases, each environment to its own task.

No episode spans two phases, and every collect starts from published weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from marlflow.base.errors import ConfigInvalid
from marlflow.batches.batch import Batch
from marlflow.flow import StageTimes
from marlflow.policy.actor import Actor
from marlflow.policy.adapted import AdaptingActor
from marlflow.sampling.receipts import PolicyReceipt


def adapting_actors(actors: Iterable[Actor], has_phases: bool = True) -> list[AdaptingActor]:
    """Return the actors that adapt; raises ConfigInvalid if there are any, but the environments have no phases."""
    adapting = [actor for actor in actors if isinstance(actor, AdaptingActor)]
    if adapting and not has_phases:
        text = "policies that adapt to tasks (maml) cannot play batched environments; set env.batched=false"
        raise ConfigInvalid([text])
    return adapting


def phase_ticks(ticks: int, actors: Sequence[AdaptingActor]) -> list[int]:
    """Return the env steps of each phase, for the most inner steps of an actor."""
    phases = 1 + max(actor.inner_steps for actor in actors)
    return [ticks // phases + (phase < ticks % phases) for phase in range(phases)]


def concat_phases(
    phases: Sequence[Mapping[str, tuple[PolicyReceipt, Batch]]],
) -> dict[str, tuple[PolicyReceipt, Batch]]:
    """Concatenate each policy's receipts and batches over all phases."""
    return {policy: _concat([phase[policy] for phase in phases]) for policy in phases[0]}


def _concat(results: Sequence[tuple[PolicyReceipt, Batch]]) -> tuple[PolicyReceipt, Batch]:
    receipts = [receipt for receipt, _ in results]
    receipt = replace(
        receipts[-1],
        rows=sum(part.rows for part in receipts),
        rows_carried=sum(part.rows_carried for part in receipts),
        reward_unattributed=sum(part.reward_unattributed for part in receipts),
        infos_unattributed={
            name: sum(part.infos_unattributed[name] for part in receipts) for name in receipts[0].infos_unattributed
        },
        stage_times=tuple(
            StageTimes.total(times) for times in zip(*(part.stage_times for part in receipts), strict=True)
        ),
    )
    batches = [batch for _, batch in results]
    whole = Batch.concat(batches)
    return receipt, type(batches[0])(whole.columns, whole.segments)
