"""What is kept of a run, and how one goes on from it: the parts that the runtime has, and what the driver knows."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import NoneType
from typing import Any

from marlflow.base.errors import CheckpointFailed, CheckpointUnusable, ConfigInvalid
from marlflow.base.serialization import MALFORMED, Tree, from_bytes, to_bytes
from marlflow.config.environment import environment_name
from marlflow.config.experiment import Env
from marlflow.config.validation import CheckedExperiment
from marlflow.driver.checkpoint_notes import Notes, notes_of
from marlflow.driver.frozen_policies import frozen_file
from marlflow.driver.queued_items import QueuedItems
from marlflow.runtime.checkpoint_files import RowsFile, rows_file
from marlflow.runtime.checkpoints import Checkpoint, CheckpointStore
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")

DRIVER = "driver"
_WAITING = "waiting"
_NO_ROWS = 1 << 62


def folder(run_dir: Path) -> Path:
    """Where a run's checkpoints are."""
    return run_dir / "checkpoints"


def identity(made: CheckedExperiment) -> dict[str, Any]:
    """What has to be the same for a run to go on: plain data, which a person can read."""
    spec = made.spec
    return {
        "seed": spec.seed,
        "env": {
            **_arguments(made.experiment.env),
            "wrappers": [_described(wrapper) for wrapper in made.experiment.env.wrappers],
            "factory": environment_name(made.experiment.env),
            "num_envs": spec.num_envs,
            "agents": list(made.agents),
        },
        "policies": {
            name: {
                "algorithm": policy.algorithm.name,
                "model": _described(policy.model),
                "observes": _described(policy.spaces.observation),
                "acts": _described(policy.spaces.action),
            }
            for name, policy in spec.policies.items()
        },
        "learners": {
            name: {
                "policies": list(learner.members),
                "algorithm": learner.algorithm.name,
                # What waits in a plan has gone through those that run elsewhere than at the learner, or has not.
                "stages": dict(learner.placement.stages),
            }
            for name, learner in spec.learners.items()
        },
    }


def _arguments(env: Env) -> dict[str, Any]:
    """What the environment is made with, but for how it is shown."""
    plain = (bool, int, float, str, NoneType)
    arguments = ((str(name), value) for name, value in env.arguments.items() if name != "render_mode")
    return {name: value if isinstance(value, plain) else _described(value) for name, value in arguments}


