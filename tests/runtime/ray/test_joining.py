"""A cluster that does not answer is said at once, before Ray begins to ask again and again."""

from __future__ import annotations

import logging
import socket

import pytest
import ray

from marlflow.base.errors import ConfigInvalid
from marlflow.runtime.ray.joining import join


def closed_port() -> int:
    """One that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nobody_answers_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked to join it"))
    address = f"{scheme}127.0.0.1:{closed_port()}"
    with pytest.raises(ConfigInvalid, match=f"runtime.address={address}: no Ray cluster answers there"):
        join(address, logging_level=logging.ERROR, log_to_driver=False)


def test_what_ray_does_not_find_is_told_in_our_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(**_: object) -> None:
        raise ConnectionError("Could not find any running Ray instance")

    monkeypatch.setattr(ray, "init", refuses)
    with pytest.raises(ConfigInvalid, match=r"runtime.address=auto: no Ray cluster could be joined .*ray start --head"):
        join("auto", logging_level=logging.ERROR, log_to_driver=False)
