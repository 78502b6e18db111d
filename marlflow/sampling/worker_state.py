"""Save and restore what a rollout worker carries between collects.

Not saved: weights and scheduled values, which every collect is given, and environments. Their running episodes are
replayed here, and restored from snapshots in `batched_state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.serialization import Tree
from marlflow.env import StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.env_source import EnvSource
from marlflow.sampling.episode_replayer import FAILURES, EpisodeReplayer
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.open_tables import TableByEnv, check_columns, open_tables, restore_open
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.runner import Runner
from marlflow.sampling.saved_state import ResumeReport, StateTable, by_env
from marlflow.sampling.segment_builder import SegmentBuilder


@dataclass(frozen=True, slots=True)
class WorkerState(ABC):
    """The state of a worker between two collects; the segment builder has room for a cell."""

    envs: EnvSource
    policy_slots: list[PolicySlots]
    builder: SegmentBuilder
    episodes: TrainingEpisodes
    runner: Runner

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
        """Return the open tables of the episodes in `running`, and the table `name` of the lanes `at`.

        It has `columns`, returns, and agent steps. What infos gave so far is the table `infos`, if they gave anything.
        """
        lanes = self.runner.lanes
        of_lanes = {
            "lane": at,
            "returns": lanes.returns[at],
            "t_agent": lanes.t_agent[at],
            **columns,
        }
        opened = open_tables(lanes.assigned_in(running), lanes.entry_of, self.builder, self.policy_slots)
        tables = {name: of_lanes, **opened}
        if lanes.has_infos:
            tables[INFOS] = {"lane": at, **dict(zip(lanes.columns.names, lanes.infos[:, at], strict=True))}
        return {n: by_env(table, self.envs.env_indices, lanes.stride) for n, table in tables.items()}

    def load_state(self, tree: Tree, replay_max_env_steps: int) -> ResumeReport:
        """Restore the `state` of these environments before the first collect.

        Episodes of more than `replay_max_env_steps` are not replayed. Raises CheckpointUnusable if agents or policies'
        columns differ.
        """
        check_columns(tree, self.envs.first, self.policy_slots)
        self.episodes.resume_at({env["env"]: env["next_episode"] for env in tree["envs"]})
        tables = {name: TableByEnv(table) for name, table in tree["tables"].items()}
        for env in tree["envs"]:
            # The order of appearance is that of rows. Older checkpoints have it with a running episode only.
            agents = env["agents"] if "agents" in env else (env["running"] or {}).get("agents")
            if agents is not None:
                self.envs.seat(self.index(env), agents)
            elif "agents" in env and not self.envs.first.declared:
                # It broke, and would have been opened again.
                self.envs.discard([self.index(env)])
        # Another number of workers has saved the environments in another order.
        running = sorted((env for env in tree["envs"] if env["running"] is not None), key=self.index)
        intact, restarted = self.continue_episodes(running, tables, replay_max_env_steps)
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.env) - len(table.of(intact)["env"]) for table in open_rows)
        return ResumeReport(len(running) - len(intact) - restarted, restarted, lost)

    def index(self, env: Tree) -> int:
        """Return the position of a saved environment among those of this worker."""
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

        Returns the `env_indices` of those that go on as they were, and how many were restarted; the others are
        abandoned.
        """


@dataclass(frozen=True, slots=True)
class ReplayedState(WorkerState):
    """The state of a worker that replays its running episodes."""

    envs: EnvPool
    history: History

    def replayable(self) -> Collection[int]:
        return self.history.replayable(self.runner.running)

    def tables(self, running: Sequence[int]) -> dict[str, StateTable]:
        replayable, deciding = self.replayable(), self.runner.deciding
        checked, hashes = self.runner.lanes.assigned_in(replayable), self.history.hashes.copy()
        # Pending lanes have seen an observation that no action has followed yet, so a replay ends with it.
        hashes[deciding] = self.history.hashes_with_pending(deciding, self.policy_slots)
        tables = self.lane_tables(running, "lanes", checked, {"hash": hashes[checked]})
        env_indices = np.array(self.envs.env_indices, np.int64)
        for policy, (index, action) in self.history.actions(replayable).items():
            if len(index):
                tables[f"{_ACTIONS}{policy}"] = {"env": env_indices[index], "action": action}
        return tables

    def continue_episodes(
        self, running: Sequence[Tree], tables: Mapping[str, TableByEnv], replay_max_env_steps: int
    ) -> tuple[list[int], int]:
        replayer = EpisodeReplayer(self.envs, self.runner.lanes, self.policy_slots, self.episodes, self.history)
        results: dict[int, StepResult] = {}
        intact = []
        for env in running:
            index, saved = self.index(env), env["running"]
            # A replay needs every action so far, and takes as long as the episode did.
            replayable = saved["whole"] and saved["env_steps"] <= replay_max_env_steps
            if not replayable:
                # Rows of this episode were delivered already; the restarted one needs another number.
                saved = {**saved, "episode": saved["episode"] + RESTARTED_EPISODE}
            try:
                results[index] = (
                    _replay(replayer, index, saved, tables, env["env"]) if replayable else replayer.begin(index, saved)
                )
            except FAILURES:
                # The environment is not deterministic, or changed since: its next episode begins instead.
                self.runner.lanes.abandon(index)
                self.envs.discard([index])
            else:
                intact += [env["env"]] * replayable
        kept = {name: table.of(intact) for name, table in tables.items()}
        restore_open(kept, self.envs.env_indices, self.runner.lanes, self.builder, self.policy_slots)
        self.envs.restore(results)
        self.runner.resume()
        return intact, len(results) - len(intact)


def _replay(
    replayer: EpisodeReplayer, index: int, running: Mapping[str, Any], tables: Mapping[str, TableByEnv], env_index: int
) -> StepResult:
    actions = {
        name.removeprefix(_ACTIONS): taken
        for name, table in tables.items()
        if name.startswith(_ACTIONS) and len(taken := table.of([env_index])["action"])
    }
    infos = tables[INFOS].of([env_index]) if INFOS in tables else {}
    return replayer.play(index, running, actions, tables["lanes"].of([env_index]), infos)


_ACTIONS = "actions."
INFOS = "infos"
"""The table of what infos gave in the running episodes, by info column."""
