"""Start, restart and kill the Ray actors of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ray
from ray.util.placement_group import placement_group_table

RESTART_TIMEOUT_S = 60.0
"""Seconds allowed for restarting a lost actor, and for waiting while no rollout worker is ready."""
_INTERNAL_RESOURCE = re.compile(r":|_group_|memory$")
"""Names of Ray's own resources: of machines, of placement groups, and memory."""

UNEXPLAINED_EXIT = "it ended without a word: killed, out of memory, or crashed"


class Actors:
    """Starts and kills the actors of a run.

    `options` has Ray's actor options by process name: CPUs, GPUs, resources, placement group bundle.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._options = options
        self._running: list[Any] = []

    def start(self, kind: type, process: str, *arguments: Any) -> Any:
        """Start an actor that hosts `kind(*arguments)`, with the options of `process`."""
        # Not decorated with @ray.remote: a decorated class is pickled by value, with a copy of its module's globals.
        # Task events are only for Ray's dashboard, which does not run.
        actor: Any = ray.remote(kind).options(enable_task_events=False, **self._options[process]).remote(*arguments)
        self._running.append(actor)
        return actor

    def threads(self, process: str) -> int:
        """Return a process's compute threads: one per whole reserved CPU, at least one."""
        return max(1, int(self._options[process]["num_cpus"]))

    def kill(self, actor: Any) -> None:
        """Kill an actor, dead or alive."""
        self._running.remove(actor)
        ray.kill(actor)

    def kill_all(self) -> None:
        """Kill all actors."""
        for actor in self._running:
            ray.kill(actor)
        self._running.clear()

    def describe_shortage(self, process: str) -> str:
        """Describe the resources that a process requests, and the free resources of the cluster."""
        options = self._options[process]
        requested = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        listing = ", ".join(f"{amount:g} {name}" for name, amount in requested.items() if amount)
        return f"{process} asks for {listing or 'nothing'}{_reserved(options)}; {_free(requested)}"


def cause(error: BaseException) -> str:
    """Return why an actor was lost, in one sentence."""
    # When Ray's memory monitor kills a process, a page of statistics follows the reason.
    text = " ".join(str(error).split()).partition(" OOM kill reason:")[0]
    match = re.search(r"pid: (\d+).*? ip: (\S+) (.*)", text)
    if match is None:
        return text
    process, machine, rest = match.groups()
    # Ray does not know the reason either if the process was killed from outside.
    if "Worker unexpectedly exits" in rest:
        rest = UNEXPLAINED_EXIT
    return f"process {process} on {machine}: {rest}"


def never_ran(error: object) -> bool:
    """Return whether an actor was lost before it had a process, together with its machine."""
    # Ray also says "never ran" about an actor whose process ended while it started.
    text = str(error) if isinstance(error, ray.exceptions.RayActorError) else ""
    return "never ran" in text and "its worker process has died" not in text


def _reserved(options: Mapping[str, Any]) -> str:
    strategy = options.get("scheduling_strategy")
    if strategy is None:
        return ""
    is_held = placement_group_table(strategy.placement_group).get("state") == "CREATED"
    return ", of which it has a reservation" if is_held else ", whose reservation was lost with a machine"


def _free(requested: Mapping[str, float]) -> str:
    """Describe the cluster's total and free resources, with a 0 for `requested` ones that it has not."""
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    of_all = {**whole, **{name: whole.get(name, 0.0) for name, amount in requested.items() if amount}}
    listed = {name: amount for name, amount in of_all.items() if not _INTERNAL_RESOURCE.search(name)}
    amounts = (f"{free.get(name, 0.0):g} of {amount:g} {name}" for name, amount in listed.items())
    # Each machine has one resource `node:<ip>`; the head node also has `node:__internal_head__`.
    machines = sum(name.startswith("node:") and not name.endswith("__") for name in whole)
    return f"free are {', '.join(amounts)} on {machines} machine{'' if machines == 1 else 's'}"
