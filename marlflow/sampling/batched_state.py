"""Save and restore what a worker with batched environments carries between collects.

Running episodes are saved as snapshots of the environment, by environment; without them they restart from their seeds.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.serialization import Tree
from marlflow.env import BatchedStep
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.episodes import RESTARTED_EPISODE
from marlflow.sampling.open_tables import TableByEnv, restore_open
from marlflow.sampling.saved_state import StateTable, by_lane
from marlflow.sampling.worker_state import INFOS, WorkerState

_SNAPSHOT, _LANES = "snapshot", "batched_lanes"


@dataclass(frozen=True, slots=True)
class SnapshotState(WorkerState):
    """The state of a worker whose batched environments save their running episodes, with the table `snapshot`."""

    envs: BatchedEnvPool

    def replayable(self) -> Collection[int]:
        # There is no history of actions, so a worker that steps these environments one by one restarts episodes.
        return ()

    def tables(self, running: Sequence[int]) -> dict[str, StateTable]:
        known = self.runner.lanes.assigned_in(running)
        tables = self.lane_tables(running, _LANES, known, {"alive": self.envs.alive[known]})
        if self.envs.can_be_saved and running:
            indices = np.array(running, np.int64)
            columns = {f"env_{name}": column for name, column in self.envs.get_state(indices).items()}
            tables[_SNAPSHOT] = {"env": np.array(self.envs.env_indices, np.int64)[indices], **columns}
        return tables

    def continue_episodes(
        self, running: Sequence[Tree], tables: Mapping[str, TableByEnv], replay_max_env_steps: int
    ) -> tuple[list[int], int]:
        del replay_max_env_steps  # Nothing is replayed.
        saved = set(tables[_SNAPSHOT].env.tolist()) if _SNAPSHOT in tables and self.envs.can_be_saved else set()
        intact = self._begin([env for env in running if env["env"] in saved], 0)
        of_intact = [env["env"] for env in intact]
        if intact:
            kept = {name: table.of(of_intact) for name, table in tables.items()}
            try:
                self._restore(self._indices(intact), kept)
            except EnvironmentFailed:
                # The environment has changed since: its episodes restart.
                of_intact = []
        # Rows of these episodes were delivered already; the restarted ones need other numbers.
        restarted = self._begin([env for env in running if env["env"] not in of_intact], RESTARTED_EPISODE)
        if restarted:
            seeds = np.array([env["running"]["seed"] for env in restarted], np.int64)
            for failure in self.envs.reset(self._indices(restarted), seeds).broken.values():
                raise failure
        self.runner.resume()
        return of_intact, len(restarted)

    def _begin(self, envs: Sequence[Tree], added: int) -> list[Tree]:
        """Assign the lanes of saved episodes their policies and random streams; return the episodes that continue.

        The others are abandoned: a policy that played in them cannot play there any more.
        """
        begun = []
        for env in envs:
            index, running = self.index(env), env["running"]
            episode = running["episode"] + added
            try:
                self.runner.lanes.begin(index, episode, running["matchup"], self.envs.first, self.episodes)
            except EnvironmentFailed:
                self.runner.lanes.abandon(index)
                continue
            self.envs.seeds[index] = running["seed"]
            self.envs.env_steps[index] = 0 if added else running["env_steps"]
            begun.append(env)
        return begun

    def _indices(self, envs: Sequence[Tree]) -> Array:
        return np.array([self.index(env) for env in envs], np.int64)

    def _restore(self, indices: Array, tables: Mapping[str, StateTable]) -> None:
        lanes, env_indices = self.runner.lanes, self.envs.env_indices
        columns = {n.removeprefix("env_"): c for n, c in tables[_SNAPSHOT].items() if n.startswith("env_")}
        step: BatchedStep = self.envs.set_state(indices, columns)
        of_lane = by_lane(tables[_LANES], env_indices, lanes.stride)
        at = of_lane["lane"]
        lanes.returns[at], lanes.t_agent[at] = of_lane["returns"], of_lane["t_agent"]
        if INFOS in tables:
            infos = by_lane(tables[INFOS], env_indices, lanes.stride)
            for name, column in zip(lanes.columns.names, lanes.infos, strict=True):
                # Columns that were not read before are not known.
                column[infos["lane"]] = infos.get(name, np.nan)
            lanes.has_infos = True
        alive = np.zeros(len(self.envs.alive), bool)
        alive[at] = of_lane["alive"]
        restore_open(tables, env_indices, lanes, self.builder, self.policy_slots)
        self.envs.show(indices, step, alive)
