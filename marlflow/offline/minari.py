"""Recorded rows of a policy as a Minari dataset (https://minari.farama.org): each trajectory of an agent is an episode.

`episode_fields` needs numpy alone.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.batches.batch import Batch
from marlflow.offline.dataset import find_dataset
from marlflow.offline.manifest import Manifest, read_manifest
from marlflow.offline.trajectories import RecordedTrajectory, recorded_trajectories
from marlflow.sampling.acting_policy import ActionDecoder

# With the final observation comes no decision.
_NO_DECISION = {"behavior_logp": np.nan, "t_env": -1}


@dataclass(frozen=True, slots=True)
class MinariExport:
    """The dataset that was written: its id, the policy, and its episodes, steps and unfinished episodes."""

    dataset_id: str
    policy: str
    episodes: int
    steps: int
    unfinished: int


def export_minari(folder: Path, dataset_id: str, policy: str | None = None) -> MinariExport:
    """Write the rows of `policy` recorded in `folder` as a local Minari dataset; None: of the only policy.

    Raises ConfigInvalid if Minari or the records are missing, or the id is malformed or in use, and RecordsDamaged.
    """
    minari, manifest = _import_minari(), read_manifest(folder)
    policy = _recorded_policy(folder, manifest, policy)
    # Minari reads no namespace of one letter, and breaks without a version.
    if not re.fullmatch(r"([-\w]{2,}/)*[-\w]+-v\d+", dataset_id):
        raise ConfigInvalid([f"minari must be an id such as cartpole/expert-v0, not {dataset_id!r}"])
    # Not by listing all: Minari refuses to, if one of them has a name that it does not allow.
    if (path := minari.storage.get_dataset_path(dataset_id)).exists():
        raise ConfigInvalid([f"there is a Minari dataset {dataset_id} already; remove it: minari delete {dataset_id}"])
    dataset, spaces = find_dataset(folder, policy), manifest.policies[policy]
    notes: list[dict[str, Any]] = []

    def buffers() -> Iterator[Any]:
        for number, episode in enumerate(recorded_trajectories(dataset)):
            notes.append({"agent": episode.agent, "env": episode.env, "episode": episode.episode, "end": episode.end})
            yield minari.data_collector.EpisodeBuffer(id=number, **episode_fields(episode, spaces))

    try:
        with warnings.catch_warnings():
            # It warns that there is no author, no link to code, and no registered environment.
            warnings.simplefilter("ignore", UserWarning)
            written = minari.create_dataset_from_buffers(
                dataset_id,
                buffers(),
                observation_space=spaces.observation,
                action_space=spaces.action,
                description=f"Recorded by marlflow: {policy} in {manifest.environment.factory or 'an environment'}",
                # The other formats have a folder for each episode, and add up the sizes of all of them after each one.
                data_format="hdf5",
                # Pixels stay as they are.
                jpeg_encoding=False,
            )
        # Records have slots, which are in the order of the policy's agents.
        slots = sorted({note["agent"] for note in notes})
        agents = [agent for agent, played_by in manifest.mapping.items() if played_by == policy]
        names = dict(zip(slots, agents, strict=True)) if len(slots) == len(agents) else {}
        named = ({**note, "agent": names.get(note["agent"], note["agent"])} for note in notes)
        written.storage.update_episode_metadata(named, range(len(notes)))
    except BaseException:
        # What is there would be a dataset with the episodes so far, and block the next try.
        shutil.rmtree(path, ignore_errors=True)
        raise
    unfinished = sum(note["end"] == "unfinished" for note in notes)
    return MinariExport(dataset_id, policy, len(notes), int(written.total_steps), unfinished)


def _import_minari() -> Any:
    try:
        import minari
        import minari.data_collector
    except ImportError as error:
        raise ConfigInvalid([f"{error}; pip install 'marlflow[minari]'"]) from error
    return minari


def _recorded_policy(folder: Path, manifest: Manifest, policy: str | None) -> str:
    recorded = ", ".join(map(repr, manifest.policies))
    if policy is None and len(manifest.policies) == 1:
        return next(iter(manifest.policies))
    if policy is None:
        raise ConfigInvalid([f"{folder} has records of {recorded}; name one of them: policy=NAME"])
    if policy not in manifest.policies:
        raise ConfigInvalid([f"{folder} has records of {recorded}, and none of {policy!r}"])
    return policy


def episode_fields(episode: RecordedTrajectory, spaces: Spaces) -> dict[str, Any]:
    """Return the fields of a Minari EpisodeBuffer, of T actions and T + 1 observations.

    Observations and actions are of the environment's spaces. `infos` have T + 1 entries: `action_mask` and
    `state` belong to the observations; `behavior_logp` and `t_env` to the decision after each, NaN and -1 at the end;
    numbers of the environment's infos came with the observation, NaN at the start. An unfinished episode is truncated.
    """
    columns, seen = dict(episode.columns), dict(episode.seen)
    at_end = np.arange(len(columns["reward"])) == len(columns["reward"]) - 1
    infos: dict[str, Any] = {name: seen[name] for name in sorted(seen.keys() - {"obs"})}
    infos |= {name: np.append(columns[name], columns[name].dtype.type(none)) for name, none in _NO_DECISION.items()}
    infos |= {name: np.append(np.nan, columns[name]) for name in sorted(columns.keys() - Batch.RESERVED)}
    return {
        "observations": decoded(seen["obs"], spaces),
        "actions": ActionDecoder("recorded", spaces.action).values(columns["action"]),
        "rewards": columns["reward"],
        "terminations": at_end & (episode.end == "terminated"),
        "truncations": at_end & (episode.end != "terminated"),
        "infos": infos,
    }


def decoded(rows: Array, spaces: Spaces) -> Any:
    """Return rows of the column `obs`, [N, ...], as N observations: an array, or a dict or tuple of them."""
    return _part(spaces.observation, (), spaces.layout().read(rows))


def _part(space: gym.Space[Any], path: tuple[Any, ...], leaves: Mapping[tuple[Any, ...], Array]) -> Any:
    if isinstance(space, gym.Dict):
        return {key: _part(part, (*path, key), leaves) for key, part in space.spaces.items()}
    if isinstance(space, gym.Tuple):
        return tuple(_part(part, (*path, place), leaves) for place, part in enumerate(space.spaces))
    leaf = leaves[path]
    if isinstance(space, gym.Discrete):
        leaf = leaf.argmax(axis=1) + space.start
    elif isinstance(space, gym.MultiDiscrete):
        parts = np.split(leaf, np.cumsum(space.nvec.ravel())[:-1], axis=1)
        leaf = np.stack([part.argmax(axis=1) for part in parts], axis=1).reshape(len(leaf), *space.shape) + space.start
    return leaf.astype(space.dtype)
