"""All recorded rows are in exactly one trajectory, in order, whatever fragments and workers they were written by."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import marlflow as mf
from marlflow.batches.batch import Batch
from marlflow.offline.dataset import find_dataset
from marlflow.offline.dataset_writer import DatasetWriter
from marlflow.offline.trajectories import RecordedTrajectory, recorded_trajectories
from tests.offline.batches import recording
from tests.runtime.small_runs import small_run

ENDS = ("terminated", "truncated", "unfinished")


def piece(agent: int, env: int, episode: int, first: int, rows: int, end: str) -> Batch:
    """Rows `first` to `first + rows` of a trajectory, whose observations say which they are."""
    number = np.arange(first, first + rows)
    # The last one is of the row after it.
    seen = np.stack(
        [np.full(rows + 1, value) for value in (agent, env, episode)] + [np.append(number, first + rows)], 1
    )
    columns = {
        "obs": seen[:-1].astype(np.float32),
        "action": number.astype(np.int64),
        "reward": number.astype(np.float64),
        "t_agent": number.astype(np.int32),
        "action_mask": np.ones((rows, 2), bool),
    }
    segments = {"length": [rows], "terminated": [end == "terminated"], "truncated": [end == "truncated"]}
    segments |= {"agent": [agent], "env": [env], "episode": [episode], "bootstrap_obs": seen[-1:].astype(np.float32)}
    return Batch(
        columns,
        {**{name: np.array(value) for name, value in segments.items()}, "bootstrap_mask": np.zeros((1, 2), bool)},
    )


def described(episode: RecordedTrajectory) -> tuple[Any, ...]:
    return (
        episode.agent,
        episode.env,
        episode.episode,
        int(episode.columns["t_agent"][0]),
        len(episode.columns["reward"]),
        episode.end,
    )


def write(folder: Path, worker: int, batches: Sequence[Batch], run: str = "ab12") -> None:
    writer = DatasetWriter(recording(folder, run), worker)
    for batch in batches:
        writer.write({"team": batch}, 1)
    writer.finish()


trajectories = st.lists(
    st.tuples(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.sampled_from(ENDS)), min_size=1, max_size=8
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(given=trajectories, seed=st.integers(0, 99), workers=st.integers(1, 2))
def test_trajectories_are_put_together_from_their_pieces(
    tmp_path_factory: pytest.TempPathFactory, given: list[tuple[list[int], str]], seed: int, workers: int
) -> None:
    folder, random = tmp_path_factory.mktemp("records"), np.random.default_rng(seed)
    written: list[list[Batch]] = [[] for _ in range(workers)]
    expected = []
    for number, (lengths, end) in enumerate(given):
        agent, env, episode = number % 2, number // 2 % 2, number // 4
        expected.append((agent, env, episode, 0, sum(lengths), end))
        first = 0
        for place, length in enumerate(lengths):
            end_here = end if place == len(lengths) - 1 else "unfinished"
            # After a resume, another worker may have the environment.
            written[random.integers(workers)].append(piece(agent, env, episode, first, length, end_here))
            first += length
    for worker, batches in enumerate(written):
        while batches:
            count = int(random.integers(1, 4))
            write(folder, worker, [Batch.concat(batches[:count])])
            del batches[:count]
    found = list(recorded_trajectories(find_dataset(folder, "team")))
    assert sorted(map(described, found)) == sorted(expected)
    for episode in found:
        steps = len(episode.columns["reward"])
        assert episode.seen["obs"][:, 3].tolist() == list(range(steps + 1))
        assert (episode.seen["obs"][:, :3] == (episode.agent, episode.env, episode.episode)).all()
        assert episode.columns["reward"].tolist() == list(range(steps))
        assert episode.seen["action_mask"].all(axis=1).tolist() == [True] * steps + [False]


def test_a_gap_ends_a_trajectory_and_an_agent_may_come_back(tmp_path: Path) -> None:
    write(
        tmp_path,
        0,
        [piece(0, 0, 0, 0, 3, "unfinished"), piece(0, 0, 0, 5, 2, "terminated"), piece(0, 0, 0, 7, 1, "truncated")],
    )
    # Another run in the same folder has the same numbers.
    write(tmp_path, 0, [piece(0, 0, 0, 3, 2, "terminated")], run="cd34")
    found = [described(episode)[3:] for episode in recorded_trajectories(find_dataset(tmp_path, "team"))]
    assert found == [(0, 3, "unfinished"), (5, 2, "terminated"), (7, 1, "truncated"), (3, 2, "terminated")]


def test_a_run_records_trajectories_that_begin_and_end_as_its_episodes(tmp_path: Path) -> None:
    mf.train(small_run(record=mf.Record()), tmp_path)
    dataset = find_dataset(tmp_path / "record", "prey")
    found = list(recorded_trajectories(dataset))
    rows = sum(dataset.read(fragment).rows for fragment in dataset.fragments)
    assert sum(len(episode.columns["reward"]) for episode in found) == rows
    assert {episode.columns["t_agent"][0] for episode in found} == {0}
    # Eight lanes of two agents, each with one episode that is still running at most.
    assert sum(episode.end == "unfinished" for episode in found) <= 8
    for episode in found:
        assert (np.diff(episode.columns["t_agent"]) == 1).all()
        # The pole moves on from the angle that was seen before it.
        assert np.abs(np.diff(episode.seen["obs"][:, 2])).max() < 0.2
