"""Datasets that a run records, and its progress through datasets that it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marlflow.config.experiment import Experiment
from marlflow.driver.service import Service
from marlflow.offline.dataset import Dataset
from marlflow.offline.dataset_writer import DatasetTarget, discard_after
from marlflow.offline.manifest import NAME, Manifest, environment_described, read_manifest, write_manifest
from marlflow.runs.checkpoint_format import notes_of
from marlflow.runs.checkpoints import Checkpoint
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.protocol import Round

_FOLDER = "record"


def recording(
    experiment: Experiment, spec: RunSpec, players: Mapping[str, Sequence[str]], run_dir: Path, run: str
) -> DatasetTarget | None:
    """Create the dataset that the run records; None if it records nothing.

    The experiment has passed `record_problems`. Raises ConfigInvalid if the folder has another dataset.
    """
    settings = experiment.record
    if settings is None:
        return None
    policies = spec.learning if settings.policies is None else tuple(settings.policies)
    folder = (run_dir / _FOLDER if settings.folder is None else Path(settings.folder)).resolve()
    env = experiment.env
    seated = [agent for agents in players.values() for agent in agents]
    # A matchmaker may seat several policies as one agent.
    is_fixed = len(set(seated)) == len(seated)
    manifest = write_manifest(
        folder,
        Manifest(
            {agent: spec.policies[policy].spaces for policy, agents in players.items() for agent in agents},
            {policy: spec.policies[policy].spaces for policy in policies},
            environment_described(env.factory, env.arguments, env.wrappers),
            {agent: policy for policy, agents in players.items() for agent in agents} if is_fixed else {},
        ),
    )
    return DatasetTarget(str(folder), policies, run, manifest.record)


def forget_recorded_after(checkpoint: Checkpoint, run_dir: Path, target: DatasetTarget | None) -> None:
    """Remove the rows that the run recorded after `checkpoint`, before any worker runs."""
    notes = notes_of(checkpoint)
    folders = {(run_dir / _FOLDER).resolve()} | ({Path(target.folder)} if target is not None else set())
    for folder in folders:
        if (folder / NAME).is_file():
            discard_after(folder, notes.run, notes.recorded.get(read_manifest(folder).record, {}))


class DatasetProgress(Service):
    """Counts the fragments read of each policy's dataset."""

    def __init__(self, records: Mapping[str, Dataset]) -> None:
        self._all = {name: len(dataset.fragments) * dataset.passes for name, dataset in records.items()}
        self._read: dict[str, dict[str, int]] = {name: {} for name in records}

    async def after_round(self, round: Round) -> None:
        for receipt in round.receipts:
            for policy, by_env in receipt.next_fragments.items():
                self._read[policy].update({str(env_index): count for env_index, count in by_env.items()})

    @property
    def finished(self) -> frozenset[str]:
        """Policies whose dataset was read completely."""
        return frozenset(name for name, count in self._all.items() if sum(self._read[name].values()) >= count)

    def state(self) -> dict[str, dict[str, int]]:
        return {name: dict(by_env) for name, by_env in self._read.items()}

    def load_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        for name in self._read.keys() & state.keys():
            self._read[name] = dict(state[name])
