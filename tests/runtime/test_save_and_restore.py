"""A runtime's saved state is complete: another runtime continues from it with the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.batches.batch import Batch, EstimatedBatch
from marlflow.config.experiment import PlacementOverrides, Policy, Rollouts
from marlflow.runs.checkpoint_format import rows_files
from marlflow.runtime.inline import InlineRuntime
from marlflow.runtime.protocol import RuntimeState
from marlflow.runtime.stage_chain import pack_batch, unpack_batch
from marlflow.sampling.saved_state import ResumeReport
from tests.runtime.driven_runs import driven
from tests.runtime.small_runs import SMALL, SMALL_DQN, SMALL_PPO, policies, small_run

APART = {"hunters": Policy(SMALL_PPO, SMALL), "prey": Policy(SMALL_DQN, SMALL, PlacementOverrides(replay="own"))}


def by_copies(rounds: Any) -> dict[str, Any]:
    """All rows, in an order that does not depend on which worker played them."""
    found: dict[str, Any] = {}
    for made in rounds:
        for fragment in made.fragments:
            batch = Batch.concat(fragment.payloads)
            names = ("env", "episode", "agent", "t_agent")
            for row, key in enumerate(zip(*(batch[name].tolist() for name in names), strict=True)):
                found[f"{fragment.policy}{key}"] = [batch[name][row].tolist() for name in ("obs", "action", "reward")]
    return found


@pytest.mark.parametrize("chosen", [policies(hunters=SMALL_PPO, prey=SMALL_DQN), APART], ids=["beside", "apart"])
def test_a_run_goes_on_bit_for_bit_from_what_was_kept_in_pieces(chosen: Mapping[str, Policy]) -> None:
    experiment = small_run(policies=chosen)
    files: dict[str, bytes] = {}
    held: Mapping[str, tuple[int, int]] = {}
    with driven(experiment, InlineRuntime()) as run:
        for _ in range(3):  # each time only the rows that are new
            run.play(3)
            kept = run.runtime.save({name: stop for name, (_, stop) in held.items()})
            files, held = files | kept.files, kept.replays
        run.play(4)
        expected = run.runtime.save({}).files
    assert len(rows_files("prey", files)) == 3
    with driven(experiment, InlineRuntime()) as again:
        assert again.runtime.restore(files.__getitem__, list(files), 1_000) == ResumeReport()
        assert {name: learner.version for name, learner in again.parts.learners.items()} != {"hunters": 0, "prey": 0}
        again.play(4)
        found = again.runtime.save({}).files
    assert found.keys() == expected.keys()
    for name, data in expected.items():
        assert found[name] == data, name


@pytest.mark.parametrize("workers", [1, 4])
def test_a_run_goes_on_with_another_number_of_workers(workers: int) -> None:
    with driven(small_run(), InlineRuntime()) as run:
        run.play(5)
        files = run.runtime.save({}).files
        run.play(1)
        expected = by_copies(run.rounds[-1:])
    with driven(small_run(rollouts=Rollouts(workers, 80 // workers)), InlineRuntime()) as again:
        again.runtime.restore(files.__getitem__, list(files), 1_000)
        again.play(1)
        assert by_copies(again.rounds) == expected


def test_episodes_beyond_the_limit_are_begun_anew_and_counted() -> None:
    with driven(small_run(), InlineRuntime()) as run:
        run.play(2)
        files = run.runtime.save({}).files
    with driven(small_run(), InlineRuntime()) as again:
        resumed = again.runtime.restore(files.__getitem__, list(files), 0)
    assert (resumed.episodes_abandoned, resumed.episodes_restarted) == (0, 4)


def kept_of_a_few_rounds() -> RuntimeState:
    with driven(small_run(), InlineRuntime()) as run:
        run.play(3)
        return run.runtime.save({})


def test_a_replay_without_its_file_stays_empty() -> None:
    files = kept_of_a_few_rounds().files
    names = [name for name in files if not name.startswith(("replay.", "rows."))]
    with driven(small_run(), InlineRuntime()) as again:
        again.runtime.restore(files.__getitem__, names, 1_000)
        assert again.parts.replays["prey"].stored == 0


def test_what_is_of_other_policies_is_refused() -> None:
    files = kept_of_a_few_rounds().files
    for without in ("learner.hunters", "workers"):
        with driven(small_run(), InlineRuntime()) as again, pytest.raises(CheckpointUnusable, match=without):
            again.runtime.restore(files.__getitem__, [name for name in files if name != without], 1_000)
    more = {**files, "learner.foxes": files["learner.prey"]}
    with driven(small_run(), InlineRuntime()) as again, pytest.raises(CheckpointUnusable, match=r"learner\.foxes"):
        again.runtime.restore(more.__getitem__, list(more), 1_000)


# -- rows that wait on the driver -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Batch, EstimatedBatch])
def test_rows_that_wait_come_back_as_they_were(kind: type[Batch]) -> None:
    columns = {"obs": np.arange(6, dtype=np.float32).reshape(3, 2), "reward": np.array([1.0, np.nan, -np.inf])}
    batch = kind(columns, {"length": np.array([2, 1]), "terminated": np.array([True, False])})
    again = unpack_batch(pack_batch(batch))
    assert type(again) is kind
    for mine, theirs in ((again.columns, batch.columns), (again.segments, batch.segments)):
        assert mine.keys() == theirs.keys()
        for name, column in theirs.items():
            assert mine[name].dtype == column.dtype
            np.testing.assert_array_equal(mine[name], column)


def test_rows_that_wait_since_before_their_class_moved_are_of_the_class_of_now() -> None:
    columns = {"obs": np.zeros((1, 2), np.float32), "reward": np.ones(1)}
    packed = from_bytes(pack_batch(EstimatedBatch(columns, {"length": np.array([1])})))
    assert packed["kind"] == "marlflow.batches.batch.EstimatedBatch"
    assert type(unpack_batch(to_bytes({**packed, "kind": "marlflow.base.batch.EstimatedBatch"}))) is EstimatedBatch
    with pytest.raises(CheckpointUnusable, match="no TrainBatch of this name"):
        unpack_batch(to_bytes({**packed, "kind": "theirs.base.batch.EstimatedBatch"}))


def test_what_is_no_batch_is_not_taken_for_one() -> None:
    wrong: Any = {"obs": np.zeros(1)}
    with pytest.raises(TypeError, match="TrainBatch or Gradients to wait on the driver, not dict"):
        pack_batch(wrong)
    for tree in ({"kind": "Transitions", "of": {}}, {"kind": "marlflow.batches.batch.Batch", "of": {}}, [], {"of": {}}):
        with pytest.raises(CheckpointUnusable):
            unpack_batch(to_bytes(tree))
    assert from_bytes(to_bytes([1])) == [1]


def test_files_of_rows_are_in_the_order_of_their_numbers_and_of_one_policy() -> None:
    names = ["rows.a.10-20", "replay.a", "rows.a.9-10", "replay.a.b", "rows.a.b.0-3", "rows.ab.1-2", "workers"]
    assert rows_files("a", [*names, "replay.a.0-5"]) == ["rows.a.9-10", "rows.a.10-20"]
    assert rows_files("a.b", names) == ["rows.a.b.0-3"]
