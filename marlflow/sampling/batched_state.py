"""Save and restore what a worker with batched environments carries between collects.

Running episodes are saved as snapshots of the environment, by environment; without them they restart from their seeds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import EnvironmentFailed
from marlflow.base.serialization import Tree
from marlflow.env import BatchedStep
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.batched_runner import BatchedRunner
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.open_tables import TableByEnv, check_columns, open_tables, restore_open
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.saved_state import ResumeReport, StateTable, by_env, by_lane
from marlflow.sampling.segment_builder import SegmentBuilder

_SNAPSHOT = "snapshot"


@dataclass(frozen=True, slots=True)
class BatchedWorkerState:
    """The state of a worker between two collects; the segment builder has room for a cell."""

    envs: BatchedEnvPool
    policy_slots: list[PolicySlots]
    builder: SegmentBuilder
    episodes: TrainingEpisodes
    runner: BatchedRunner

    def state(self) -> Tree:
        """Return the state by environment (see `saved_state`), with the tables `snapshot` and `batched_lanes`."""
        running, next_episodes = self.runner.running, self.episodes.next_episodes
        return {
            "agents": list(self.envs.first.agents),
            "envs": [
                {
                    "env": env_index,
                    "next_episode": next_episodes[env_index],
                    "running": self._running(index, running[index]) if index in running else None,
                }
                for index, env_index in enumerate(self.envs.env_indices)
            ],
            "tables": self._tables(list(running)),
        }

    def _running(self, index: int, env_steps: int) -> Tree:
        lanes = self.runner.lanes
        return {
            "episode": int(lanes.episode[lanes.of(index).start]),
            "seed": int(self.envs.seeds[index]),
            "env_steps": env_steps,
            "matchup": dict(lanes.matchups[index]),
            "agents": None,
            # There is no history of actions, so a worker that steps these environments one by one restarts episodes.
            "whole": False,
        }

    def _tables(self, running: Sequence[int]) -> dict[str, StateTable]:
        lanes, env_indices = self.runner.lanes, self.envs.env_indices
        known = lanes.assigned_in(running)
        of_lanes = {
            "batched_lanes": {
                "lane": known,
                "returns": lanes.returns[known],
                **({"costs": lanes.costs[known]} if self.envs.reads_costs else {}),
                "t_agent": lanes.t_agent[known],
                "alive": self.runner.alive[known],
            },
            **open_tables(known, lanes.entry_of, self.builder, self.policy_slots),
        }
        tables: dict[str, StateTable] = {n: by_env(table, env_indices, lanes.stride) for n, table in of_lanes.items()}
        if self.envs.can_be_saved and running:
            indices = np.array(running, np.int64)
            columns = {f"env_{name}": column for name, column in self.envs.get_state(indices).items()}
            tables[_SNAPSHOT] = {"env": np.array(env_indices, np.int64)[indices], **columns}
        return tables

    def load_state(self, tree: Tree, replay_max_env_steps: int) -> ResumeReport:
        """Restore the `state` of these environments before the first collect.

        `replay_max_env_steps` does not matter, because nothing is replayed. Raises CheckpointUnusable if agents or
        policies' columns differ.
        """
        del replay_max_env_steps
        check_columns(tree, self.envs.first, self.policy_slots)
        self.episodes.resume_at({env["env"]: env["next_episode"] for env in tree["envs"]})
        tables = {name: TableByEnv(table) for name, table in tree["tables"].items()}
        saved = set(tables[_SNAPSHOT].env.tolist()) if _SNAPSHOT in tables and self.envs.can_be_saved else set()
        # Another number of workers has saved the environments in another order.
        running = sorted((env for env in tree["envs"] if env["running"] is not None), key=self._index)
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
            indices = self._indices(restarted)
            step = self.envs.reset(indices, np.array([env["running"]["seed"] for env in restarted], np.int64))
            self.runner.restore(indices, step, np.ones(len(self.runner.alive), bool))
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.env) - len(table.of(of_intact)["env"]) for table in open_rows)
        return ResumeReport(len(running) - len(of_intact) - len(restarted), len(restarted), lost)

    def _begin(self, envs: Sequence[Tree], added: int) -> list[Tree]:
        """Assign the lanes of saved episodes their policies and random streams; return the episodes that continue.

        The others are abandoned: a policy that played in them cannot play there any more.
        """
        begun = []
        for env in envs:
            index, running = self._index(env), env["running"]
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
        return np.array([self._index(env) for env in envs], np.int64)

    def _index(self, env: Tree) -> int:
        return self.envs.env_indices.index(env["env"])

    def _restore(self, indices: Array, tables: Mapping[str, StateTable]) -> None:
        lanes, env_indices = self.runner.lanes, self.envs.env_indices
        columns = {n.removeprefix("env_"): c for n, c in tables[_SNAPSHOT].items() if n.startswith("env_")}
        step: BatchedStep = self.envs.set_state(indices, columns)
        of_lane = by_lane(tables["batched_lanes"], env_indices, lanes.stride)
        at = of_lane["lane"]
        lanes.returns[at], lanes.t_agent[at] = of_lane["returns"], of_lane["t_agent"]
        # Costs that were not read before are not known.
        lanes.costs[at] = of_lane.get("costs", 0.0)
        alive = np.zeros(len(self.runner.alive), bool)
        alive[at] = of_lane["alive"]
        restore_open(tables, env_indices, lanes, self.builder, self.policy_slots)
        self.runner.restore(indices, step, alive)
