"""Compare an exported file with the policy that it was made of.

float32 has 24 bits, so two ways to compute the same sum differ by about 1e-7 of its largest terms. A difference in
absolute numbers therefore grows with the outputs. What it means is said by the relative difference, by that of the
actions' probabilities, and by whether any greedy action differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from marlflow.base.arrays import Array
from marlflow.base.progress import tracked
from marlflow.base.random import RowRandom
from marlflow.base.spaces import components
from marlflow.policy.tensors import as_tensor
from marlflow.trained.export_rows import CheckRows
from marlflow.trained.exported_files import Session
from marlflow.trained.policy import TrainedPolicy
from marlflow.trained.portable import PortableActor

_BATCHES = (1, 7)


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How far the outputs of an exported file are from those of its policy, over `rows` rows.

    `of` is what the rows are: `played` in the run's environment, or `arbitrary`; `reason` is why they are not played.
    `largest` is the largest difference of a number, and `magnitude` the largest number compared. `relative` is the
    largest difference as a share of the largest number of its output in its row, or of 1 if that is larger.
    `probability` is the largest difference of the probability of an action, None for policies without logits.
    `actions` is how many greedy actions of whole numbers differ, as near ties may.
    """

    rows: int
    of: str
    reason: str | None
    largest: float
    magnitude: float
    relative: float
    probability: float | None
    actions: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


def difference(trained: TrainedPolicy, portable: PortableActor, session: Session, rows: CheckRows) -> OutputDifference:
    """Run an exported file on all rows, one by one and in batches of 7, and compare it with the policy as it acts."""
    found: list[Mapping[str, Array]] = []
    expected: list[Mapping[str, Array]] = []
    count = len(rows.obs)
    parts = [slice(start, start + size) for size in _BATCHES for start in range(0, count, size)]
    for part in map(rows.part, tracked("comparing rows with the policy", parts)):
        found.append(session(portable.inputs_of(part.obs, part.memory, part.mask)))
        expected.append(expected_outputs(trained, portable, part))
    choices = trained.spaces.choices if "logits" in expected[0] else ()
    return compared(_together(expected), _together(found), choices, rows)


def _together(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def compared(
    expected: Mapping[str, Array], found: Mapping[str, Array], choices: Sequence[int], rows: CheckRows
) -> OutputDifference:
    """Compare outputs [N, ...] by name; `choices` are the sizes of the components that have logits."""
    largest = magnitude = relative = 0.0
    for name, value in expected.items():
        if value.dtype.kind != "f":
            continue
        wanted = value.reshape(len(value), -1).astype(np.float64)
        # Masked outputs are the lowest float, and equal.
        legal = np.abs(wanted) < np.finfo(np.float32).max
        gap = np.where(legal, np.abs(found[name].reshape(wanted.shape) - wanted), 0.0).max(1, initial=0.0)
        size = np.where(legal, np.abs(wanted), 0.0).max(1, initial=0.0)
        largest, magnitude = max(largest, float(gap.max())), max(magnitude, float(size.max()))
        relative = max(relative, float((gap / np.maximum(size, 1.0)).max()))
    probability = _probability(expected["logits"], found["logits"], choices) if choices else None
    action = expected.get("action")
    differ = 0
    if action is not None and action.dtype.kind != "f":
        differ = int((found["action"] != action).reshape(len(action), -1).any(1).sum())
    return OutputDifference(len(rows.obs), rows.of, rows.reason, largest, magnitude, relative, probability, differ)


def _probability(expected: Array, found: Array, choices: Sequence[int]) -> float:
    pairs = zip(components(expected, choices), components(found, choices), strict=True)
    gaps = [np.abs(softmax(one.astype(np.float64), 1) - softmax(other.astype(np.float64), 1)) for one, other in pairs]
    return float(max(gap.max() for gap in gaps))


def expected_outputs(trained: TrainedPolicy, portable: PortableActor, rows: CheckRows) -> dict[str, Array]:
    """Return what the policy computes for rows, as it does when it acts, and its greedy actions."""
    before = None if rows.memory is None else as_tensor(rows.memory)
    with torch.inference_mode():
        raw, after = portable.network.outputs(as_tensor(rows.obs), before)
        named = portable.named(raw, None if rows.mask is None else as_tensor(rows.mask))
        expected = {name: tensor.numpy() for name, tensor in named.items()}
    if after is not None:
        expected["next_memory"] = after.numpy()
    if "action" in expected:
        count = len(rows.obs)
        random = RowRandom(np.zeros(count, np.uint64), np.zeros(count, np.int64))
        acted = trained.actor.act(rows.obs, rows.mask, rows.memory, "greedy", random)
        start = getattr(trained.spaces.action, "start", 0)
        expected["action"] = acted.action if acted.action.dtype.kind == "f" else acted.action + start
    return expected
