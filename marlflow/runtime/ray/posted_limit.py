"""The limit of updates over Ray: the driver posts in Ray's key-value store that it has passed.

A learner's process is busy with the update that is to end, and so takes no call. It asks the store instead, at most
once a second, between two minibatches. The driver's clock decides, because the clocks of machines differ.
"""

from __future__ import annotations

import secrets
import threading
from dataclasses import dataclass, field
from time import perf_counter

from ray.experimental import internal_kv

_NAMESPACE = b"marlflow"
_ASK_EVERY_S = 1.0


@dataclass(slots=True)
class PostedLimit:
    """An UpdateLimit in a learner's process, which has passed while there is an entry `key` in the store."""

    key: str = field(default_factory=lambda: f"updates_end.{secrets.token_hex(8)}")
    _asked_at_s: float = field(default_factory=perf_counter, compare=False)
    _has_passed: bool = False

    def has_passed(self) -> bool:
        if (now_s := perf_counter()) - self._asked_at_s >= _ASK_EVERY_S:
            self._asked_at_s = now_s
            self._has_passed = bool(internal_kv._internal_kv_exists(self.key, namespace=_NAMESPACE))
        return self._has_passed

    def __reduce__(self) -> tuple[type[PostedLimit], tuple[str]]:
        return PostedLimit, (self.key,)


class LimitPost:
    """Posts on the driver, in a thread, that `limit` has passed, once it has."""

    def __init__(self) -> None:
        self.limit = PostedLimit()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._is_posted = False

    def end_at(self, at_s: float) -> None:
        """Let the limit pass at `at_s` (time.perf_counter) instead of an earlier given time."""
        with self._lock:
            self._cancel()
            if self._is_posted:
                internal_kv._internal_kv_del(self.limit.key, namespace=_NAMESPACE)
                self._is_posted = False
            self._timer = threading.Timer(at_s - perf_counter(), self._post)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Post nothing from now on."""
        with self._lock:
            self._cancel()

    def _post(self) -> None:
        with self._lock:
            # Another time was given, or the run has ended, while this thread started.
            if self._timer is threading.current_thread():
                internal_kv._internal_kv_put(self.limit.key, b"", namespace=_NAMESPACE)
                self._is_posted = True

    def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
