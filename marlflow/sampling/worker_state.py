"""Save and restore what a rollout worker carries between collects.

Not saved: weights and scheduled values, which every collect is given, and environments, whose episodes are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.serialization import Tree
from marlflow.env import StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.episode_replayer import FAILURES, EpisodeReplayer
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.open_tables import TableByEnv, check_columns, open_tables, restore_open
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.saved_state import ResumeReport, StateTable, by_env
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.vector_runner import SyncVectorRunner


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker between two collects; the segment builder has room for a cell."""

    envs: EnvPool
    policy_slots: list[PolicySlots]
    builder: SegmentBuilder
    episodes: TrainingEpisodes
    runner: SyncVectorRunner
    history: History

    def state(self) -> Tree:
        """Return the state by environment (see `saved_state`)."""
        running = self.runner.running
        replayable = self.history.replayable(running)
        adapters, next_episodes = self.envs.adapters, self.episodes.next_episodes
        return {
            "agents": list(adapters[0].agents) if adapters[0].declared else None,
            "envs": [
                {
                    "env": env_index,
                    "next_episode": next_episodes[env_index],
                    "running": self._running(index, index in replayable) if index in running else None,
                }
                for index, env_index in enumerate(self.envs.env_indices)
            ],
            "tables": self._tables(running, replayable),
        }

    def _running(self, index: int, whole: bool) -> Tree:
        lanes, adapter = self.runner.lanes, self.envs.adapters[index]
        episode = int(lanes.episode[lanes.of(index).start])
        return {
            "episode": episode,
            "seed": self.envs.seeds[index],
            "env_steps": adapter.env_steps,
            "matchup": dict(lanes.matchups[index]),
            "agents": None if adapter.declared else list(adapter.agents),
            "whole": whole,
        }

    def _tables(self, running: Mapping[int, int], replayable: list[int]) -> dict[str, StateTable]:
        lanes, env_indices = self.runner.lanes, np.array(self.envs.env_indices, np.int64)
        known, checked = lanes.assigned_in(running), lanes.assigned_in(replayable)
        hashes, deciding = self.history.hashes.copy(), self.runner.deciding
        # Pending lanes have seen an observation that no action has followed yet, so a replay ends with it.
        hashes[deciding] = self.history.hashes_with_pending(deciding, self.policy_slots)
        lane_tables = {
            "lanes": {
                "lane": checked,
                "returns": lanes.returns[checked],
                **({"costs": lanes.costs[checked]} if self.envs.reads_costs else {}),
                "t_agent": lanes.t_agent[checked],
                "hash": hashes[checked],
            },
            **open_tables(known, lanes.entry_of, self.builder, self.policy_slots),
        }
        tables: dict[str, StateTable] = {
            n: by_env(table, self.envs.env_indices, lanes.stride) for n, table in lane_tables.items()
        }
        for policy, (index, action) in self.history.actions(replayable).items():
            if len(index):
                tables[f"actions.{policy}"] = {"env": env_indices[index], "action": action}
        return tables

    def load_state(self, tree: Tree, replay_max_env_steps: int) -> ResumeReport:
        """Restore the `state` of these environments before the first collect.

        Raises CheckpointUnusable if agents or policies' columns differ.
        """
        check_columns(tree, self.envs.first, self.policy_slots)
        self.episodes.resume_at({env["env"]: env["next_episode"] for env in tree["envs"]})
        replayer = EpisodeReplayer(self.envs, self.runner.lanes, self.policy_slots, self.episodes, self.history)
        tables = {name: TableByEnv(table) for name, table in tree["tables"].items()}
        results: dict[int, StepResult] = {}
        intact, abandoned = [], 0
        for env in tree["envs"]:
            env_index, running = env["env"], env["running"]
            if running is None:
                continue
            index = self.envs.env_indices.index(env_index)
            # A replay needs every action so far, and takes as long as the episode did.
            replayable = running["whole"] and running["env_steps"] <= replay_max_env_steps
            if not replayable:
                # Rows of this episode were delivered already; the restarted one needs another number.
                running = {**running, "episode": running["episode"] + RESTARTED_EPISODE}
            try:
                results[index] = (
                    _replay(replayer, index, running, tables, env_index)
                    if replayable
                    else replayer.begin(index, running)
                )
            except FAILURES:
                # The environment is not deterministic, or changed since: its next episode begins instead.
                abandoned += 1
                self.runner.lanes.abandon(index)
                self.envs.reopen(index)
            else:
                intact += [env_index] * replayable
        kept = {name: table.of(intact) for name, table in tables.items()}
        restore_open(kept, self.envs.env_indices, self.runner.lanes, self.builder, self.policy_slots)
        self.runner.restore(results)
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.env) - len(table.of(intact)["env"]) for table in open_rows)
        return ResumeReport(abandoned, len(results) - len(intact), lost)


def _replay(
    replayer: EpisodeReplayer, index: int, running: Mapping[str, Any], tables: Mapping[str, TableByEnv], env_index: int
) -> StepResult:
    actions = {
        name.removeprefix(_ACTIONS): taken
        for name, table in tables.items()
        if name.startswith(_ACTIONS) and len(taken := table.of([env_index])["action"])
    }
    return replayer.play(index, running, actions, tables["lanes"].of([env_index]))


_ACTIONS = "actions."
