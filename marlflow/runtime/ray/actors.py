"""A run's actors: each is started where its bundle is, again if it was lost, and all are ended together."""

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
    """Starts and ends actors. `options` has for each process of the run, by what it is, how Ray is to start it."""

    def __init__(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        self._options = options
        self._running: list[Any] = []

    def start(self, kind: type, what: str, *arguments: Any) -> Any:
        """An actor that hosts `kind(*arguments)`, where the process called `what` is to be."""
        # Not by decorator: a decorated class would travel by value, with a copy of its module's globals. Ray's own
        # events of every call are for a dashboard that is not there.
        actor: Any = ray.remote(kind).options(enable_task_events=False, **self._options[what]).remote(*arguments)
        self._running.append(actor)
        return actor

    def threads(self, what: str) -> int:
        """How many threads a process computes with: one for each whole CPU that it has reserved."""
        return max(1, int(self._options[what]["num_cpus"]))

    def end(self, actor: Any) -> None:
        """Ends an actor, which may be dead already."""
        self._running.remove(actor)
        ray.kill(actor)

    def end_all(self) -> None:
        """Ends all that run."""
        for actor in self._running:
            ray.kill(actor)
        self._running.clear()

    def lack(self, what: str) -> str:
        """What a process asks for, and what the cluster has free, in words."""
        options = self._options[what]
        asked = {"CPU": options["num_cpus"], "GPU": options["num_gpus"], **options["resources"]}
        shown = ", ".join(f"{amount:g} {name}" for name, amount in asked.items() if amount)
        return f"{what} asks for {shown or 'nothing'}, of which it has a reservation; {available()}"


WITHOUT_A_WORD = "it ended without a word: killed, out of memory, or crashed"


def cause(error: BaseException) -> str:
    """Why an actor was lost, in one sentence of the several that Ray has for it."""
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
    """Whether an actor was lost before it began: it was to go to a machine that was lost too, as Ray learned later."""
    return isinstance(error, ray.exceptions.RayActorError) and "never ran" in str(error)


def available() -> str:
    """What the cluster has, and has free, in words."""
    whole: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    free: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    named = {name: amount for name, amount in whole.items() if not _OF_RAY.search(name)}
    shown = (f"{free.get(name, 0.0):g} of {amount:g} {name}" for name, amount in named.items())
    machines = sum(name.startswith("node:") and not name.endswith("__") for name in whole)
    return f"free are {', '.join(shown)} on {machines} machine{'' if machines == 1 else 's'}"
