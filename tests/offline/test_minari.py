"""A Minari dataset has the rows that were recorded: read back, nothing is lost, rounded or moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces as gym
from hypothesis import given
from hypothesis import strategies as st

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.offline.dataset import find_dataset
from marlflow.offline.dataset_writer import DatasetWriter
from marlflow.offline.manifest import Manifest, environment_described, write_manifest
from marlflow.offline.minari import decoded, episode_fields, export_minari
from marlflow.offline.trajectories import RecordedTrajectory, recorded_trajectories
from tests.base.nested_spaces import trees
from tests.offline.batches import recording
from tests.offline.test_trajectories import piece
from tests.runtime.small_runs import small_run


def assert_equal(one: Any, other: Any) -> None:
    """The same nesting and the same numbers of the same dtypes."""
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert_equal(value, other[key])
    elif isinstance(one, tuple):
        for left, right in zip(one, other, strict=True):
            assert_equal(left, right)
    else:
        left, right = np.asarray(one), np.asarray(other)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        np.testing.assert_array_equal(left, right)


def stacked(space: gym.Space[Any], samples: list[Any]) -> Any:
    if isinstance(space, gym.Dict):
        return {key: stacked(part, [sample[key] for sample in samples]) for key, part in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return tuple(stacked(part, [sample[at] for sample in samples]) for at, part in enumerate(space.spaces))
    numbers = np.stack([np.asarray(sample, space.dtype) for sample in samples])
    # Policies see and act in float32.
    return numbers.astype(np.float32).astype(np.float64) if space.dtype == np.float64 else numbers


@given(space=trees((np.float16, np.float32, np.uint8, np.int16)), seed=st.integers(0, 99))
def test_observations_are_decoded_to_what_was_seen(space: gym.Space[Any], seed: int) -> None:
    space.seed(seed)
    samples = [space.sample() for _ in range(3)]
    spaces = Spaces(space, gym.Discrete(2))
    assert_equal(stacked(space, samples), decoded(spaces.encoder().stack(samples), spaces))


def episode(end: Any = "terminated", action: Array | None = None) -> RecordedTrajectory:
    columns = {
        "action": np.array([0, 2]) if action is None else action,
        "reward": np.array([0.5, 2.0]),
        "behavior_logp": np.array([-1.0, -2.0], np.float32),
        "t_env": np.array([0, 3], np.int32),
        "t_agent": np.array([0, 1], np.int32),
        "version": np.array([1, 1]),
        "cost": np.array([0.0, 7.0]),
    }
    seen = {"obs": np.float32([[1, 2], [3, 4], [5, 6]]), "action_mask": np.array([[1, 0, 1]] * 3, bool)}
    return RecordedTrajectory(0, 0, 0, end, columns, seen)


@pytest.mark.parametrize(
    ("end", "terminations", "truncations"),
    [("terminated", [0, 1], [0, 0]), ("truncated", [0, 0], [0, 1]), ("unfinished", [0, 0], [0, 1])],
)
def test_the_fields_of_an_episode(end: Any, terminations: list[bool], truncations: list[bool]) -> None:
    spaces = Spaces(gym.Box(0, 9, (2,), np.float64), gym.Discrete(3, start=5), masked=True)
    fields = episode_fields(episode(end), spaces)
    assert fields["observations"].dtype == np.float64
    assert fields["observations"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert fields["actions"].tolist() == [5, 7]
    assert fields["rewards"].tolist() == [0.5, 2.0]
    assert (fields["terminations"].tolist(), fields["truncations"].tolist()) == (terminations, truncations)
    infos = fields["infos"]
    assert infos.keys() == {"action_mask", "behavior_logp", "t_env", "cost"}
    assert infos["action_mask"].shape == (3, 3)
    # Those of a decision are with the observation that it was made on, and a cost is with the next one.
    np.testing.assert_array_equal(infos["behavior_logp"], np.float32([-1, -2, np.nan]))
    assert infos["t_env"].tolist() == [0, 3, -1]
    np.testing.assert_array_equal(infos["cost"], [np.nan, 0, 7])


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Minari with a folder of its own for datasets."""
    module = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return module


