"""How rollout workers tell the driver news while a call to them is under way: through Ray's own key-value store.

An actor's only thread is busy with the call, so a second thread posts, at most twice a second, what the first has to
say. The driver looks as often. No port is opened and no process is started for it, and it works wherever Ray does.
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

from marlflow.rollout.news import News, from_bytes, to_bytes

_NAMESPACE = b"marlflow"
_EVERY_S = 0.5
_READ_TIMEOUT_S = 5.0

log = logging.getLogger("marlflow")


@dataclass(frozen=True, slots=True)
class Address:
    """Where a run's workers post, and from which level up they pass log records on."""

    prefix: str
    log_level: int


class Outbox:
    """Posts news from this process, in order."""

    def __init__(self, address: Address, worker: int) -> None:
        # A worker that is replaced must not write over what its predecessor posted.
        self._prefix = f"{address.prefix}{worker:06d}.{secrets.token_hex(4)}."
        self._waiting: deque[News] = deque()
        self._posted = 0
        self._lock, self._has_news = threading.Lock(), threading.Event()
        threading.Thread(target=self._post_again_and_again, name="marlflow-outbox", daemon=True).start()

    def send(self, news: News) -> None:
        """Posts it soon; waits for nothing."""
        self._waiting.append(news)
        self._has_news.set()

    def flush(self) -> None:
        """Returns when all that was sent is posted."""
        with self._lock:
            news = []
            while self._waiting:
                news.append(self._waiting.popleft())
            if news:
                self._posted += 1
                _put(f"{self._prefix}{self._posted:09d}", to_bytes(news))

    def _post_again_and_again(self) -> None:
        pause = threading.Event()
        while self._has_news.wait():
            self._has_news.clear()
            self.flush()
            pause.wait(_EVERY_S)


class Inbox:
    """The driver's side: calls `on_news` in a thread of its own, until it is closed."""

    def __init__(self, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self.address = Address(f"{secrets.token_hex(8)}.", logging.getLogger().getEffectiveLevel())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._read_again_and_again, name="marlflow-inbox", daemon=True)
        self._thread.start()

    def _read_again_and_again(self) -> None:
        try:
            while not self._over.wait(_EVERY_S):
                self._read()
            self._read()
        except Exception as error:  # noqa: BLE001  whatever Ray raises when it is lost, which others notice and say
            log.info("news of the rollout workers can no longer be read: %s", error)

    def _read(self) -> None:
        for key in sorted(_keys(self.address.prefix)):
            found = internal_kv._internal_kv_get(key, namespace=_NAMESPACE)
            internal_kv._internal_kv_del(key, namespace=_NAMESPACE)
            for news in from_bytes(found) if found else ():
                self._on_news(news)

    def close(self, answers: bool) -> None:
        """Ends; if Ray still `answers`, once all is read that is there."""
        self._over.set()
        if answers:
            self._thread.join(_READ_TIMEOUT_S)


def _put(key: str, value: bytes) -> None:
    internal_kv._internal_kv_put(key, value, namespace=_NAMESPACE)


def _keys(prefix: str) -> list[Any]:
    found: list[Any] = internal_kv._internal_kv_list(prefix, namespace=_NAMESPACE)
    return found
