"""Messages and heartbeats of rollout workers to the driver during a call, through Ray's key-value store.

The worker's only actor thread is busy with the call, so a second thread posts its messages, at most twice a second, and
a heartbeat every ten seconds. The driver polls and reports workers that fall silent, for example in C code that holds
Python's lock. Nothing but Ray is needed: no port, no process.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ray.experimental import internal_kv

from marlflow.sampling.messages import News, Silent, from_bytes, to_bytes

_NAMESPACE = b"marlflow"
_EVERY_S = 0.5
_READ_TIMEOUT_S = 5.0
_ALIVE_EVERY_S = 10.0
_SILENT_LOOKS = 60
"""After so many looks in which nothing came from a worker that is told, and again after twice as many."""

log = logging.getLogger("marlflow")


@dataclass(frozen=True, slots=True)
class Address:
    """Where the workers of a run post, and the level from which they forward log records."""

    prefix: str
    log_level: int


class Outbox:
    """Posts messages from this process, in order."""

    def __init__(self, address: Address, worker: int) -> None:
        # A worker that is replaced must not write over what its predecessor posted.
        self._prefix = f"{address.prefix}{worker:06d}.{secrets.token_hex(4)}."
        self._waiting: deque[News] = deque()
        self._posted = 0
        self._lock, self._has_news = threading.Lock(), threading.Event()
        threading.Thread(target=self._post_again_and_again, name="marlflow-outbox", daemon=True).start()

    def send(self, news: News) -> None:
        """Queue a message, to be posted soon; does not wait."""
        self._waiting.append(news)
        self._has_news.set()

    def flush(self) -> None:
        """Post all queued messages now; without any, a heartbeat."""
        with self._lock:
            news = []
            while self._waiting:
                news.append(self._waiting.popleft())
            self._posted += 1
            _put(f"{self._prefix}{self._posted:09d}", to_bytes(news))

    def _post_again_and_again(self) -> None:
        pause = threading.Event()
        while True:
            self._has_news.clear()
            self.flush()
            pause.wait(_EVERY_S)
            self._has_news.wait(_ALIVE_EVERY_S)


class Inbox:
    """The driver's side: polls in its own thread and calls `on_news` with each message until closed."""

    def __init__(self, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self.address = Address(f"{secrets.token_hex(8)}.", logging.getLogger().getEffectiveLevel())
        self._silent_looks: dict[int, int] = {}  # of each worker that was heard from
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read_again_and_again, name="marlflow-inbox", daemon=True)
        self._thread.start()

    def _read_again_and_again(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self._read()
                self._notice_silence()
            self._read()
        except Exception as error:  # noqa: BLE001  whatever Ray raises when it is lost, which others notice and say
            log.info("news of the rollout workers can no longer be read: %s", error)

    def _read(self) -> None:
        for key in sorted(_keys(self.address.prefix)):
            found = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
            internal_kv._internal_kv_del(key, namespace=_NAMESPACE)
            self._silent_looks[_worker_of(key, self.address)] = 0
            for news in from_bytes(found) if found else ():
                self._on_news(news)

    def _notice_silence(self) -> None:
        for worker in self._silent_looks:
            looks = self._silent_looks[worker] = self._silent_looks[worker] + 1
            times, rest = divmod(looks, _SILENT_LOOKS)
            if not rest and times.bit_count() == 1:
                self._on_news(Silent(worker, looks * _EVERY_S))

    def close(self, answers: bool) -> None:
        """Stop polling; if Ray still `answers`, after reading the remaining messages."""
        self._over.set()
        if answers:
            self._thread.join(_READ_TIMEOUT_S)


def _worker_of(key: Any, address: Address) -> int:
    return int(key[len(address.prefix) :].partition(b".")[0])


def _put(key: str, value: bytes) -> None:
    internal_kv._internal_kv_put(key, value, namespace=_NAMESPACE)


def _keys(prefix: str) -> list[Any]:
    found: list[Any] = internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE)
    return found
