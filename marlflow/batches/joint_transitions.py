"""Joint transitions drawn from a replay buffer: several agents' decisions of one env step, and what followed them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marlflow.base.arrays import Array
from marlflow.batches.train_batch import TrainBatch, for_losses


@dataclass(frozen=True, slots=True)
class JointTransitions(TrainBatch):
    """B independent n-step transitions of a team: one row per env step, with a seat for each agent.

    `columns`, [B, ...] each, of the team: `state` and `next_state` (if the learner needs them), `reward` (discounted
    n-step sums of the team's reward), `discount` (of the value of what follows: discount**k after k steps, 0 after the
    team's termination), `weight` (importance weights), `row_id`, `version`.

    Of each policy `p` with K_p seats, [B, K_p, ...] each, zero where a seat is absent: `p:present` (bool: the agent
    decided), `p:obs`, `p:action`, `p:action_mask` (if masked), `p:reward` (the agent's own, of the first step),
    `p:terminated` (bool: its segment ends there by termination), and after the n steps `p:next_obs`, `p:next_mask` and
    `p:next_present` (bool: it decides again, or its segment was truncated or cut there, so its value counts).
    """

    made_from: ClassVar[Mapping[str, str]] = {
        "JointFragment": "a replay (JoinSegments(...), NStep(...), Insert(), and source(Draw(...), at=replay))",
        "JointBatches": "a replay (JoinSegments(...), NStep(...), Insert(), and source(Draw(...), at=replay))",
    }

    columns: Mapping[str, Array]

    @property
    def rows(self) -> int:
        return sum(int(column.sum()) for name, column in self.columns.items() if name.endswith(":present"))

    @property
    def count(self) -> int:
        return len(self.columns["reward"])

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)

    def mean_version(self) -> float:
        return float(self.columns["version"].mean()) if self.count else float("nan")

    def row_ids(self) -> Array | None:
        return self.columns["row_id"]
