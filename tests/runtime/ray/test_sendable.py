"""Operators that cannot be sent to another process are named, in one error."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import marlflow as mf
from marlflow.flow import StageCall
from marlflow.flow.traits import NO_TRAITS
from marlflow.runtime.ray.host import check_sendable


class Locked:
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, batch: Any) -> Any:
        return batch


def test_an_operator_that_cannot_be_sent_is_named() -> None:
    calls = [StageCall(operator, None, NO_TRAITS, False) for operator in (mf.Normalize(), lambda batch: batch)]
    check_sendable(calls, "learner cart")
    with pytest.raises(mf.ConfigInvalid) as caught:
        check_sendable([*calls, StageCall(Locked(), None, NO_TRAITS, False)], "learner cart")
    assert str(caught.value) == (
        "the stage Locked cannot be sent to the process of learner cart, where it runs: cannot pickle "
        "'_thread.lock' object; make it in __setstate__, or run with runtime=inline"
    )