def _described(value: object) -> str:
    """What it is, the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


class Checkpointer:
    """Takes the checkpoints of a run, and gives back what is in one. `kept_at` are the env steps of the last.

    `run` is the run's name in what it records.
    """

    def __init__(self, made: CheckedExperiment, run_dir: Path, runtime: Runtime, run: str) -> None:
        self._made, self._runtime, self._settings = made, runtime, made.experiment.checkpoint
        self._run, self._recorded = run, dict[str, Mapping[str, Mapping[str, int]]]()
        self._store = CheckpointStore(folder(run_dir), self._settings.keep)
        self._begin_files()
        self.kept_at: int | None = None
        self._last: Path | None = None

    def _begin_files(self) -> None:
        """Nothing is kept yet that the next checkpoint could share: no rows, and no frozen entries."""
        self._entries: frozenset[str] = frozenset()
        keeps_none = self._settings.replay == "none"
        # From which row on each replay is to give its rows: where they ended the last time, or none at all.
        replays = [name for learner in self._made.spec.learners.values() for name in learner.replays]
        self._rows_saved = dict.fromkeys(replays, _NO_ROWS) if keeps_none else {}
        self._row_files: dict[str, RowsFile] = {}

    def keep(
        self,
        env_steps: int,
        driver_state: Callable[[QueuedItems], Tree],
        frozen: Mapping[str, Callable[[], bytes]],
        reports: int,
        figure: float | None,
    ) -> Path:
        """Writes a checkpoint; nothing is in flight. Raises ActorLost or CheckpointFailed: there is none then.

        `driver_state` says what the driver knows, with a tree of each item that waits. `frozen` gives what is in the
        file of each frozen entry, which is written once. `reports` have been made.
        """
        kept = self._runtime.save(self._rows_saved)
        files = dict(kept.files)
        waiting = QueuedItems()
        try:
            files[DRIVER] = to_bytes(driver_state(waiting))
        except TypeError as error:  # of a matchmaker of the user's, say
            raise CheckpointFailed(f"what the driver knows cannot be kept: {error}") from error
        for number, packed in enumerate(self._runtime.pack(waiting.payloads)):
            files[f"{_WAITING}.{number}"] = packed
        files |= {name: data() for name, data in frozen.items() if name not in self._entries}
        # Of those before, what is not all evicted.
        held = {name: rows for name, rows in self._row_files.items() if rows.stop > kept.replays[rows.replay][0]}
        recorded = self._recorded_with(kept.recorded)
        notes = Notes(self._run, identity(self._made), self._settings.replay, reports, recorded)
        shared = [name for name in (*held, *frozen) if name not in files]
        try:
            path = self._store.write(env_steps, files, shared, notes.as_json(), figure)
        except CheckpointFailed:
            if self._last is not None and not self._last.is_dir():  # somebody removed what rows were to be shared with
                self._begin_files()
            raise
        self._row_files = held | {name: rows for name in files if (rows := rows_file(name)) is not None}
        if self._settings.replay == "rows":
            self._rows_saved = {name: stop for name, (_, stop) in kept.replays.items()}
        self.kept_at, self._last, self._recorded = env_steps, path, recorded
        self._entries = frozenset(frozen)
        return path

    def _recorded_with(self, new: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, Mapping[str, int]]]:
        """The files recorded so far, `new` among them; those of other folders, policies and workers are as before."""
        if (recording := self._made.spec.recording) is None:
            return self._recorded
        before = self._recorded.get(recording.record, {})
        now = {policy: {**before.get(policy, {}), **new.get(policy, {})} for policy in {**before, **new}}
        return {**self._recorded, recording.record: now}

    def restore(
        self, checkpoint: Checkpoint, frozen: Mapping[str, FrozenPolicy]
    ) -> tuple[Tree, QueuedItems, ResumeReport]:
        """The driver's state, the rows that waited, and what could not be taken up again.

        `frozen` has the frozen entries that running episodes may seat.

        Raises CheckpointUnusable for whatever is not of the shape that it was written in.
        """
        with usable(checkpoint):
            return self._restore(checkpoint, frozen)

    def _restore(
        self, checkpoint: Checkpoint, frozen: Mapping[str, FrozenPolicy]
    ) -> tuple[Tree, QueuedItems, ResumeReport]:
        longest = self._settings.replay_max_env_steps
        resumed = self._runtime.restore(checkpoint.read, checkpoint.names, longest, frozen)
        self._entries = frozenset(map(frozen_file, frozen))
        self.kept_at, self._last = checkpoint.env_steps, checkpoint.path
        self._recorded = dict(notes_of(checkpoint).recorded)
        self._store.continue_from(checkpoint)
        tree = from_bytes(checkpoint.read(DRIVER))
        count = sum(name.startswith(f"{_WAITING}.") for name in checkpoint.names)
        packed = [checkpoint.read(f"{_WAITING}.{number}") for number in range(count)]
        if self._settings.replay == "rows":
            self._row_files = {name: rows for name in checkpoint.names if (rows := rows_file(name)) is not None}
            for rows in self._row_files.values():
                self._rows_saved[rows.replay] = max(rows.stop, self._rows_saved.get(rows.replay, 0))
        return tree, QueuedItems(self._runtime.unpack(packed)), resumed


def not_resumed(resumed: ResumeReport) -> Iterator[str]:
    """Which running episodes could not be gone on with, in words."""
    if resumed.episodes_abandoned:
        yield f"{resumed.episodes_abandoned} running episodes did not come out the same and were given up"
    if resumed.episodes_restarted:
        yield f"{resumed.episodes_restarted} running episodes were too long to be played again and begin anew"


@contextmanager
def usable(checkpoint: Checkpoint) -> Iterator[None]:
    """What is in `checkpoint` is taken up in here; raises CheckpointUnusable, with its path, if it cannot be.

    Its hashes are right, but whoever can write to the folder may have put anything there.
    """
    try:
        yield
    except CheckpointUnusable as error:
        raise CheckpointUnusable([f"{checkpoint.path}: {problem}" for problem in error.problems]) from error
    except MALFORMED as error:
        reason = f"what is in it is not of the shape that marlflow writes ({type(error).__name__}: {error})"
        remedy = "remove it, and the one before it is used"
        raise CheckpointUnusable([f"{checkpoint.path} cannot be used: {reason}; {remedy}"]) from error


@contextmanager
def only_process_in(run_dir: Path, otherwise: str = "wait for its end") -> Iterator[None]:
    """No other process runs in this directory; raises ConfigInvalid, with what to do `otherwise`, if one does.

    It ends with its process.
    """
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigInvalid([f"another process is running in {run_dir}; {otherwise}, or interrupt it"]) from error
        except OSError as error:
            log.info("%s cannot be locked (%s): nothing keeps two processes from running in it", run_dir, error)
        yield
    finally:
        os.close(folder)


def kept_at(run_dir: Path) -> int | None:
    """Env steps of the newest whole checkpoint of a run; None if there is none."""
    try:
        return newest(run_dir).env_steps
    except CheckpointUnusable:
        return None


def newest(run_dir: Path) -> Checkpoint:
    """The newest whole checkpoint of a run; raises CheckpointUnusable if there is none."""
    return CheckpointStore(folder(run_dir), keep=1).load()


def passed_over(checkpoint: Checkpoint) -> list[str]:
    """Which newer checkpoints are not whole, and why."""
    return [f"checkpoint {path} is not whole ({why}); one before it is used" for path, why in checkpoint.passed_over]


def check_identity(checkpoint: Checkpoint, made: CheckedExperiment) -> None:
    """Raises CheckpointUnusable with every difference between the run that was kept and the one that is to go on."""
    kept, now = notes_of(checkpoint).identity, identity(made)
    if problems := list(_differences(kept, now)):
        raise CheckpointUnusable([f"{checkpoint.path}: {problem}" for problem in problems])


def _differences(kept: Any, now: Any, path: str = "") -> Iterator[str]:
    if isinstance(kept, Mapping) and isinstance(now, Mapping):
        for key in dict.fromkeys([*kept, *now]):
            where = f"{path}.{key}" if path else str(key)
            if key not in now:
                yield f"it has {where}, which this run has not"
            elif key not in kept:
                yield f"it has no {where}, which this run has"
            else:
                yield from _differences(kept[key], now[key], where)
    elif kept != now:
        yield f"{path} was {kept!r} when it was kept, and is {now!r} now{_if_moved(path, kept, now)}"


def _if_moved(path: str, kept: Any, now: Any) -> str:
    """What to do about a file or folder that is now elsewhere than the run, which says `path` of it, had it."""
    if not (isinstance(kept, str) and isinstance(now, str)) or Path(kept).exists() or not Path(now).exists():
        return ""
    link = shlex.join(["ln", "-s", str(Path(now).absolute()), kept])
    return f"; if it was moved, move it back or link it ({link}), and leave {path} as it was"
