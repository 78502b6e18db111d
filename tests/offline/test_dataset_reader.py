"""Every recorded fragment is handed out once per pass, whoever hands it out, and across a resume."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from marlflow.base.errors import CheckpointUnusable, RecordsDamaged
from marlflow.batches.batch import Batch
from marlflow.batches.items import Weights
from marlflow.offline.dataset import Dataset, find_dataset
from marlflow.offline.dataset_reader import DatasetReader, DatasetWorker, OfflineWorker, next_fragments
from marlflow.offline.dataset_writer import DatasetWriter
from marlflow.sampling.protocol import Request
from marlflow.sampling.receipts import Receipt
from marlflow.sampling.saved_state import merged, share
from tests.offline.batches import recording, rows

FRAGMENTS, ENV_STEPS = 11, 6


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    """Fragments of one row each, whose reward is their number, of 6 env steps."""
    folder = tmp_path_factory.mktemp("records")
    writer = DatasetWriter(recording(folder), worker=0)
    for number in range(FRAGMENTS):
        writer.write({"team": rows(1, number)}, ENV_STEPS)
    writer.finish()
    return find_dataset(folder, "team")


def _no_player() -> OfflineWorker:
    raise AssertionError("nobody asked for an evaluation")


def _workers(records: Dataset, num_envs: int, workers: int) -> list[DatasetWorker]:
    made = []
    for number in range(workers):
        own = range(number, num_envs, workers)
        playback = DatasetReader(records, own, num_envs)
        made.append(DatasetWorker(OfflineWorker(number, own, _no_player), {"team": playback}, {}, len(own)))
    return made


def _round(workers: Sequence[DatasetWorker], ticks: int) -> tuple[list[int], list[Receipt]]:
    handed, receipts = [], []
    for worker in workers:
        receipt, batches = worker.collect(ticks)
        assert receipt.policies["team"].rows == receipt.agent_steps == batches["team"].rows
        assert receipt.env_steps == ENV_STEPS * batches["team"].rows
        handed += batches["team"].columns["reward"].astype(int).tolist()
        receipts.append(receipt)
    return handed, receipts


def _resumed(records: Dataset, kept: Sequence[DatasetWorker], num_envs: int, workers: int) -> list[DatasetWorker]:
    tree = merged([worker.state() for worker in kept])
    fresh = _workers(records, num_envs, workers)
    for number, worker in enumerate(fresh):
        worker.load_state(share(tree, range(number, num_envs, workers)), 0)
        own = next_fragments(tree, range(number, num_envs, workers))
        assert own == worker.collect(0)[0].next_fragments
    return fresh


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), num_envs=st.integers(1, 15), passes=st.integers(1, 3), ticks=st.integers(1, 9))
def test_each_fragment_is_handed_out_once_per_pass(
    records: Dataset, data: st.DataObject, num_envs: int, passes: int, ticks: int
) -> None:
    records = replace(records, passes=passes)
    workers = _workers(records, num_envs, data.draw(st.integers(1, num_envs)))
    handed: list[int] = []
    for _ in range(2_000):
        made, receipts = _round(workers, ticks)
        if not made:
            break
        handed += made
        if data.draw(st.booleans()):
            workers = _resumed(records, workers, num_envs, data.draw(st.integers(1, num_envs)))
    assert Counter(handed) == dict.fromkeys(range(FRAGMENTS), passes)
    counts: Counter[int] = Counter()
    for receipt in receipts:
        counts.update(receipt.next_fragments["team"])
    assert sum(counts.values()) == FRAGMENTS * passes


def test_a_collect_is_of_as_many_env_steps_as_were_asked_for_or_one_fragment_more(records: Dataset) -> None:
    (worker,) = _workers(records, num_envs=2, workers=1)
    taken = [worker.collect(ticks)[0].env_steps for ticks in (1, 3, 4, 100, 100)]
    assert taken == [6, 6, 12, 42, 0]


def test_a_run_that_goes_on_hands_out_what_it_would_have(records: Dataset) -> None:
    whole, half = _workers(records, 4, 2), _workers(records, 4, 2)
    expected = [_round(whole, 3)[0] for _ in range(6)]
    found = [_round(half, 3)[0] for _ in range(2)]
    half = _resumed(records, half, 4, 2)
    found += [_round(half, 3)[0] for _ in range(4)]
    assert found == expected


def test_recorded_rows_have_the_version_of_the_weights_that_came_with_the_collect(records: Dataset) -> None:
    (worker,) = _workers(records, 1, 1)
    versions = []
    for weights in ({}, {"team": Weights(4, None)}, {}):
        receipt, batches = worker.collect(ENV_STEPS, Request(weights=weights))
        versions += [receipt.policies["team"].version, *batches["team"].columns["version"].tolist()]
    assert versions == [0, 0, 4, 4, 4, 4]


def test_other_records_than_were_kept_are_refused(records: Dataset) -> None:
    (worker,) = _workers(records, 1, 1)
    (other,) = _workers(replace(records, fragments=records.fragments[1:]), 1, 1)
    with pytest.raises(CheckpointUnusable, match="had 11 recorded fragments when it was kept, and has 10 now"):
        other.load_state(worker.state(), 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_env_steps_of_policies_with_fragments_of_other_lengths_count_once(workers: int, tmp_path: Path) -> None:
    """A policy without rows in a round has the round's env steps in its next fragment."""
    lengths = {"often": [ENV_STEPS] * 40, "seldom": [60, 36, 90, 6, 48]}
    for policy, of_policy in lengths.items():
        assert sum(of_policy) == 240
        writer = DatasetWriter(replace(recording(tmp_path, run=policy), policies=[policy]), worker=0)
        for number, env_steps in enumerate(of_policy):
            writer.write({policy: rows(1, number)}, env_steps)
        writer.finish()

    def worker(number: int) -> DatasetWorker:
        own = range(number, 2, workers)
        readers = {policy: DatasetReader(find_dataset(tmp_path, policy), own, 2) for policy in lengths}
        return DatasetWorker(OfflineWorker(number, own, _no_player), readers, {}, len(own))

    reading, counted = [worker(number) for number in range(workers)], 0
    for round_number in range(80):
        counted += sum(one.collect(6)[0].env_steps for one in reading)
        if round_number == 7:
            states = [one.state() for one in reading]
            reading = [worker(number) for number in range(workers)]
            for one, state in zip(reading, states, strict=True):
                one.load_state(state, 0)
    assert counted == 240


