"""What a run records, and which records its workers have handed out to the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marlflow.config.experiment import Experiment
from marlflow.driver.checkpoint_notes import notes_of
from marlflow.offline.dataset import Dataset
from marlflow.offline.dataset_writer import DatasetTarget, discard_after
from marlflow.offline.manifest import NAME, Manifest, environment_described, read_manifest, write_manifest
from marlflow.runtime.checkpoints import Checkpoint
from marlflow.runtime.spec import RunSpec
from marlflow.sampling.receipts import Receipt

_FOLDER = "record"


def recording(
    experiment: Experiment, spec: RunSpec, players: Mapping[str, Sequence[str]], run_dir: Path, run: str
) -> DatasetTarget | None:
    """What the run named `run` records, its folder made and described; None if nothing.

    The experiment has no `record_problems`. Raises ConfigInvalid if records of something else are there.
    """
    asked = experiment.record
    if asked is None:
        return None
    policies = spec.learning if asked.policies is None else tuple(asked.policies)
    folder = (run_dir / _FOLDER if asked.folder is None else Path(asked.folder)).resolve()
    env = experiment.env
    there = write_manifest(
        folder,
        Manifest(
            {agent: spec.policies[policy].spaces for policy, agents in players.items() for agent in agents},
            {policy: spec.policies[policy].spaces for policy in policies},
            environment_described(env.factory, env.arguments, env.wrappers),
        ),
    )
    return DatasetTarget(str(folder), policies, run, there.record)


def forget_recorded_after(checkpoint: Checkpoint, run_dir: Path, now: DatasetTarget | None) -> None:
    """Removes what a run recorded after `checkpoint`, from which it resumes: no worker runs yet.

    That is in the run's own folder of records, and in the one that it records into `now`.
    """
    notes = notes_of(checkpoint)
    folders = {(run_dir / _FOLDER).resolve()} | ({Path(now.folder)} if now is not None else set())
    for folder in folders:
        if (folder / NAME).is_file():
            discard_after(folder, notes.run, notes.recorded.get(read_manifest(folder).record, {}))


class DatasetProgress:
    """Which policies have been handed all their `records`, as far as the workers have said."""

    def __init__(self, records: Mapping[str, Dataset]) -> None:
        self._all = {name: len(one.fragments) * one.passes for name, one in records.items()}
        self._handed: dict[str, dict[str, int]] = {name: {} for name in records}

    def handed(self, receipts: Sequence[Receipt]) -> None:
        """Counts what was handed out since."""
        for receipt in receipts:
            for policy, by_env in receipt.next_fragments.items():
                self._handed[policy].update({str(env_index): count for env_index, count in by_env.items()})

    @property
    def nothing_of(self) -> frozenset[str]:
        """The policies whose records have ended."""
        return frozenset(name for name, count in self._all.items() if sum(self._handed[name].values()) >= count)

    def state(self) -> dict[str, dict[str, int]]:
        """How many fragments each environment has handed out, by policy."""
        return {name: dict(by_env) for name, by_env in self._handed.items()}

    def load_state(self, state: Mapping[str, Mapping[str, int]]) -> None:
        """Goes on from what `state` gave."""
        for name in self._handed.keys() & state.keys():
            self._handed[name] = dict(state[name])
