"""`marlflow tune scheduler=pbt`: population-based training of trials (Jaderberg et al., 2017, arXiv:1711.09846).

All trials run up to an interval of env steps. Then the worst continue from the checkpoints of the best, with settings
near theirs. So results do not depend on how many trials run at a time.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from marlflow.base.random import key
from marlflow.base.serialization import Tree, to_bytes
from marlflow.cli.arguments import Words
from marlflow.cli.job import prepared
from marlflow.cli.sweep_records import Direction, JobRecord, read_records
from marlflow.cli.tune_trial import PAUSED
from marlflow.config.compose import composing, config_loader
from marlflow.observe.population import POPULATION

if TYPE_CHECKING:
    from marlflow.config.checked import CheckedExperiment
    from marlflow.replay.protocol import SavedReplay

FACTORS = (0.8, 1.2)
_KEPT = ("run", "reports", "recorded")


@dataclass(slots=True)
class TrialPopulation:
    """The trials of `jobs`, which are compared every `every_env_steps` up to `most`.

    The lowest `quantile` copies trials of the highest. `sweeps` are the overrides of the command, by position in each
    job, of which those with several values are perturbed. Trials stop at the end of a round of `round_env_steps`.
    Trials that have ended by themselves are neither compared nor resumed.
    """

    jobs: list[list[str]]
    sweeps: Sequence[Override]
    every_env_steps: int
    most: int
    quantile: float
    direction: Direction
    seed: int
    round_env_steps: int = 1

    def generations(self, folder: Path, records: Path) -> Iterator[tuple[list[list[str]], int, bool]]:
        """Yield the jobs to run next, the env steps to run them to, and whether they resume; copy in between."""
        # Nothing would be left to play after a comparison in the last round.
        last_round = (self.most - 1) // self.round_env_steps * self.round_env_steps
        ends = [0, *range(self.every_env_steps, last_round + 1, self.every_env_steps), self.most]
        for generation, (begin, until) in enumerate(itertools.pairwise(ends)):
            if generation:
                self._copy(generation, begin, folder, read_records(records))
            yield self.jobs, until, generation > 0

    def _copy(self, generation: int, env_steps: int, folder: Path, records: Sequence[JobRecord]) -> None:
        sign = 1.0 if self.direction == "maximize" else -1.0
        scores = {record.number: record.objective for record in records if record.ended_by == PAUSED}
        rank = {number: -math.inf if score is None else sign * score for number, score in scores.items()}
        ordered = sorted(rank, key=rank.__getitem__)
        count = max(1, int(self.quantile * len(ordered))) if self.quantile and len(ordered) > 1 else 0
        generator = np.random.default_rng(key(self.seed, *b"generation", generation))
        with (folder / POPULATION).open("a", encoding="utf-8") as file:
            for number in ordered[:count]:
                source = ordered[len(ordered) - 1 - int(generator.integers(count))]
                near = self._near(self.jobs[source], generator)
                # With equal settings it would do all that its source does, with the same random numbers.
                if not rank[source] > rank[number] or near == self.jobs[source]:
                    continue
                copy_checkpoint(folder / str(source), folder / str(number))
                before, self.jobs[number] = self._settings(number), near
                line: dict[str, Any] = {"env_steps": env_steps, "trial": number, "score": scores[number]}
                line |= {"source": source, "source_score": scores[source], "settings": before}
                file.write(f"{json.dumps({**line, 'new_settings': self._settings(number)}, allow_nan=False)}\n")
                news = " ".join(self._settings(number))
                print(f"{env_steps:,} env steps: job {number} continues as a copy of job {source}, {news}", flush=True)

    def _settings(self, number: int) -> list[str]:
        pairs = zip(self.sweeps, self.jobs[number], strict=True)
        return [word for override, word in pairs if override.is_sweep_override()]

    def _near(self, job: Sequence[str], generator: np.random.Generator) -> list[str]:
        pairs = zip(self.sweeps, job, strict=True)
        return [_near(override, word, generator) if override.is_sweep_override() else word for override, word in pairs]


def _near(override: Override, word: str, generator: np.random.Generator) -> str:
    """Return a value near that of `word`: a neighbor in the list, or a factor more or less within the interval.

    At an end it is the one within; a whole number changes by 1 at least.
    """
    if not override.is_interval_sweep():
        values = dict.fromkeys(override.sweep_string_iterator())
        listed = [f"{override.get_key_element()}={value}" for value in values]
        if len(listed) == 1:
            return word
        at, step = listed.index(word), 1 if generator.random() < 0.5 else -1
        return listed[at + step if 0 <= at + step < len(listed) else at - step]
    interval: Any = override.value()
    value, drawn = float(word.partition("=")[2]), int(generator.integers(len(FACTORS)))
    factors = (FACTORS[drawn], FACTORS[1 - drawn])
    moved = [value * factor for factor in factors]
    if isinstance(interval.start, int) and isinstance(interval.end, int):
        steps = [1 if factor > 1 else -1 for factor in factors]
        moved = [
            round(each) if round(each) != value else int(value) + step for each, step in zip(moved, steps, strict=True)
        ]
    within = [min(max(each, interval.start), interval.end) for each in moved]
    return f"{override.get_key_element()}={within[0] if within[0] != value else within[1]}"


def copy_checkpoint(source: Path, target: Path) -> None:
    """Give the run in `target` the newest checkpoint of the run in `source`, in place of all its own.

    Its id, and what was counted of its own files, stay.
    """
    from marlflow.runs.checkpoints import CheckpointStore
    from marlflow.runs.saved_runs import folder, newest

    checkpoint, own = newest(source), newest(target)
    # The newest is the one that was written last, also if it has fewer env steps.
    store = CheckpointStore(folder(target), keep=1)
    notes: Any = {**_notes(checkpoint.notes), **{name: _notes(own.notes)[name] for name in _KEPT}}
    files = {name: bytes(checkpoint.read(name)) for name in checkpoint.names}
    store.write(checkpoint.env_steps, files, (), notes, checkpoint.metric)


def _notes(notes: Tree) -> dict[str, Any]:
    assert isinstance(notes, dict)
    return notes


def sweeps_of(overrides: Sequence[str]) -> list[Override]:
    """Parse overrides, in their order."""
    with composing():
        return OverridesParser.create(config_loader()).parse_overrides(list(overrides))


def fixed_problems(
    first: CheckedExperiment, jobs: Sequence[Sequence[str]], sweeps: Sequence[Override], config_dirs: Sequence[str]
) -> Iterator[str]:
    """Yield the settings that cannot differ between the run that took a checkpoint and one that resumes from it."""
    from marlflow.checks.commands import check
    from marlflow.checks.validation import from_config

    lasting = _lasting(first)
    for position, override in enumerate(sweeps):
        for word in _other_words(override, position, jobs):
            changed = [*jobs[0][:position], word, *jobs[0][position + 1 :]]
            ready = prepared(Words(overrides=changed, config_dirs=list(config_dirs)))
            checked = check(from_config(ready.config, ready.problems))
            name, remedy = override.get_key_element(), "give it one value, or use scheduler=asha"
            if checked.spec.round_env_steps != first.spec.round_env_steps:
                yield f"scheduler=pbt compares trials at the same env steps, and {name} changes their rounds; {remedy}"
            elif _lasting(checked) != lasting:
                yield (
                    "scheduler=pbt has a trial continue from the checkpoint of another, and "
                    f"{name} cannot change over a resume; {remedy}"
                )
            else:
                continue
            break


def _other_words(override: Override, position: int, jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the words of an override that other trials than the first may have: all listed, or one of an interval."""
    if not override.is_sweep_override():
        return []
    if override.is_interval_sweep():
        return [job[position] for job in jobs if job[position] != jobs[0][position]][:1]
    listed = (f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator())
    return [word for word in dict.fromkeys(listed) if word != jobs[0][position]]


def _lasting(checked: CheckedExperiment) -> object:
    """Return what is the same before and after a resume: the run's identity, and what learners and replays keep."""
    from marlflow.driver.checkpointing import identity

    learners = checked.spec.learners.values()
    replays = [_terms(each.replay(shard)) for each in learners for shard in range(len(each.replays))]
    return identity(checked), [each.form() for each in learners], replays


def _terms(replay: SavedReplay) -> object:
    """Return the capacity of an empty replay, what its rows are, and the kind of its sampling."""
    state = _notes(replay.state())
    terms = {name: value for name, value in state.items() if name not in ("generator", "sampler")}
    return replay.capacity, to_bytes(terms), state.get("sampler", {}).get("kind")
