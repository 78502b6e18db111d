"""Compare an exported file with the policy that it was made of, on arbitrary rows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from marlflow.base.batch import Array
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces, components
from marlflow.env.spaces_only import observation_rows
from marlflow.policy.tensors import as_tensor
from marlflow.trained.exported_files import Session
from marlflow.trained.policy import TrainedPolicy
from marlflow.trained.portable import PortableActor

ROWS = 1_000
_BATCHES = (1, 7)


@dataclass(frozen=True, slots=True)
class OutputDifference:
    """How far the outputs of an exported file are from those of its policy, over `rows` rows.

    `largest` is the largest difference of a number, `magnitude` the largest number compared; `actions` is how many
    greedy actions differ, as near ties may.
    """

    rows: int
    largest: float
    magnitude: float
    actions: int

    def as_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class CheckRows:
    """Rows to compare on: arbitrary observations, memories and masks, the same each time."""

    obs: Array
    memory: Array | None
    mask: Array | None

    def part(self, rows: slice) -> CheckRows:
        """Return some of the rows."""
        memory, mask = (None if column is None else column[rows] for column in (self.memory, self.mask))
        return CheckRows(self.obs[rows], memory, mask)


def check_rows(trained: TrainedPolicy, rows: int = ROWS) -> CheckRows:
    """Make rows of the policy's spaces."""
    generator = np.random.default_rng(0)
    memory = trained.memory(rows)
    if memory is not None:
        memory = generator.uniform(-1.0, 1.0, memory.shape).astype(np.float32)
    mask = _masks(trained.spaces, rows, generator) if trained.spaces.masked else None
    return CheckRows(observation_rows(trained.spaces, rows), memory, mask)


def _masks(spaces: Spaces, rows: int, generator: np.random.Generator) -> Array:
    mask = generator.random((rows, spaces.mask_width)) < 0.5
    for part in components(mask, spaces.choices):
        # Of each component one is legal in any case; the part is a view.
        part[np.arange(rows), generator.integers(0, part.shape[1], rows)] = True
    return mask


def difference(
    trained: TrainedPolicy, portable: PortableActor, session: Session, count: int = ROWS
) -> OutputDifference:
    """Run an exported file on `count` rows in batches of 7, a tenth also one by one; compare it with the actor."""
    rows = check_rows(trained, count)
    starts = {size: range(0, count if size > 1 else count // 10, size) for size in _BATCHES}
    found = [
        _compared(trained, portable, session, rows.part(slice(start, start + size)))
        for size, at in starts.items()
        for start in at
    ]
    return OutputDifference(
        count,
        max(one.largest for one in found),
        max(one.magnitude for one in found),
        sum(one.actions for one in found),
    )


def _compared(trained: TrainedPolicy, portable: PortableActor, session: Session, rows: CheckRows) -> OutputDifference:
    count = len(rows.obs)
    outputs = session(portable.inputs_of(rows.obs, rows.memory, rows.mask))
    expected = expected_outputs(trained, portable, rows)
    largest = magnitude = 0.0
    for name, value in expected.items():
        # Masked outputs are the lowest float, and equal.
        compared = np.abs(value) < np.finfo(np.float32).max
        gap = np.abs(outputs[name].astype(np.float64) - value)[compared] if value.dtype.kind == "f" else np.zeros(1)
        largest = max(largest, float(gap.max(initial=0.0)))
        magnitude = max(magnitude, float(np.abs(value[compared]).max(initial=0.0)) if value.dtype.kind == "f" else 0.0)
    action = expected.get("action")
    wrong = action is not None and action.dtype.kind != "f"
    return OutputDifference(
        count, largest, magnitude, int((outputs["action"] != action).reshape(count, -1).any(1).sum()) if wrong else 0
    )


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
