"""How much memory rows and weights take on their way."""

from __future__ import annotations

import grpc  # type: ignore[import-untyped]
from ray._private import state
from ray._private.internal_api import get_memory_info_reply

ANSWER_TIMEOUT_S = 5.0


def object_store_bytes() -> int | None:
    """Bytes that the object stores of all machines hold now; None if the raylet that is asked does not answer.

    One raylet asks all others: about 3 ms on one machine, so not for every round. Ray has no public way to it but its
    dashboard's.
    """
    try:
        reply = get_memory_info_reply(state.state, timeout_seconds=ANSWER_TIMEOUT_S)  # type: ignore[no-untyped-call]
    except (grpc.RpcError, AssertionError):  # Ray's own assertion: every raylet is dead
        return None
    return int(reply.store_stats.object_store_bytes_used)
