"""Joint sequences drawn from a replay buffer, for recurrent team learners."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from marlflow.base.arrays import Array
from marlflow.batches.train_batch import TrainBatch, for_losses

_REPLAY = "a replay of sequences (JoinSegments(...), SplitSegments, NStep, Insert, and source(Draw(...), at=replay))"


@dataclass(frozen=True, slots=True)
class JointSequenceTransitions(TrainBatch):
    """S sequences of a team's consecutive joint rows: up to B rows of burn-in, then 1 to L trained rows.

    Trained rows begin at step B; burn-in ends right before it. Missing steps and absent seats are zero.

    `columns` of the team: `valid` (bool [S, B + L + 1]: which joint rows exist, and the step after the last), `trained`
    (bool [S, L]: which trained rows exist), `reward` and `discount` (float32 [S, L], of n-step windows, which end with
    their sequence), `following` (int64 [S, L]: the step after the window, counted from B), `state` ([S, B + L + 1,
    ...], if the learner needs it), `weight` and `row_id` ([S]), `version` ([S, L]).

    Of each policy `p` with K_p seats: `p:obs` [S, B + L + 1, K_p, ...]; `p:valid`, bool [S, B + L + 1, K_p] (the agent
    decided; at the step after the last row, it decides again, or was truncated or cut there, so its value counts);
    `p:memory` [S, K_p, ...], before the sequence's first step, burn-in included, and zero for a seat that is absent
    there; `p:action_mask`, bool [S, L + 1, K_p, A], from step B (if masked); `p:action`, `p:reward` (the agent's own)
    and `p:terminated`, [S, L, K_p, ...].

    No agent decides again in a sequence after its end. So each policy can be unrolled over [S * K_p, B + L + 1] with
    `p:valid`: other steps leave the memory as it is, and an agent that joins late begins with zeros.
    """

    made_from: ClassVar[Mapping[str, str]] = {"JointFragment": _REPLAY, "JointBatches": _REPLAY}

    columns: Mapping[str, Array]

    @property
    def rows(self) -> int:
        trained = self.columns["trained"]
        # The step after the last trained row is no row of its own.
        burn_in = self.columns["valid"].shape[1] - trained.shape[1] - 1
        seats = [column for name, column in self.columns.items() if name.endswith(":valid")]
        return sum(int((valid[:, burn_in:-1] & trained[:, :, None]).sum()) for valid in seats)

    @property
    def count(self) -> int:
        return len(self.columns["trained"])

    def columns_for_losses(self) -> dict[str, Array]:
        return for_losses(self.columns)

    def mean_version(self) -> float:
        versions = self.columns["version"][self.columns["trained"]]
        return float(versions.mean()) if len(versions) else float("nan")

    def row_ids(self) -> Array | None:
        return self.columns["row_id"]