def test_memory_is_of_the_network_that_learns_and_begins_with_zeros(tmp_path: Path) -> None:
    writer = DatasetWriter(recording(tmp_path), worker=0)
    recorded = rows(3, memory=np.ones((3, 5), np.float32))
    segments = {"memory": np.ones((1, 5)), "memory_version": np.array([7]), "bootstrap_memory": np.ones((1, 5))}
    writer.write({"team": Batch(recorded.columns, {**recorded.segments, **segments})}, ENV_STEPS)
    writer.finish()
    for shape in ((2, 4), None):
        reader = DatasetReader(find_dataset(tmp_path, "team"), range(1), 1, memory_shape=shape)
        worker = DatasetWorker(OfflineWorker(0, range(1), _no_player), {"team": reader}, {}, 1)
        weights = {"team": Weights(9, np.zeros(1, np.float32))}
        batch = worker.collect(ENV_STEPS, Request(weights=weights))[1]["team"]
        assert batch.columns["version"].tolist() == [9, 9, 9]
        found = {name: array for name, array in {**batch.columns, **batch.segments}.items() if "memory" in name}
        if shape is None:
            assert not found
            continue
        assert batch.columns["memory"].shape == (3, 2, 4)
        assert batch.segments["memory"].shape == batch.segments["bootstrap_memory"].shape == (1, 2, 4)
        assert batch.segments["memory_version"].tolist() == [9]
        assert not any(array.any() for name, array in found.items() if name != "memory_version")


@pytest.mark.parametrize("first", ["plain", "pixels"])
def test_what_only_some_files_have_is_left_out(tmp_path: Path, first: str) -> None:
    """Whatever the order of files: in the name of one run or the other."""
    for name in ("plain", "pixels"):
        writer = DatasetWriter(recording(tmp_path, "aaaa" if name == first else "bbbb"), worker=0)
        more = {} if name == "plain" else {"cost": np.ones(2, np.float32), "state": np.ones((2, 3, 3), np.uint8)}
        writer.write({"team": rows(2, **more)}, 2)
        writer.finish()
    records = find_dataset(tmp_path, "team")
    assert len(records.fragments) == 2
    batch, env_steps = DatasetReader(records, [0], 1).take(4)
    assert (batch.rows, env_steps) == (4, 4)
    assert list(batch.columns) == list(rows(1).columns)
    assert set(find_dataset(tmp_path, "team").nothing().columns) == set(batch.columns)


def test_rewards_that_are_not_finite_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    writer = DatasetWriter(recording(tmp_path), worker=0)
    for reward in (1.0, np.nan):
        writer.write({"team": rows(2, reward=np.array([0.5, reward]))}, 2)
    writer.finish()
    reader = DatasetReader(find_dataset(tmp_path, "team"), [0], 1)
    assert reader.take(2)[0].rows == 2
    with pytest.raises(RecordsDamaged, match=r"team/\S+, fragment 1: reward has a number that is not finite"):
        reader.take(2)
