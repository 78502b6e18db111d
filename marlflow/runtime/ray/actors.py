"""Start, restart and kill the Ray actors of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import ray

REPLACING_TIMEOUT_S = 60.0
"""How long the successor of a lost process may take, and how long a run waits while it has no worker at all."""
_OF_RAY = re.compile(r":|_group_|memory$")
"""Resources that nobody asks for: of machines, of placement groups, and memory."""


class Actors:
    """Starts and kills the actors of a run.

    `options` has Ray's actor options of each process by name: CPUs, GPUs, custom resources, placement group bundle.
    """

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._options = options
        self._running: list[Any] = []

    def start(self, kind: type, what: str, *arguments: Any) -> Any:
        """Start an actor that hosts `kind(*arguments)` with the options of process `what`."""
        # Not by decorator: a decorated class would travel by value, with a copy of its module's globals. Ray's own
        # events of every call are for a dashboard that is not there.
        actor: Any = ray.remote(kind).options(enable_task_events=False, **self._options[what]).remote(*arguments)
        self._running.append(actor)
        return actor

    def threads(self, what: str) -> int:
        """Return the compute threads of a process: one per whole CPU reserved, at least one."""
        return max(1, int(self._options[what]["num_cpus"]))

    def end(self, actor: Any) -> None:
        """Kill an actor, whether or not it is still alive."""
        self._running.remove(actor)
        ray.kill(actor)

    def end_all(self) -> None:
        """Kill all actors."""
        for actor in self._running:
            ray.kill(actor)
        self._running.clear()

    def lack(self, what: str) -> str:
        """Describe what a process requests and what the cluster has free."""
        options = self._options[what]
        asked = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        shown = ", ".join(f"{amount:g} {name}" for name, amount in asked.items() if amount)
        return f"{what} asks for {shown or 'nothing'}, of which it has a reservation; {available()}"


WITHOUT_A_WORD = "it ended without a word: killed, out of memory, or crashed"


def cause(error: BaseException) -> str:
    """Return why an actor was lost, in one sentence of Ray's long message."""
    # When Ray itself ends processes because memory runs out, a page of figures follows the reason.
    text = " ".join(str(error).split()).partition(" OOM kill reason:")[0]
    found = re.search(r"pid: (\d+).*? ip: (\S+) (.*)", text)
    if found is None:
        return text
    process, machine, rest = found.groups()
    if "Worker unexpectedly exits" in rest:
        rest = WITHOUT_A_WORD
    return f"process {process} on {machine}: {rest}"


def never_ran(error: object) -> bool:
    """Return whether an actor was lost before it ran, because its machine was lost first."""
    return isinstance(error, ray.exceptions.RayActorError) and "never ran" in str(error)


def available() -> str:
    """Describe the cluster's total and free resources."""
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    named = {name: amount for name, amount in whole.items() if not _OF_RAY.search(name)}
    shown = (f"{free.get(name, 0.0):g} of {amount:g} {name}" for name, amount in named.items())
    machines = sum(name.startswith("node:") and not name.endswith("__") for name in whole)
    return f"free are {', '.join(shown)} on {machines} machine{'' if machines == 1 else 's'}"
