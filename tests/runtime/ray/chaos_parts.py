"""A run's own parts, which keep a journal: every process writes what it does to a file of its own, as it does it.

What was written is there however the process ends. So it can be checked afterwards, without the run's own counts, that
nothing was done twice that must not be.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import marlflow as mf
from marlflow.base.arrays import Array
from marlflow.batches.items import Inserted, Weights
from marlflow.env.games.cartpole_team import CartPoleTeam

BETWEEN_ROUNDS: list[Callable[[], None]] = []
"""Called on the driver before each round is asked for."""


class Journal:
    """The actions of one part in this process: a JSON object on each line of `<part>.<pid>`."""

    def __init__(self, folder: Path, part: str) -> None:
        path = folder / f"{part}.{os.getpid()}"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, **entry: Any) -> None:
        """Writes an entry at once, past all buffers of this process."""
        os.write(self._file, json.dumps(entry).encode() + b"\n")


def entries(folder: Path, part: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """All that processes have noted of a part, each with the process's id; what one did is in order."""
    for path in sorted(folder.glob(f"{part}.*"), key=lambda path: path.stat().st_ctime_ns):
        for line in path.read_text().splitlines():
            yield int(path.suffix[1:]), json.loads(line)


def row_ids(batch: mf.Batch) -> list[list[int]]:
    """Copy, episode, agent and decision of each row."""
    columns = (batch[name].tolist() for name in ("env", "episode", "agent", "t_agent"))
    return [list(row) for row in zip(*columns, strict=True)]


class Carts(CartPoleTeam):
    """Notes which agents act in each env step. A reward is the second once the file `enough` is in the folder."""

    def __init__(self, folder: Path, max_cycles: int, rewards: tuple[float, float]) -> None:
        super().__init__(max_cycles=max_cycles)
        self._folder, self._rewards = folder, rewards
        self._journal = Journal(folder, "worker")
        self._seed, self._reward = 0, rewards[0]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._seed = seed or 0
        self._reward = self._rewards[(self._folder / "enough").exists()]
        return super().reset(seed, options)

    def step(self, actions: dict[str, int]) -> Any:
        self._journal.note(seed=self._seed, t=self._cycles, acted=[int(agent[-1]) for agent in actions])
        observations, rewards, *rest = super().step(actions)
        return observations, dict.fromkeys(rewards, self._reward), *rest


class JournalledLearner(mf.TorchLearner):
    """Notes its training rows and published weights."""

    journal: Journal

    @staticmethod
    def of(learner: mf.TorchLearner, folder: Path) -> JournalledLearner:
        """`learner`, which keeps a journal from here on."""
        journalled = JournalledLearner.__new__(JournalledLearner)
        vars(journalled).update(vars(learner), journal=Journal(folder, f"learner-{learner.name}"))
        return journalled

    def update(
        self,
        batch: mf.Batch | mf.Transitions,
        epochs: int = 1,
        minibatch_agent_steps: int | None = None,
        policy: str | None = None,
        groups: Sequence[str] | None = None,
    ) -> mf.Update:
        if isinstance(batch, mf.Batch):
            versions = sorted(set(batch.columns["version"].tolist()))
            self.journal.note(trained=row_ids(batch), versions=versions)
        else:
            self.journal.note(drawn=batch.row_id.tolist())
        return super().update(batch, epochs, minibatch_agent_steps)

    def publish(self) -> Weights:
        weights = super().publish()
        self.journal.note(published=self.version)
        return weights

    def resume_above(self, version: int) -> Weights:
        weights = super().resume_above(version)
        self.journal.note(published=self.version)
        return weights


class JournalledReplay(mf.ReplayBuffer):
    """Notes what is inserted and drawn, and from where on its rows are numbered."""

    def __init__(self, folder: Path, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.journal = Journal(folder, f"replay-{self.name}")

    def begin_at(self, first_row_id: int) -> None:
        super().begin_at(first_row_id)
        self.journal.note(begins=first_row_id)

    def insert(self, batch: mf.Batch) -> Inserted:
        self.journal.note(inserted=row_ids(batch))
        return super().insert(batch)

    def draw(self, agent_steps: int) -> mf.Transitions:
        transitions = super().draw(agent_steps)
        self.journal.note(drawn=_numbers(transitions.row_id))
        return transitions


def _numbers(row_id: Array) -> list[int]:
    return row_id.tolist()


@dataclass(frozen=True)
class JournalledPPO(mf.PPO):
    """PPO whose learner keeps a journal; it says on the driver when a round begins."""

    folder: Path = field(default_factory=Path)

    def learner(self, *arguments: Any, **options: Any) -> mf.TorchLearner:
        return JournalledLearner.of(super().learner(*arguments, **options), self.folder)

    def schedules(self, agent_steps: int) -> Mapping[str, float]:
        for call in BETWEEN_ROUNDS:
            call()
        return super().schedules(agent_steps)


@dataclass(frozen=True)
class JournalledDQN(mf.DQN):
    """DQN whose learner and replay keep journals."""

    folder: Path = field(default_factory=Path)

    def learner(self, *arguments: Any, **options: Any) -> mf.TorchLearner:
        return JournalledLearner.of(super().learner(*arguments, **options), self.folder)

    def replay(self, name: str, members: Any, seed: int) -> mf.ReplayBuffer:
        sampling = mf.Prioritized(self.priority_alpha, self.priority_beta) if self.prioritized else mf.Uniform()
        terms = (self.replay_agent_steps, self.n_step, self.discount, seed, sampling, name)
        return JournalledReplay(self.folder, *terms)
