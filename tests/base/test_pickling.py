from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle

from marlflow.base.pickling import pickled_by_arguments
from marlflow.batches.batch import IN_BAND_BYTES, Batch, EstimatedBatch
from marlflow.batches.items import Inserted, Update, Weights
from marlflow.sampling.protocol import Request
from marlflow.sampling.receipts import EpisodeResult, MembersSent, PolicyReceipt, Receipt

EPISODES = tuple(EpisodeResult(env, 3, 20, {"a": 1.5, "b": -1.0}, 7, {"a": "left", "b": "right"}) for env in range(3))
RECEIPT = Receipt(4, 100, 250, EPISODES, {"left": PolicyReceipt(90, 1, 0.5, 8)}, 0, 0.1, 0.2, 0.3, {0: 5})
MESSAGES = [
    RECEIPT,
    MembersSent(1, 128, 3),
    Request(3, {"left": Weights(8, None)}, {"left": {"epsilon": 0.25}}, reset=("right",)),
    Inserted(10, 500, 1),
    Update("left", 64, 1, 8, {"policy": 0.5}, 0.25, updates_skipped=2),
]


@pickled_by_arguments
@dataclass(frozen=True, slots=True)
class OneField:
    values: list[int] = field(default_factory=list)


def _sent(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))  # noqa: S301  bytes made on this line


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_with_every_field(message: object) -> None:
    arrived = _sent(message)
    assert type(arrived) is type(message)
    every_field = attrgetter(*type(message).__slots__)  # type: ignore[attr-defined]
    assert every_field(arrived) == every_field(message)


def test_one_field_may_be_a_collection() -> None:
    assert _sent(OneField([1, 2])) == OneField([1, 2])


def test_what_messages_share_is_sent_once() -> None:
    mapping = {"a": "left"}
    shared = [EpisodeResult(env, 0, 20, {"a": 1.0}, 0, mapping) for env in range(2)]
    first, second = _sent(shared)
    assert first.matchup is second.matchup


def _batch(kind: type[Batch], rows: int) -> Batch:
    generator = np.random.default_rng(rows)
    columns = {"reward": generator.normal(size=rows), "obs": generator.normal(size=(rows, 3, 2)).astype(np.float32)}
    segments = {"length": np.array([rows]), "terminated": np.array([rows % 2 == 0])}
    # A column may be a view into a buffer.
    return kind(columns | {"action": np.arange(4 * rows).reshape(rows, 4)[:, 1]}, segments)


# A row has 8 bytes of reward, 24 of observation and 8 of action; the segment has 9.
LARGEST_IN_BAND = (IN_BAND_BYTES - 9) // 40


@pytest.mark.parametrize("kind", [Batch, EstimatedBatch])
@pytest.mark.parametrize("rows", [0, 1, LARGEST_IN_BAND, LARGEST_IN_BAND + 1])
def test_a_batch_arrives_with_every_column_and_only_a_large_one_has_buffers_out_of_band(
    kind: type[Batch], rows: int
) -> None:
    batch = _batch(kind, rows)
    buffers: list[pickle.PickleBuffer] = []
    packed = pickle.dumps(batch, 5, buffer_callback=buffers.append)
    arrived = pickle.loads(packed, buffers=buffers)  # noqa: S301  bytes made in this test
    assert type(arrived) is kind
    for table in ("columns", "segments"):
        sent, received = getattr(batch, table), getattr(arrived, table)
        assert list(received) == list(sent)
        for name, array in sent.items():
            np.testing.assert_array_equal(received[name], array)
            assert received[name].dtype == array.dtype
    assert bool(buffers) is (rows > LARGEST_IN_BAND)


def test_objects_of_a_batch_are_left_to_the_outer_pickler() -> None:
    """Ray's can pickle objects of classes that an ordinary one cannot, such as those of a script or of a function."""

    class Local:
        pass

    batch = _batch(Batch, 1).with_columns(note=np.array([Local()], object))
    arrived = pickle.loads(cloudpickle.dumps(batch))  # noqa: S301  bytes made on this line
    assert type(arrived.columns["note"][0]).__name__ == "Local"


def test_unpickling_a_batch_always_sets_its_state(monkeypatch: pytest.MonkeyPatch) -> None:
    # Tests of the driver make it raise there, to show that it opens no rows.
    packed = [pickle.dumps(_batch(Batch, rows)) for rows in (1, LARGEST_IN_BAND + 1)]

    def refuse(self: Batch, state: object) -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(Batch, "__setstate__", refuse)
    for each in packed:
        with pytest.raises(AssertionError, match="opened"):
            pickle.loads(each)  # noqa: S301  bytes made in this test
