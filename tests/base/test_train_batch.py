"""What a learner asks of a batch, of each kind of batch and of one that marlflow does not know."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.serialization import to_bytes
from marlflow.batches.sequences import cut_sequences
from marlflow.learner.task_batches import TaskBatch
from marlflow.runtime.stage_chain import Rows, pack_batch, unpack_batch
from tests.learner.experience import ragged, transitions
from tests.learner.group import sequence_transitions


@dataclass(frozen=True, slots=True)
class Preferences(mf.TrainBatch):
    """Pairs of observations of which the first was preferred, as somebody may want to learn from."""

    better: Array
    worse: Array
    version: Array | None = None
    note: Array | None = None

    @property
    def rows(self) -> int:
        return 2 * len(self.better)

    @property
    def count(self) -> int:
        return len(self.better)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("reward", (5, 1), "[5]"),
        ("reward", (4,), "[5]"),
        ("reward", (), "[5]"),
        ("obs", (4, 2), "[5, 4]"),
        ("bonus", (3,), "[5]"),
    ],
)
def test_a_column_that_losses_would_broadcast_is_refused(name: str, shape: tuple[int, ...], expected: str) -> None:
    batch = ragged([3, 2])
    assert batch["obs"].shape == (5, 4)
    said = re.escape(f"column {name!r} has shape {list(shape)}, and the batch needs {expected}")
    with pytest.raises(ValueError, match=said):
        batch.with_columns(**{name: np.zeros(shape)})


def test_columns_of_rows_may_be_added_and_observations_reshaped() -> None:
    batch = ragged([3, 2]).with_columns(bonus=np.zeros(5), pairs=np.zeros((5, 2)), obs=np.zeros((5, 7)))
    assert batch["obs"].shape == (5, 7)
    assert ragged([]).with_columns(reward=np.zeros(0)).rows == 0


class Ranking:
    """A loss of Preferences."""

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Nothing of it is scheduled."""

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        assert minibatch.keys() == {"better", "worse"}
        margin = module.actor(minibatch["better"]) - module.actor(minibatch["worse"])
        total = -nn.functional.logsigmoid(margin).mean()
        return mf.LossTerms(total, {"pairs": float(len(margin))})


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.actor = nn.Linear(3, 1)


def preferences(pairs: int = 6) -> Preferences:
    generator = np.random.default_rng(0)
    better, worse = generator.standard_normal((2, pairs, 3))
    return Preferences(better, worse, np.arange(pairs))


def test_a_batch_of_a_users_own_is_learned_from_and_saved_without_being_registered() -> None:
    learner = mf.TorchLearner(
        "judge",
        Judge(),
        Ranking(),
        trains_on=Preferences,
        learning_rate=0.1,
        optimizer=mf.TorchOptimizer(torch.optim.SGD),
    )
    learner.parameters.version = 5
    update = learner.update(preferences(), epochs=2, minibatch_agent_steps=4)
    assert (update.rows, update.updates, update.loss["pairs"]) == (24, 6, 2.0)
    assert (update.staleness_mean, update.rows_carried, update.row_ids) == (2.5, 0, None)
    batch = preferences()
    assert isinstance(batch, Rows)
    again: Any = unpack_batch(pack_batch(batch))
    assert type(again) is Preferences
    np.testing.assert_array_equal(again.better, batch.better)
    assert again.note is None


def test_losses_get_no_float64_and_nothing_that_says_where_rows_are_from() -> None:
    columns = preferences().columns_for_losses()
    assert {name: column.dtype for name, column in columns.items()} == {"better": np.float32, "worse": np.float32}
    drawn = transitions(4)
    assert not {"version", "row_id"} & drawn.columns_for_losses().keys()
    assert drawn.row_ids() is drawn.row_id


def test_what_each_kind_says_of_its_rows() -> None:
    batch = ragged([2, 3], 0)
    batch.columns["version"][:] = [0, 1, 2, 3, 4]
    batch.segments["carried"][:] = [True, False]
    memory = np.zeros((5, 2), np.float32)
    cut = cut_sequences(mf.EstimatedBatch({**batch.columns, "memory": memory}, batch.segments), 2)
    found = [(kind.rows, kind.count, kind.mean_version(), kind.rows_carried()) for kind in (batch, cut)]
    assert found == [(5, 5, 2.0, 1), (5, 3, 2.0, 1)]
    assert {"valid", "memory", "weight"} <= cut.columns_for_losses().keys()
    sequences = sequence_transitions(7, 0)
    assert (sequences.rows, sequences.count, sequences.mean_version()) == (7, len(sequences.row_id), 0.0)
    tasks = TaskBatch({"version": np.array([3, 5])}, {"carried": np.array([True])}, agent_steps=40)
    assert (tasks.rows, tasks.count, tasks.mean_version(), tasks.rows_carried()) == (2, 2, 4.0, 1)
    assert math.isnan(batch.only(np.array([False, False])).mean_version())


@pytest.mark.parametrize("kind", ["os.path", "subprocess.Popen", "tests.base.test_train_batch.Judge", "nowhere.Batch"])
def test_a_checkpoint_can_name_no_other_class(kind: str) -> None:
    with pytest.raises(mf.CheckpointUnusable, match="no TrainBatch of this name"):
        unpack_batch(to_bytes({"kind": kind, "of": {}}))
    with pytest.raises(mf.CheckpointUnusable, match="are not whole"):
        unpack_batch(to_bytes({"kind": f"{mf.Batch.__module__}.Batch", "of": {"columns": {}}}))