SPACES = {
    "pixels": gym.Box(0, 255, (40, 40, 3), np.uint8),
    "nested": gym.Dict(
        place=gym.Box(-np.inf, np.inf, (2, 2), np.float64),
        held=gym.Tuple([gym.Discrete(3, start=1), gym.MultiBinary(2)]),
    ),
    "number": gym.Discrete(4),
    "vector": gym.MultiDiscrete([2, 3], start=[1, -1]),
}
ACTIONS = {
    "discrete": gym.Discrete(3, start=2),
    "box": gym.Box(-1, 1, (2,), np.float64),
    "several": gym.MultiDiscrete([3, 2]),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("seen", SPACES)
def test_episodes_read_back_by_minari_are_the_recorded_ones(
    minari: Any, tmp_path: Path, seen: str, action: str
) -> None:
    spaces = Spaces(SPACES[seen], ACTIONS[action], masked=action == "discrete")
    spaces.observation.seed(3)
    spaces.action.seed(3)
    rows, ends = [3, 1, 4], ["terminated", "unfinished", "truncated"]
    samples = [[spaces.observation.sample() for _ in range(count + 1)] for count in rows]
    actions = [[spaces.action.sample() for _ in range(count)] for count in rows]
    writer = DatasetWriter(recording(tmp_path / "record"), 0)
    for number, (count, end) in enumerate(zip(rows, ends, strict=True)):
        obs = spaces.encoder().stack(samples[number])
        batch = piece(0, number, 0, 0, count, end)
        first = 0 if action == "box" else getattr(spaces.action, "start", 0)
        recorded = np.stack(actions[number]) - first
        columns = {
            **batch.columns,
            "obs": obs[:-1],
            "action": recorded.astype(spaces.action_dtype),
            "behavior_logp": np.full(count, -0.5, np.float32),
            "t_env": np.arange(count, dtype=np.int32),
            "cost": np.arange(count, dtype=np.float64),
        }
        writer.write({"team": type(batch)(columns, {**batch.segments, "bootstrap_obs": obs[-1:]})}, count)
    writer.finish()
    environment = environment_described("games.make", {}, ())
    write_manifest(tmp_path / "record", Manifest({"a": spaces}, {"team": spaces}, environment, {"a": "team"}))

    written = export_minari(tmp_path / "record", "test/rows-v0")
    assert (written.episodes, written.steps, written.unfinished) == (3, 8, 1)
    dataset = minari.load_dataset("test/rows-v0")
    assert dataset.observation_space == spaces.observation
    assert dataset.action_space == spaces.action
    by_env = {
        note["env"]: one for one, note in zip(dataset, dataset.storage.get_episode_metadata(range(3)), strict=True)
    }
    for number, (count, end) in enumerate(zip(rows, ends, strict=True)):
        one = by_env[number]
        assert_equal(stacked(spaces.observation, samples[number]), one.observations)
        assert_equal(stacked(spaces.action, actions[number]), one.actions)
        assert one.rewards.tolist() == list(range(count))
        assert one.terminations.tolist() == [False] * (count - 1) + [end == "terminated"]
        assert one.truncations.tolist() == [False] * (count - 1) + [end != "terminated"]
        assert one.infos["action_mask"].tolist() == [[True, True]] * count + [[False, False]]
        assert one.infos["t_env"].tolist() == [*range(count), -1]
        np.testing.assert_array_equal(one.infos["cost"], [np.nan, *range(count)])


def test_a_recorded_run_becomes_an_episode_for_each_agent(minari: Any, tmp_path: Path) -> None:
    mf.train(small_run(record=mf.Record()), tmp_path / "run")
    folder = tmp_path / "run" / "record"
    written = export_minari(folder, "prey-v0", "prey")
    dataset = minari.load_dataset("prey-v0")
    notes = list(dataset.storage.get_episode_metadata(range(written.episodes)))
    assert {note["agent"] for note in notes} == {"cart_2", "cart_3"}
    for one, note, recorded in zip(dataset, notes, recorded_trajectories(find_dataset(folder, "prey")), strict=True):
        assert note["end"] == recorded.end
        assert_equal(recorded.seen["obs"], one.observations)
        assert_equal(recorded.columns["action"], one.actions)
        assert_equal(recorded.columns["reward"], one.rewards)


def test_an_export_that_fails_leaves_nothing(minari: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mf.train(small_run(record=mf.Record()), tmp_path / "run")
    folder = tmp_path / "run" / "record"
    with monkeypatch.context() as patched:
        patched.setattr("marlflow.offline.minari.recorded_trajectories", broken)
        with pytest.raises(mf.RecordsDamaged):
            export_minari(folder, "prey-v0", "prey")
    assert "prey-v0" not in minari.list_local_datasets()
    assert export_minari(folder, "prey-v0", "prey").episodes > 1


def broken(dataset: Any) -> Iterator[Any]:
    """The first trajectory, and then an error."""
    yield next(iter(recorded_trajectories(dataset)))
    raise mf.RecordsDamaged("a file is damaged")


@pytest.mark.parametrize(
    ("dataset_id", "policy", "problem"),
    [
        ("rows", "prey", "minari must be an id such as cartpole/expert-v0, not 'rows'"),
        ("../rows-v0", "prey", "must be an id"),
        ("a/rows-v0", "prey", "must be an id"),
        ("rows-v0", None, "name one of them: policy=NAME"),
        ("rows-v0", "predator", "has records of 'hunters', 'prey', and none of 'predator'"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    minari: Any, tmp_path: Path, dataset_id: str, policy: str | None, problem: str
) -> None:
    spaces = Spaces(gym.Box(0, 1, (2,)), gym.Discrete(2))
    both = {"hunters": spaces, "prey": spaces}
    write_manifest(tmp_path, Manifest(both, both, environment_described("games.make", {}, ())))
    with pytest.raises(ConfigInvalid, match=problem):
        export_minari(tmp_path, dataset_id, policy)
