"""Rounds from the results of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marlflow.batches.items import Fragment
from marlflow.sampling.protocol import Round
from marlflow.sampling.receipts import Receipt


def make_round(number: int, receipts: Sequence[Receipt], payloads: Sequence[Mapping[str, Any]]) -> Round:
    """Make a round from each worker's receipt and payloads (or references) by policy."""
    last = len(receipts) - 1
    fragments = [
        Fragment(
            policy=policy,
            worker=receipt.worker,
            round=number,
            closes_round=position == last,
            rows=sampled.rows,
            rows_carried=sampled.rows_carried,
            payloads=(payload,),
            # Plain tuples, because fragments lie below the flow that defines StageTimes.
            finished=tuple([(stage.began_s, stage.ended_s, stage.rows) for stage in sampled.stage_times]),
        )
        for position, (receipt, by_policy) in enumerate(zip(receipts, payloads, strict=True))
        for policy, payload in by_policy.items()
        for sampled in (receipt.policies[policy],)
    ]
    return Round(number, receipts, fragments)
