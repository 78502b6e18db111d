"""Through Ray's key-value store during calls: messages and heartbeats of rollout workers, and limits.

The call occupies the worker's actor thread, so a second thread posts messages, at most twice a second, and a heartbeat
every ten seconds. The driver reports workers that fall silent, for example in C code that holds Python's lock.

A process is busy with the update or round that is to end, and so takes no call. It asks the store instead, at most
once a second, between two minibatches or env steps, whether the driver has posted that the limit has passed. The
driver's clock decides, because the clocks of machines differ.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from marlflow.runtime.ray.private_api import forget, is_stored, store, stored, stored_keys
from marlflow.sampling.messages import News, Silent, from_bytes, to_bytes

_POLL_INTERVAL_S = 0.5
_READ_TIMEOUT_S = 5.0
_HEARTBEAT_S = 10.0
_SILENT_POLLS = 60
"""A worker is reported as silent after this many polls without a message, then after twice as many, and so on."""

log = logging.getLogger("marlflow")
_ASK_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class Address:
    """Where a run's workers post, and the level from which they forward log records."""

    prefix: str
    log_level: int


class Outbox:
    """Posts messages from this process, in order."""

    def __init__(self, address: Address, worker: int) -> None:
        # The random part keeps a replacement from overwriting messages of the lost worker.
        self._prefix = f"{address.prefix}{worker:06d}.{secrets.token_hex(4)}."
        self._waiting: deque[News] = deque()
        self._posted = 0
        self._lock, self._has_news = threading.Lock(), threading.Event()
        threading.Thread(target=self._post_loop, name="marlflow-outbox", daemon=True).start()

    def send(self, news: News) -> None:
        """Queue a message; does not wait."""
        self._waiting.append(news)
        self._has_news.set()

    def flush(self) -> None:
        """Post all queued messages, or a heartbeat if there are none."""
        with self._lock:
            news = []
            while self._waiting:
                news.append(self._waiting.popleft())
            self._posted += 1
            store(f"{self._prefix}{self._posted:09d}", to_bytes(news))

    def _post_loop(self) -> None:
        pause = threading.Event()
        while True:
            self._has_news.clear()
            self.flush()
            pause.wait(_POLL_INTERVAL_S)
            self._has_news.wait(_HEARTBEAT_S)


class Inbox:
    """Polls in a thread on the driver and calls `on_news` with each message until closed."""

    def __init__(self, on_news: Callable[[News], None]) -> None:
        self._on_news = on_news
        self.address = Address(f"{secrets.token_hex(8)}.", logging.getLogger().getEffectiveLevel())
        # Polls since the last message or heartbeat of each process that has sent one, by `worker.token`.
        self._silent_polls: dict[bytes, int] = {}
        self._lost: set[bytes] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._read_loop, name="marlflow-inbox", daemon=True)
        self._thread.start()

    def _read_loop(self) -> None:
        try:
            while not self._closed.wait(_POLL_INTERVAL_S):
                self._read()
                self._notice_silence()
            self._read()
        except Exception as error:  # noqa: BLE001  any error of a lost Ray, which is reported elsewhere
            log.info("news of the rollout workers can no longer be read: %s", error)

    def _read(self) -> None:
        for key in sorted(stored_keys(self.address.prefix)):
            # The value of this key is a batch of messages; a heartbeat has none.
            value = stored(key)
            forget(key)
            process, _, _ = key[len(self.address.prefix) :].rpartition(b".")
            with self._lock:
                if process not in self._lost:
                    self._silent_polls[process] = 0
            for news in from_bytes(value) if value else ():
                self._on_news(news)

    def _notice_silence(self) -> None:
        # Counted in polls, not seconds: if this process is suspended, no worker counts as silent.
        with self._lock:
            self._silent_polls = {process: polls + 1 for process, polls in self._silent_polls.items()}
            silent = list(self._silent_polls.items())
        for process, polls in silent:
            times, rest = divmod(polls, _SILENT_POLLS)
            # Report after 1, 2, 4, 8 ... times the limit.
            if not rest and times.bit_count() == 1:
                self._on_news(Silent(int(process.partition(b".")[0]), polls * _POLL_INTERVAL_S))

    def forget(self, worker: int) -> None:
        """Report no silence of a worker's process, which is lost; its replacement is heard from once it has begun."""
        with self._lock:
            lost = {process for process in self._silent_polls if int(process.partition(b".")[0]) == worker}
            # Its last messages may still come.
            self._lost |= lost
            self._silent_polls = {one: polls for one, polls in self._silent_polls.items() if one not in lost}

    def close(self, answers: bool) -> None:
        """Stop polling; if Ray `answers`, after reading the remaining messages."""
        self._closed.set()
        if answers:
            self._thread.join(_READ_TIMEOUT_S)


@dataclass(slots=True)
class PostedLimit:
    """A Limit in another process, which has passed while there is an entry `key` in the store."""

    key: str = field(default_factory=lambda: f"limit.{secrets.token_hex(8)}")
    _asked_at_s: float = field(default_factory=perf_counter, compare=False)
    _has_passed: bool = False

    def has_passed(self) -> bool:
        if (now_s := perf_counter()) - self._asked_at_s >= _ASK_EVERY_S:
            self._asked_at_s = now_s
            self._has_passed = is_stored(self.key)
        return self._has_passed

    def __reduce__(self) -> tuple[type[PostedLimit], tuple[str]]:
        return PostedLimit, (self.key,)


class LimitPost:
    """Posts on the driver, in a thread, that `limit` has passed, once it has."""

    def __init__(self) -> None:
        self.limit = PostedLimit()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_posted = self._is_closed = False

    def end_at(self, at_s: float) -> None:
        """Let the limit pass at `at_s` (time.perf_counter) instead of an earlier given time."""
        with self._lock:
            # A signal may come while the run ends.
            if self._is_closed:
                return
            self._cancel()
            if self._is_posted:
                forget(self.limit.key)
                self._is_posted = False
            self._timer = threading.Timer(at_s - perf_counter(), self._post)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Post nothing from now on."""
        with self._lock:
            self._is_closed = True
            self._cancel()

    def _post(self) -> None:
        with self._lock:
            # Another time was given, or the run has ended, while this thread started.
            if self._timer is threading.current_thread():
                store(self.limit.key, b"")
                self._is_posted = True

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
