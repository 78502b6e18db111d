"""Joins a Ray cluster that is there already, and says within seconds if none is."""

from __future__ import annotations

import re
import socket

import ray

from marlflow.base.errors import ConfigInvalid

_ANSWERS_WITHIN_S = 5.0


def join(address: str, *, logging_level: int, log_to_driver: bool) -> None:
    """Connects this process to the cluster at `address`; raises ConfigInvalid if nothing answers there.

    Ray itself would ask again for minutes, and could not be interrupted.
    """
    remedy = "start one there with `ray start --head`, or leave runtime.address null"
    if found := re.fullmatch(r"(?:ray://)?([^/:]+):(\d+)", address):
        try:
            socket.create_connection((found[1], int(found[2])), _ANSWERS_WITHIN_S).close()
        except OSError as error:
            raise ConfigInvalid(
                [f"runtime.address={address}: no Ray cluster answers there ({error}); {remedy}"]
            ) from None
    try:
        ray.init(address=address, logging_level=logging_level, log_to_driver=log_to_driver)
    except (ConnectionError, ValueError) as error:
        raise ConfigInvalid(
            [f"runtime.address={address}: no Ray cluster could be joined ({error}); {remedy}"]
        ) from error
