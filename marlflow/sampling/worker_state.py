"""Save and restore the state that a rollout worker carries between collects.

Not saved: weights and scheduled values, which every collect is given, and environments. Running episodes of batched
environments are saved as their simulators' states; others are replayed (`replayed_state`). An episode that cannot be
continued restarts from its seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.errors import CheckpointUnusable, EnvironmentFailed
from marlflow.base.serialization import Tree
from marlflow.sampling.acting_policy import ActingPolicy
from marlflow.sampling.batched_pool import BatchedEnvPool
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.runner import Runner
from marlflow.sampling.saved_state import ResumeReport, StateTable, by_env, by_lane, only_rows
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.step_buffer import ranges

INFOS = "infos"
"""The table of the info columns of running episodes."""
_SNAPSHOT, _LANES = "snapshot", "batched_lanes"


class TableByEnv:
    """A saved table, from which the rows of some environments are taken."""

    def __init__(self, table: StateTable) -> None:
        self._table, self.env = table, table["env"]
        self._order = np.argsort(self.env, kind="stable")
        self._sorted = self.env[self._order]

    def of(self, env_indices: Sequence[int]) -> StateTable:
        """Return the rows of `env_indices`."""
        ends = [np.searchsorted(self._sorted, env_indices, side) for side in ("left", "right")]
        return only_rows(self._table, self._order[ranges(ends[0], ends[1] - ends[0])])


@dataclass(frozen=True, slots=True)
class WorkerState(ABC):
    """The state of a worker between two collects; the segment builder has room for a cell."""

    envs: EnvSource
    builder: SegmentBuilder
    episodes: TrainingEpisodes
    runner: Runner

    @property
    def acting_policies(self) -> Sequence[ActingPolicy]:
        """All policies and cohorts, by number."""
        return self.runner.lanes.table.acting_policies

    def state(self) -> Tree:
        """Return the state by environment (see `saved_state`)."""
        first, running, next_episodes = self.envs.first, self.runner.running, self.episodes.next_episodes
        replayable = self.replayable()
        return {
            "agents": list(first.agents) if first.declared else None,
            "envs": [
                {
                    "env": env_index,
                    "next_episode": next_episodes[env_index],
                    "agents": self.envs.seated(index),
                    "running": self._running(index, index in replayable) if index in running else None,
                }
                for index, env_index in enumerate(self.envs.env_indices)
            ],
            "tables": self.tables(list(running)),
        }

    def _running(self, index: int, whole: bool) -> Tree:
        lanes = self.runner.lanes
        return {
            "episode": int(lanes.episode[lanes.of(index).start]),
            "seed": int(self.envs.seeds[index]),
            "env_steps": int(self.envs.env_steps[index]),
            "matchup": dict(lanes.matchups[index]),
            "whole": whole,
        }

    def lane_tables(
        self, running: Sequence[int], name: str, at: Array, columns: Mapping[str, Array]
    ) -> dict[str, StateTable]:
        """Return the open rows and memories of the episodes in `running`, and the table `name` of the lanes `at`.

        It has `columns`, returns, and agent steps. The info columns so far are the table `infos`, if they have any
        number.
        """
        lanes = self.runner.lanes
        of_lanes = {"lane": at, "returns": lanes.returns[at], "t_agent": lanes.t_agent[at], **columns}
        tables = {name: of_lanes, "open": self.builder.open_rows()}
        known = lanes.assigned_in(running)
        for number, acting in enumerate(self.acting_policies):
            if acting.buffer is not None:
                tables[f"rows.{acting.policy}"] = self.builder.seen_in_open_rows(number, acting.buffer)
            # A policy without lanes gets no saved table: a frozen entry may be in the table of weights and play no
            # agent.
            played = known[lanes.entry_of[known] == number]
            if acting.memory is not None and len(played):
                tables[f"memory.{acting.policy}"] = {"lane": played, **acting.memory.state(played)}
        if lanes.has_infos:
            tables[INFOS] = {"lane": at, **dict(zip(lanes.columns.names, lanes.infos[:, at], strict=True))}
        return {n: by_env(table, self.envs.env_indices, lanes.stride) for n, table in tables.items()}

    def load_state(self, tree: Tree, replay_max_env_steps: int) -> ResumeReport:
        """Restore the `state` of these environments before the first collect.

        Episodes of more than `replay_max_env_steps` are not replayed. Raises CheckpointUnusable if agents or policies'
        columns differ.
        """
        self._check_columns(tree)
        self.episodes.resume_at({env["env"]: env["next_episode"] for env in tree["envs"]})
        tables = {name: TableByEnv(table) for name, table in tree["tables"].items()}
        for env in tree["envs"]:
            # The order of appearance is the order of rows. Older checkpoints have it only if an episode is running.
            agents = env["agents"] if "agents" in env else (env["running"] or {}).get("agents")
            if agents is not None:
                self.envs.seat(self.index(env), agents)
            elif "agents" in env and not self.envs.first.declared:
                # It broke, and would have been opened again.
                self.envs.discard([self.index(env)])
        # If the number of workers differed, the environments were saved in another order.
        running = sorted((env for env in tree["envs"] if env["running"] is not None), key=self.index)
        intact, restarted = self.continue_episodes(running, tables, replay_max_env_steps)
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.env) - len(table.of(intact)["env"]) for table in open_rows)
        return ResumeReport(len(running) - len(intact) - restarted, restarted, lost)

    def _check_columns(self, tree: Tree) -> None:
        """Raise CheckpointUnusable if a saved state has other agents, or other columns of a policy."""
        none, adapter, tables, problems = np.empty(0, np.int64), self.envs.first, tree["tables"], []
        agents = list(adapter.agents) if adapter.declared else None
        if tree["agents"] != agents:
            problems.append(f"the environment has agents {agents}, and what is kept is of {tree['agents']}")
        for acting in self.acting_policies:
            wanted = {
                "rows": None if acting.buffer is None else {n: c[:0, 0] for n, c in acting.buffer.data.items()},
                "memory": None if acting.memory is None else acting.memory.state(none),
            }
            for kind, columns in wanted.items():
                saved, current = _column_types(tables.get(f"{kind}.{acting.policy}")), _column_types(columns)
                # Saved rows of a policy that is not recorded any more are ignored.
                must_match = kind == "memory" or columns is not None
                if f"{kind}.{acting.policy}" in tables and must_match and saved != current:
                    problems.append(
                        f"the {kind} of policy {acting.policy!r} are kept as {saved}, and now are {current}"
                    )
        if problems:
            raise CheckpointUnusable(problems)

    def by_lane(self, table: StateTable) -> dict[str, Array]:
        """Return a saved table with the `lane` of each row."""
        return by_lane(table, self.envs.env_indices, self.runner.lanes.stride)

    def restore_open(self, tables: Mapping[str, StateTable]) -> None:
        """Restore the open rows and memories of resumed episodes."""
        # The observations of open rows were not saved for a policy that was not recorded, so these rows are dropped.
        numbered = enumerate(self.acting_policies)
        new = [n for n, acting in numbered if acting.buffer is not None and f"rows.{acting.policy}" not in tables]
        opened = self.by_lane(tables["open"])
        self.builder.reopen(only_rows(opened, ~np.isin(self.runner.lanes.entry_of[opened["lane"]], new)))
        for acting in self.acting_policies:
            if acting.buffer is not None and (rows := tables.get(f"rows.{acting.policy}")) is not None:
                of_lane = self.by_lane(rows)
                acting.buffer.reopen(acting.buffer.rows_of(of_lane["lane"]), of_lane)
            if acting.memory is not None and (memory := tables.get(f"memory.{acting.policy}")) is not None:
                of_lane = self.by_lane(memory)
                acting.memory.load_state(of_lane["lane"], of_lane)

    def index(self, env: Tree) -> int:
        """Return the position of a saved environment among this worker's environments."""
        return self.envs.env_indices.index(env["env"])

    @abstractmethod
    def replayable(self) -> Collection[int]:
        """Return the environments whose running episodes can be replayed."""

    @abstractmethod
    def tables(self, running: Sequence[int]) -> dict[str, StateTable]:
        """Return the saved tables of the episodes in `running`."""

    @abstractmethod
    def continue_episodes(
        self, running: Sequence[Tree], tables: Mapping[str, TableByEnv], replay_max_env_steps: int
    ) -> tuple[list[int], int]:
        """Continue saved episodes, or restart them from their seeds.

        Returns the `env_indices` of the episodes that continue, and how many were restarted; the others are discarded.
        """


def _column_types(columns: StateTable | None) -> dict[str, str] | None:
    if columns is None:
        return None
    return {n: f"{c.dtype} {list(c.shape[1:])}" for n, c in columns.items() if n not in ("env", "slot")}


@dataclass(frozen=True, slots=True)
class SavedEpisodesState(WorkerState):
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
        lanes = self.runner.lanes
        columns = {n.removeprefix("env_"): c for n, c in tables[_SNAPSHOT].items() if n.startswith("env_")}
        step = self.envs.set_state(indices, columns)
        of_lane = self.by_lane(tables[_LANES])
        at = of_lane["lane"]
        lanes.returns[at], lanes.t_agent[at] = of_lane["returns"], of_lane["t_agent"]
        if INFOS in tables:
            infos = self.by_lane(tables[INFOS])
            for name, column in zip(lanes.columns.names, lanes.infos, strict=True):
                # Columns that were not read before are not known.
                column[infos["lane"]] = infos.get(name, np.nan)
            lanes.has_infos = True
        alive = np.zeros(len(self.envs.alive), bool)
        alive[at] = of_lane["alive"]
        self.restore_open(tables)
        self.envs.show(indices, step, alive)
