from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import pytest

from marlflow.base.items import Inserted, Update, Weights
from marlflow.base.pickling import pickled_by_arguments
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
