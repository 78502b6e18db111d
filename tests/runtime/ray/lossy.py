"""A run over Ray whose processes end on request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import ray

import marlflow as mf
from marlflow.base.serialization import from_bytes
from marlflow.runtime.ray import RayRuntime
from marlflow.sampling.receipts import Fault
from tests.runtime.driven_runs import DrivenRun, driven
from tests.runtime.ray.deadly import Deadly
from tests.runtime.ray.processes import assert_no_actor_is_left
from tests.runtime.small_runs import SMALL_DQN, policies, small_run


@dataclass
class Lossy:
    """A run, and how to make its processes die: in a step, or in a stage of the plan of `hunters`."""

    run: DrivenRun
    in_step: Path
    in_stage: Path
    faults_before: int = 0

    def new_faults(self) -> list[Fault]:
        """Since the last time."""
        found = self.run.faults[self.faults_before :]
        self.faults_before = len(self.run.faults)
        return found

    def all_back(self) -> None:
        """Waits for successors of workers."""
        if coming := [worker.ready_ref for worker in self.run.parts.workers.all if worker.ready_ref is not None]:
            ray.wait(coming, num_returns=len(coming))

    def kept(self) -> Any:
        """The learner's saved state."""
        return from_bytes(self.run.runtime.save({}).files["learner.hunters"])

    def assert_versions_never_repeat(self) -> None:
        updates = [update.version for update in self.run.updates["hunters"]]
        assert all(earlier < later for earlier, later in pairwise(updates))
        assert all(earlier <= later for earlier, later in pairwise(self.run.versions["hunters"]))


@contextmanager
def lossy_run(folder: Path, algorithm: Any, **settings: Any) -> Iterator[Lossy]:
    """Two workers, and `hunters` with the deadly algorithm beside DQN; at the end, no process may be left."""
    experiment = small_run(
        "ray",
        env=mf.Env(partial(Deadly, folder / "step"), num_envs=4),
        policies=policies(hunters=algorithm(**settings, marker=folder / "stage"), prey=SMALL_DQN),
    )
    with driven(experiment, RayRuntime()) as run:
        yield Lossy(run, folder / "step", folder / "stage")
    assert_no_actor_is_left()
