"""Records a person's play as an offline dataset, with rows as a worker would collect them."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from marlflow.base.arrays import Array
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.env.adapter import AgentEnd
from marlflow.offline.dataset_writer import DatasetTarget, DatasetWriter
from marlflow.offline.manifest import Manifest, RecordedEnvironment, write_manifest


@dataclass(slots=True)
class _Trajectory:
    """The decisions of an agent up to its end, as rows."""

    obs: list[Array] = field(default_factory=list)
    masks: list[Array] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    t_env: list[int] = field(default_factory=list)
    terminated: bool = False
    truncated: bool = False

    @property
    def is_open(self) -> bool:
        return not (self.terminated or self.truncated)


class EpisodeRows:
    """The rows of the agent in `slot` in one episode.

    A row is one decision with all reward until the next one or the agent's end; a reward before the first decision or
    after the end belongs to no row.
    """

    def __init__(self, slot: int, spaces: Spaces) -> None:
        self.slot, self._spaces, self._encoder = slot, spaces, spaces.encoder()
        self._trajectories: list[_Trajectory] = []

    def _open(self) -> _Trajectory | None:
        return self._trajectories[-1] if self._trajectories and self._trajectories[-1].is_open else None

    def decided(self, observation: Any, mask: Array | None, action: Array, t_env: int) -> None:
        """Add a decision after `t_env` env steps; `action` is as in the column. Raises ObservationOutside."""
        run = self._open()
        if run is None:
            self._trajectories.append(run := _Trajectory())
        self._see(run, observation, mask)
        run.actions.append(np.array(action))
        run.rewards.append(0.0)
        run.t_env.append(t_env)

    def rewarded(self, reward: float) -> None:
        """Add a reward to the last decision."""
        if (run := self._open()) is not None:
            run.rewards[-1] += float(reward)

    def ended(self, end: AgentEnd) -> None:
        """End the agent's trajectory; raises ObservationOutside."""
        run = self._open()
        if run is None:
            return
        if end.observation is None:
            # Without a final observation, the last one is the bootstrap.
            run.obs.append(run.obs[-1])
            run.masks += run.masks[-1:]
        else:
            # Without a final mask, what was legal at the last decision counts, as in workers.
            self._see(run, end.observation, run.masks[-1] if end.mask is None and run.masks else end.mask)
        run.terminated, run.truncated = end.terminated, end.truncated

    def _see(self, run: _Trajectory, observation: Any, mask: Array | None) -> None:
        run.obs.append(self._encoder.stack([observation])[0])
        if self._spaces.masked:
            run.masks.append(np.ones(self._spaces.mask_width, bool) if mask is None else np.array(mask, bool))

    def batch(self, episode: int) -> Batch | None:
        """Return the ended trajectories as segments; None without any."""
        runs = [run for run in self._trajectories if not run.is_open]
        if not runs:
            return None
        spaces, actions = self._spaces, _joined(run.actions for run in runs)
        rows, slot = len(actions), np.full(len(runs), self.slot)
        # The last observation of a trajectory is its bootstrap.
        columns = {"obs": np.stack(_joined(run.obs[:-1] for run in runs))}
        segments = {"bootstrap_obs": np.stack([run.obs[-1] for run in runs])}
        if spaces.masked:
            columns["action_mask"] = np.stack(_joined(run.masks[:-1] for run in runs))
            segments["bootstrap_mask"] = np.stack([run.masks[-1] for run in runs])
        columns |= {
            "action": np.stack(actions).astype(spaces.action_dtype).reshape(rows, *spaces.action_shape),
            # How likely a person was to choose an action is not known.
            "behavior_logp": np.full(rows, np.nan, np.float32),
            "reward": np.array(_joined(run.rewards for run in runs), np.float64),
            "t_env": np.array(_joined(run.t_env for run in runs), np.int32),
            "t_agent": np.arange(rows, dtype=np.int32),
            "version": np.zeros(rows, np.int64),
        }
        segments |= {
            "length": np.array([len(run.rewards) for run in runs]),
            "terminated": np.array([run.terminated for run in runs]),
            "truncated": np.array([run.truncated for run in runs]),
            "carried": np.zeros(len(runs), bool),
            "episode": np.full(len(runs), episode),
            "lane": slot,
            "agent": slot,
            "env": np.zeros(len(runs), np.int64),
        }
        return Batch(columns, segments)


def _joined(lists: Iterable[list[Any]]) -> list[Any]:
    return [entry for entries in lists for entry in entries]


class PersonDataset:
    """The dataset of a person's play, in `folder`; each episode is complete on disk when `add` returns.

    `policy` is the policy whose place the person takes. The dataset has the spaces of all `policies`, so that several
    agents may be recorded in one folder. Raises ConfigInvalid if the folder has records of something else.
    """

    def __init__(
        self,
        folder: Path,
        policy: str,
        agents: Mapping[str, Spaces],
        policies: Mapping[str, Spaces],
        environment: RecordedEnvironment,
    ) -> None:
        manifest = write_manifest(folder, Manifest(agents, policies, environment))
        run = f"played{datetime.now(UTC):%Y%m%d%H%M%S}{secrets.token_hex(3)}"
        self.folder, self.policy, self.rows, self.episodes = folder, policy, 0, 0
        self._writer = DatasetWriter(DatasetTarget(str(folder), (policy,), run, manifest.record), worker=0)

    def add(self, rows: EpisodeRows | None, env_steps: int) -> None:
        """Write the person's rows of an episode of `env_steps` env steps, if there are any."""
        batch = None if rows is None else rows.batch(self.episodes)
        self.episodes += 1
        if batch is not None:
            self.rows += batch.rows
            self._writer.write({self.policy: batch}, env_steps)
            self._writer.finish()
