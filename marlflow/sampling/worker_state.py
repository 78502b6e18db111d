"""Save and restore what a rollout worker carries between collects.

Not saved: weights and scheduled values, which every collect is given, and environments, whose episodes are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree
from marlflow.env import StepResult
from marlflow.sampling.action_history import History
from marlflow.sampling.env_pool import EnvPool
from marlflow.sampling.episode_replayer import FAILURES, EpisodeReplayer
from marlflow.sampling.episodes import RESTARTED_EPISODE, TrainingEpisodes
from marlflow.sampling.policy_slots import PolicySlots
from marlflow.sampling.saved_state import ResumeReport, StateTable, by_env, by_lane, only_rows
from marlflow.sampling.segment_builder import SegmentBuilder
from marlflow.sampling.step_buffer import ranges
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
        lane_tables: dict[str, dict[str, Array]] = {
            "lanes": {
                "lane": checked,
                "returns": lanes.returns[checked],
                "t_agent": lanes.t_agent[checked],
                "hash": hashes[checked],
            },
            "open": self.builder.open_rows(),
        }
        for number, slots in enumerate(self.policy_slots):
            if slots.buffer is not None:
                lane_tables[f"rows.{slots.policy}"] = self.builder.seen_in_open_rows(number, slots.buffer)
            if slots.memory is not None:
                # No table for a policy without lanes: a frozen entry may be in the table and play nowhere.
                played = known[lanes.entry_of[known] == number]
                if not len(played):
                    continue
                lane_tables[f"memory.{slots.policy}"] = {"lane": played, **slots.memory.state(played)}
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
        self._check(tree)
        self.episodes.resume_at({env["env"]: env["next_episode"] for env in tree["envs"]})
        replayer = EpisodeReplayer(self.envs, self.runner.lanes, self.policy_slots, self.episodes, self.history)
        tables = {name: _TableByEnv(table) for name, table in tree["tables"].items()}
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
        self._restore({name: table.of(intact) for name, table in tables.items()})
        self.runner.restore(results)
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.env) - len(table.of(intact)["env"]) for table in open_rows)
        return ResumeReport(abandoned, len(results) - len(intact), lost)

    def _restore(self, tables: Mapping[str, StateTable]) -> None:
        env_indices, stride = self.envs.env_indices, self.runner.lanes.stride
        # The observations of open rows were not saved for a policy that was not recorded, so these rows are dropped.
        new = [n for n, p in enumerate(self.policy_slots) if p.buffer is not None and f"rows.{p.policy}" not in tables]
        opened = by_lane(tables["open"], env_indices, stride)
        self.builder.reopen(only_rows(opened, ~np.isin(self.runner.lanes.entry_of[opened["lane"]], new)))
        for slots in self.policy_slots:
            rows, memory = tables.get(f"rows.{slots.policy}"), tables.get(f"memory.{slots.policy}")
            if rows is not None and slots.buffer is not None:
                of_lane = by_lane(rows, env_indices, stride)
                at = np.array([slots.buffer.row(lane) for lane in of_lane["lane"].tolist()], np.int64)
                slots.buffer.reopen(at, of_lane)
            if memory is not None and slots.memory is not None:
                of_lane = by_lane(memory, env_indices, stride)
                slots.memory.load_state(of_lane["lane"], of_lane)

    def _check(self, tree: Tree) -> None:
        adapter, none = self.envs.adapters[0], np.empty(0, np.int64)
        agents, tables, problems = list(adapter.agents) if adapter.declared else None, tree["tables"], []
        if tree["agents"] != agents:
            problems.append(f"the environment has agents {agents}, and what is kept is of {tree['agents']}")
        for slots in self.policy_slots:
            wanted = {
                "rows": None if slots.buffer is None else {n: c[:0, 0] for n, c in slots.buffer.data.items()},
                "memory": None if slots.memory is None else slots.memory.state(none),
            }
            for kind, columns in wanted.items():
                saved, current = _column_types(tables.get(f"{kind}.{slots.policy}")), _column_types(columns)
                # Saved rows of a policy that is not recorded any more are ignored.
                must_match = kind == "memory" or columns is not None
                if f"{kind}.{slots.policy}" in tables and must_match and saved != current:
                    problems.append(f"the {kind} of policy {slots.policy!r} are kept as {saved}, and now are {current}")
        if problems:
            raise CheckpointUnusable(problems)


class _TableByEnv:
    def __init__(self, table: StateTable) -> None:
        self._table, self.env = table, table["env"]
        self._order = np.argsort(self.env, kind="stable")
        self._sorted = self.env[self._order]

    def of(self, env_indices: Sequence[int]) -> StateTable:
        ends = [np.searchsorted(self._sorted, env_indices, side) for side in ("left", "right")]
        return only_rows(self._table, self._order[ranges(ends[0], ends[1] - ends[0])])


def _replay(
    replayer: EpisodeReplayer, index: int, running: Mapping[str, Any], tables: Mapping[str, _TableByEnv], env_index: int
) -> StepResult:
    actions = {
        name.removeprefix(_ACTIONS): taken
        for name, table in tables.items()
        if name.startswith(_ACTIONS) and len(taken := table.of([env_index])["action"])
    }
    return replayer.play(index, running, actions, tables["lanes"].of([env_index]))


def _column_types(columns: StateTable | None) -> dict[str, str] | None:
    if columns is None:
        return None
    return {n: f"{c.dtype} {list(c.shape[1:])}" for n, c in columns.items() if n not in ("env", "slot")}


_ACTIONS = "actions."
