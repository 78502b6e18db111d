"""Save what a rollout worker carries between collects as a tree, and restore it in a new worker.

Not saved: weights and scheduled values, which every collect is given, and environments, whose episodes are replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from marlflow.base.batch import Array
from marlflow.base.errors import CheckpointUnusable
from marlflow.base.kept import Tree
from marlflow.env import Turn
from marlflow.rollout.env_pool import EnvPool
from marlflow.rollout.episodes import BEGUN_ANEW, TrainingEpisodes
from marlflow.rollout.history import History
from marlflow.rollout.kept import ResumeReport, Table, by_copy, by_lane, only_rows
from marlflow.rollout.policy_slots import PolicySlots
from marlflow.rollout.replayed import FAILURES, Replay
from marlflow.rollout.segment_builder import SegmentBuilder
from marlflow.rollout.step_buffer import ranges
from marlflow.rollout.vector_runner import SyncVectorRunner


@dataclass(frozen=True, slots=True)
class Parts:
    """The state of a worker between two collects; the recorder has room for a cell."""

    copies: EnvPool
    players: list[PolicySlots]
    recorder: SegmentBuilder
    episodes: TrainingEpisodes
    runner: SyncVectorRunner
    history: History

    def state(self) -> Tree:
        """Return everything that is carried, by environment."""
        running = self.runner.running
        whole = self.history.whole(running)
        windows, following = self.copies.windows, self.episodes.not_begun
        return {
            "agents": list(windows[0].agents) if windows[0].declared else None,
            "copies": [
                {
                    "copy": copy,
                    "next_episode": following[copy],
                    "running": self._running(index, index in whole) if index in running else None,
                }
                for index, copy in enumerate(self.copies.numbers)
            ],
            "tables": self._tables(running, whole),
        }

    def _running(self, index: int, whole: bool) -> Tree:
        lanes, window = self.runner.lanes, self.copies.windows[index]
        episode = int(lanes.episode[lanes.of(index).start])
        return {
            "episode": episode,
            "seed": self.copies.seeds[index],
            "env_steps": window.env_steps,
            "matchup": dict(lanes.matchups[index]),
            "agents": None if window.declared else list(window.agents),
            "whole": whole,
        }

    def _tables(self, running: Mapping[int, int], whole: list[int]) -> dict[str, Table]:
        lanes, numbers = self.runner.lanes, np.array(self.copies.numbers, np.int64)
        known, checked = lanes.known_in(running), lanes.known_in(whole)
        hashes, deciding = self.history.hashes.copy(), self.runner.deciding
        # Pending lanes have seen an observation that no action has followed yet, so a replay ends with it.
        hashes[deciding] = self.history.looked(deciding, self.players)
        found: dict[str, dict[str, Array]] = {
            "lanes": {
                "lane": checked,
                "returns": lanes.returns[checked],
                "t_agent": lanes.t_agent[checked],
                "hash": hashes[checked],
            },
            "open": self.recorder.open_rows(),
        }
        for number, player in enumerate(self.players):
            if player.columns is not None:
                found[f"rows.{player.policy}"] = self.recorder.seen_in_open_rows(number, player.columns)
            if player.memory is not None:
                # No table for a policy without lanes: a frozen entry may be in the table and play nowhere.
                mine = known[lanes.player_of[known] == number]
                if not len(mine):
                    continue
                found[f"memory.{player.policy}"] = {"lane": mine, **player.memory.state(mine)}
        tables: dict[str, Table] = {n: by_copy(table, self.copies.numbers, lanes.stride) for n, table in found.items()}
        for policy, (index, action) in self.history.actions(whole).items():
            if len(index):
                tables[f"actions.{policy}"] = {"copy": numbers[index], "action": action}
        return tables

    def load_state(self, tree: Tree, replay_max_env_steps: int) -> ResumeReport:
        """Restore the `state` of these environments before the first collect.

        Raises CheckpointUnusable if agents or policies' columns differ.
        """
        self._check(tree)
        self.episodes.go_on({one["copy"]: one["next_episode"] for one in tree["copies"]})
        replay = Replay(self.copies, self.runner.lanes, self.players, self.episodes, self.history)
        tables = {name: _Grouped(table) for name, table in tree["tables"].items()}
        turns: dict[int, Turn] = {}
        intact, abandoned = [], 0
        for one in tree["copies"]:
            copy, running = one["copy"], one["running"]
            if running is None:
                continue
            index = self.copies.numbers.index(copy)
            # A replay needs every action so far, and takes as long as the episode did.
            again = running["whole"] and running["env_steps"] <= replay_max_env_steps
            if not again:
                # Rows of this episode were delivered already; the restarted one needs another number.
                running = {**running, "episode": running["episode"] + BEGUN_ANEW}
            try:
                turns[index] = _played(replay, index, running, tables, copy) if again else replay.begin(index, running)
            except FAILURES:
                # The environment is not deterministic, or changed since: its next episode begins instead.
                abandoned += 1
                self.runner.lanes.abandon(index)
                self.copies.reopen(index)
            else:
                intact += [copy] * again
        self._restore({name: table.of(intact) for name, table in tables.items()})
        self.runner.take_up(turns)
        open_rows = [table for name, table in tables.items() if name.startswith("rows.")]
        lost = sum(len(table.copy) - len(table.of(intact)["copy"]) for table in open_rows)
        return ResumeReport(abandoned, len(turns) - len(intact), lost)

    def _restore(self, tables: Mapping[str, Table]) -> None:
        numbers, stride = self.copies.numbers, self.runner.lanes.stride
        # The observations of open rows were not saved for a policy that was not recorded, so these rows are dropped.
        new = [n for n, p in enumerate(self.players) if p.columns is not None and f"rows.{p.policy}" not in tables]
        opened = by_lane(tables["open"], numbers, stride)
        self.recorder.reopen(only_rows(opened, ~np.isin(self.runner.lanes.player_of[opened["lane"]], new)))
        for player in self.players:
            rows, memory = tables.get(f"rows.{player.policy}"), tables.get(f"memory.{player.policy}")
            if rows is not None and player.columns is not None:
                of_lane = by_lane(rows, numbers, stride)
                at = np.array([player.columns.row(lane) for lane in of_lane["lane"].tolist()], np.int64)
                player.columns.reopen(at, of_lane)
            if memory is not None and player.memory is not None:
                of_lane = by_lane(memory, numbers, stride)
                player.memory.load_state(of_lane["lane"], of_lane)

    def _check(self, tree: Tree) -> None:
        window, none = self.copies.windows[0], np.empty(0, np.int64)
        agents, tables, problems = list(window.agents) if window.declared else None, tree["tables"], []
        if tree["agents"] != agents:
            problems.append(f"the environment has agents {agents}, and what is kept is of {tree['agents']}")
        for player in self.players:
            wanted = {
                "rows": None if player.columns is None else {n: c[:0, 0] for n, c in player.columns.data.items()},
                "memory": None if player.memory is None else player.memory.state(none),
            }
            for what, columns in wanted.items():
                kept, now = _kinds(tables.get(f"{what}.{player.policy}")), _kinds(columns)
                # Saved rows of a policy that is not recorded any more are ignored.
                wanted_now = what == "memory" or columns is not None
                if f"{what}.{player.policy}" in tables and wanted_now and kept != now:
                    problems.append(f"the {what} of policy {player.policy!r} are kept as {kept}, and now are {now}")
        if problems:
            raise CheckpointUnusable(problems)


class _Grouped:
    """A table indexed by environment."""

    def __init__(self, table: Table) -> None:
        self._table, self.copy = table, table["copy"]
        self._order = np.argsort(self.copy, kind="stable")
        self._sorted = self.copy[self._order]

    def of(self, copies: Sequence[int]) -> Table:
        ends = [np.searchsorted(self._sorted, copies, side) for side in ("left", "right")]
        return only_rows(self._table, self._order[ranges(ends[0], ends[1] - ends[0])])


def _played(replay: Replay, index: int, running: Mapping[str, Any], tables: Mapping[str, _Grouped], copy: int) -> Turn:
    actions = {
        name.removeprefix(_ACTIONS): taken
        for name, table in tables.items()
        if name.startswith(_ACTIONS) and len(taken := table.of([copy])["action"])
    }
    return replay.play(index, running, actions, tables["lanes"].of([copy]))


def _kinds(columns: Table | None) -> dict[str, str] | None:
    """Return dtype and shape of each column as text, except lane identity."""
    if columns is None:
        return None
    return {n: f"{c.dtype} {list(c.shape[1:])}" for n, c in columns.items() if n not in ("copy", "slot")}


_ACTIONS = "actions."
