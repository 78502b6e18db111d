"""Find the Ray cluster that a run joins: `runtime.address`, else the environment variable RAY_ADDRESS.

Ray's own programs read RAY_ADDRESS, and `ray job submit` and cluster launchers set it.
"""

from __future__ import annotations

import os

from marlflow.config.experiment import RuntimeConfig

_NONE = "local"


def cluster_address(runtime: RuntimeConfig) -> str | None:
    """Return the address of the cluster that the run joins, or None if Ray is started for it."""
    address = runtime.address or os.environ.get("RAY_ADDRESS") or _NONE
    return None if runtime.name == "inline" or address == _NONE else address


def cluster_setting(runtime: RuntimeConfig) -> str:
    """Return what chose the cluster, for messages: `RAY_ADDRESS=10.0.0.1:6379`."""
    return f"{'runtime.address' if runtime.address else 'RAY_ADDRESS'}={cluster_address(runtime)}"
