"""Letters between workers and the driver, through a dictionary in place of Ray's key-value store."""

from __future__ import annotations

import queue
from functools import partial
from typing import Any

import pytest

from marlflow.runtime.ray import message_channel as mail
from marlflow.runtime.ray.message_channel import Inbox, Outbox
from marlflow.sampling.messages import News, Printed, Silent


class Store:
    """As much of `ray.experimental.internal_kv` as is used."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}

    def _internal_kv_put(self, key: str, value: bytes, namespace: bytes) -> None:
        self.values[key.encode()] = value

    def _internal_kv_get(self, key: bytes, namespace: bytes) -> bytes | None:
        return self.values.get(key)

    def _internal_kv_del(self, key: bytes, namespace: bytes) -> None:
        del self.values[key]

    def _internal_kv_list(self, prefix: str, namespace: bytes) -> list[bytes]:
        return [key for key in list(self.values) if key.startswith(prefix.encode())]


def test_a_worker_that_posts_nothing_more_is_told_again_and_again_and_ever_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    there = Store()
    calls = {"store": "put", "stored": "get", "is_stored": "exists", "forget": "del", "stored_keys": "list"}
    for name, call in calls.items():
        method = getattr(there, f"_internal_kv_{call}", None)
        monkeypatch.setattr(mail, name, method and partial(method, namespace=b"marlflow"))
    monkeypatch.setattr(mail, "_POLL_INTERVAL_S", 0.001)
    monkeypatch.setattr(mail, "_SILENT_POLLS", 5)
    told: queue.Queue[News] = queue.Queue()
    inbox = Inbox(told.put)
    monkeypatch.setattr(Outbox, "_post_loop", lambda self: None)  # only when it is told to
    outbox = Outbox(inbox.address, 7)
    outbox.flush()
    found: list[Any] = [told.get(timeout=60) for _ in range(3)]
    assert found == [Silent(7, 0.005), Silent(7, 0.01), Silent(7, 0.02)]
    outbox.send(Printed(7, "", "hello"))
    outbox.flush()
    while not isinstance(heard := told.get(timeout=60), Printed):
        pass
    assert told.get(timeout=60) == Silent(7, 0.005)
    assert heard == Printed(7, "", "hello")
    # A process that is lost is not silent, even if its last message comes late; its replacement is, in its turn.
    inbox.forget(7)
    outbox.send(Printed(7, "", "late"))
    outbox.flush()
    while told.get(timeout=60) != Printed(7, "", "late"):
        pass
    with pytest.raises(queue.Empty):
        told.get(timeout=0.1)
    Outbox(inbox.address, 7).flush()
    assert told.get(timeout=60) == Silent(7, 0.005)
    inbox.close(answers=True)
