"""Checkpoints of a run: when they are taken, and the saved states of runtime, driver and queued items.

`runs.checkpoint_format` describes the files.
"""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, Final

import numpy as np
from filelock import FileLock, Timeout

from marlflow.base.errors import ActorLost, CheckpointFailed, CheckpointUnusable, ConfigInvalid, FaultKind
from marlflow.base.public_names import with_current_names
from marlflow.base.serialization import Tree, from_bytes, to_bytes
from marlflow.batches.items import Fragment, Inserted, JointFragment, Packed, Update
from marlflow.config.checked import CheckedExperiment
from marlflow.config.environment import environment_identity
from marlflow.config.experiment import CheckpointConfig
from marlflow.config.imported_policies import FROM, MEMBER, POLICY
from marlflow.driver.faults import FaultBudget
from marlflow.driver.other_runs import files_of_other_runs, hash_of, source_of
from marlflow.driver.run_metrics import RunMetrics
from marlflow.driver.service import Service
from marlflow.league.sides import sides_of
from marlflow.observe.report import is_of_evaluation
from marlflow.runs.checkpoint_format import Notes, RowsFile, as_text, notes_of, rows_file
from marlflow.runs.checkpoints import Checkpoint, CheckpointStore
from marlflow.runs.run_state import LOCK
from marlflow.runs.saved_policies import frozen_file
from marlflow.runs.saved_runs import DRIVER, folder, newest, usable
from marlflow.runtime.protocol import Runtime
from marlflow.sampling.protocol import FrozenPolicy
from marlflow.sampling.receipts import Fault
from marlflow.sampling.saved_state import ResumeReport

log = logging.getLogger("marlflow")

_QUEUED = "waiting"
_NO_ROWS = 1 << 62
# More than the time for which a reader of the run's state holds its lock.
_READER_S = 0.5


def identity(checked: CheckedExperiment) -> dict[str, Any]:
    """Return the plain data that must not change between a run and its resume."""
    spec, env = checked.spec, environment_identity(checked.experiment.env)
    return {
        "seed": spec.seed,
        "env": {
            **_arguments(env["arguments"]),
            "wrappers": [as_text(wrapper) for wrapper in checked.experiment.env.wrappers],
            "factory": env["factory"],
            "num_envs": spec.num_envs,
            "agents": list(checked.agents),
        },
        "policies": {
            name: {
                "algorithm": policy.algorithm.name,
                "model": as_text(policy.model),
                "observes": as_text(policy.spaces.observation),
                "acts": as_text(policy.spaces.action),
                **source_of(checked, name),
            }
            for name, policy in spec.policies.items()
        },
        "learners": {
            name: {
                "policies": list(learner.members),
                "algorithm": learner.algorithm.name,
                **({"learns_from": list(learner.others)} if learner.others else {}),
                # Where stages run decides which of them a queued item has passed.
                "stages": dict(learner.placement.stages),
            }
            for name, learner in spec.learners.items()
        },
        **_league(checked),
        **_changes(checked),
    }


def _changes(checked: CheckedExperiment) -> dict[str, Any]:
    declared = {
        name: may_change
        for name, callback in checked.experiment.callbacks.items()
        if callback is not None and (may_change := callback.may_change()) is not None
    }
    changes = {name: {"policies": list(it.policies), "settings": sorted(it.settings)} for name, it in declared.items()}
    return {"changes": changes} if changes else {}


def _league(checked: CheckedExperiment) -> dict[str, Any]:
    if (league := checked.experiment.league) is None:
        return {}
    kind = type(league.matchmaker)
    sides, _ = sides_of(league.sides, checked.agents)
    return {
        "league": {
            "matchmaker": f"{kind.__module__}.{kind.__qualname__}",
            "sides": {role.name: [sides.names[role.side], *role.agents] for role in sides.roles},
            "symmetric": league.symmetric,
            "players": {name: list(agents) for name, agents in checked.players.items()},
            "members": {
                name: {**{key: given[key] for key in (FROM, MEMBER, POLICY) if key in given}, **hash_of(checked, name)}
                for name, given in league.members.items()
            },
        }
    }


def _arguments(of_env: Mapping[str, Any]) -> dict[str, Any]:
    plain = (bool, int, float, str, NoneType)
    arguments = ((str(name), value) for name, value in of_env.items() if name != "render_mode")
    return {name: value if isinstance(value, plain) else as_text(value) for name, value in arguments}


class Checkpointer:
    """Saves and restores checkpoints. `saved_at`: env steps of the last one, or None.

    `run_name` identifies the run in the datasets that it records.
    """

    def __init__(self, checked: CheckedExperiment, run_dir: Path, runtime: Runtime, run_name: str) -> None:
        self._checked, self._settings = checked, checked.experiment.checkpoint
        self._runtime = runtime
        self._run_name = run_name
        self._recorded: dict[str, Mapping[str, Mapping[str, int]]] = {}
        self._store = CheckpointStore(folder(run_dir), self._settings.keep)
        self._forget_shared_files()
        self.saved_at: int | None = None
        self._last: Path | None = None

    def _forget_shared_files(self) -> None:
        # The next checkpoint then writes all replay rows and frozen weights.
        self._frozen_files: frozenset[str] = frozenset()
        keeps_none = self._settings.replay == "none"
        # The first row number that each replay is to save: the end of the last save, or beyond all rows for none.
        replays = [name for learner in self._checked.spec.learners.values() for name in learner.replays]
        self._rows_saved = dict.fromkeys(replays, _NO_ROWS) if keeps_none else {}
        self._row_files: dict[str, RowsFile] = {}

    def save(
        self,
        env_steps: int,
        driver_state: Callable[[QueuedItems], Tree],
        frozen: Mapping[str, bytes | Path],
        reports: int,
        metric: float | None,
    ) -> Path:
        """Write a checkpoint while nothing is in flight; return its folder.

        `driver_state` adds the items that wait in plans to QueuedItems. `frozen` gives the content of each frozen
        entry's file, or its path. `reports` counts the lines of metrics.jsonl. The best checkpoint, which has the
        highest `metric`, is kept in addition to the newest. Raises ActorLost or CheckpointFailed.
        """
        saved = self._runtime.save(self._rows_saved)
        files: dict[str, bytes | Path] = {**saved.files, **self._driver_files(driver_state)}
        of_others = files_of_other_runs(self._checked)
        files |= {name: content for name, content in frozen.items() if name not in self._frozen_files}
        files |= {name: content() for name, content in of_others.items() if name not in self._frozen_files}
        # Share the files of rows that the replay has not evicted completely.
        still_held = {name: rows for name, rows in self._row_files.items() if rows.stop > saved.replays[rows.replay][0]}
        recorded = self._merge_recorded(saved.recorded)
        notes = Notes(self._run_name, identity(self._checked), self._settings.replay, reports, recorded)
        shared = [name for name in (*still_held, *frozen, *of_others) if name not in files]
        try:
            path = self._store.write(env_steps, files, shared, notes.as_json(), metric)
        except CheckpointFailed:
            # The checkpoint to share files with was removed by hand: the next one writes everything.
            if self._last is not None and not self._last.is_dir():
                self._forget_shared_files()
            raise
        self._row_files = still_held | {name: rows for name in files if (rows := rows_file(name)) is not None}
        if self._settings.replay == "rows":
            self._rows_saved = {name: stop for name, (_, stop) in saved.replays.items()}
        self.saved_at, self._last = env_steps, path
        self._recorded = recorded
        self._frozen_files = frozenset((*frozen, *of_others))
        return path

    def rate(self, metric: float | None) -> None:
        """Give the last checkpoint another `metric`; raises CheckpointFailed."""
        if self.saved_at is not None:
            self._store.rate(metric)

    def _driver_files(self, driver_state: Callable[[QueuedItems], Tree]) -> dict[str, bytes]:
        queued = QueuedItems()
        state = _driver_bytes(driver_state, queued)
        payloads = self._runtime.pack(queued.payloads)
        return {DRIVER: state, **{f"{_QUEUED}.{number}": packed for number, packed in enumerate(payloads)}}

    def _merge_recorded(self, new: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, Mapping[str, int]]]:
        if (recording := self._checked.spec.recording) is None:
            return self._recorded
        previous = self._recorded.get(recording.record, {})
        current = {policy: {**previous.get(policy, {}), **new.get(policy, {})} for policy in {**previous, **new}}
        return {**self._recorded, recording.record: current}

    def restore(
        self, checkpoint: Checkpoint, frozen: Mapping[str, FrozenPolicy]
    ) -> tuple[Tree, QueuedItems, ResumeReport]:
        """Restore the runtime; return the driver's state, the queued items, and a report of losses.

        `frozen` has the frozen entries of running episodes. Raises CheckpointUnusable for malformed contents.
        """
        with usable(checkpoint):
            return self._restore(checkpoint, frozen)

    def _restore(
        self, checkpoint: Checkpoint, frozen: Mapping[str, FrozenPolicy]
    ) -> tuple[Tree, QueuedItems, ResumeReport]:
        max_env_steps = self._settings.replay_max_env_steps
        report = self._runtime.restore(checkpoint.read, checkpoint.names, max_env_steps, frozen)
        self._frozen_files = frozenset(name for name in map(frozen_file, frozen) if name in checkpoint.names)
        self._frozen_files |= files_of_other_runs(self._checked).keys() & set(checkpoint.names)
        self.saved_at, self._last = checkpoint.env_steps, checkpoint.path
        self._recorded = dict(notes_of(checkpoint).recorded)
        self._store.continue_from(checkpoint)
        tree = from_bytes(checkpoint.read(DRIVER))
        count = sum(name.startswith(f"{_QUEUED}.") for name in checkpoint.names)
        packed = [checkpoint.read(f"{_QUEUED}.{number}") for number in range(count)]
        if self._settings.replay == "rows":
            self._row_files = {name: rows for name in checkpoint.names if (rows := rows_file(name)) is not None}
            for rows in self._row_files.values():
                self._rows_saved[rows.replay] = max(rows.stop, self._rows_saved.get(rows.replay, 0))
        return tree, QueuedItems(self._runtime.unpack(packed)), report


def _driver_bytes(driver_state: Callable[[QueuedItems], Tree], queued: QueuedItems) -> bytes:
    try:
        return to_bytes(driver_state(queued))
    except TypeError as error:
        # A user's matchmaker, for example, may have state that cannot be serialized.
        raise CheckpointFailed(f"what the driver knows cannot be kept: {error}") from error


@contextmanager
def only_process_in(run_dir: Path, otherwise: str = "wait for its end") -> Iterator[None]:
    """Lock a run's directory in this context; raise ConfigInvalid if another process has it."""
    # The kernel releases the lock with the process, so a killed run leaves none behind; a soft lock would stay.
    lock = FileLock(run_dir / LOCK, timeout=_READER_S, fallback_to_soft=False)
    try:
        try:
            lock.acquire()
        except Timeout as error:
            raise ConfigInvalid([f"another process is running in {run_dir}; {otherwise}, or interrupt it"]) from error
        except (OSError, NotImplementedError) as error:
            log.info("%s cannot be locked (%s): nothing keeps two processes from running in it", run_dir, error)
        yield
    finally:
        lock.release()


def saved_at(run_dir: Path) -> int | None:
    """Return the env steps of a run's newest valid checkpoint, or None."""
    try:
        return newest(run_dir).env_steps
    except CheckpointUnusable:
        return None


def check_identity(checkpoint: Checkpoint, checked: CheckedExperiment) -> None:
    """Raise CheckpointUnusable with every difference between the checkpoint's run and this experiment."""
    if problems := identity_differences(checkpoint, checked):
        raise CheckpointUnusable(problems)


def identity_differences(
    checkpoint: Checkpoint, checked: CheckedExperiment, parts: Collection[str] | None = None
) -> list[str]:
    """Return every difference between the checkpoint's run and this experiment, or only the differences in `parts`."""
    saved, current = (
        {part: values for part, values in of.items() if parts is None or part in parts}
        for of in (with_current_names(notes_of(checkpoint).identity), identity(checked))
    )
    return [f"{checkpoint.path}: {difference}" for difference in _differences(saved, current)]


def _differences(saved: Any, current: Any, path: str = "") -> Iterator[str]:
    if isinstance(saved, Mapping) and isinstance(current, Mapping):
        for key in dict.fromkeys([*saved, *current]):
            where = f"{path}.{key}" if path else str(key)
            if key not in current:
                yield f"it has {where}, which this run has not"
            elif key not in saved:
                yield f"it has no {where}, which this run has"
            else:
                yield from _differences(saved[key], current[key], where)
    elif saved != current and not (_is_model(path) and _settings_of(saved) == _settings_of(current)):
        yield f"{path} was {saved!r} when it was kept, and is {current!r} now{_link_remedy(path, saved, current)}"


def _is_model(path: str) -> bool:
    return path.startswith("policies.") and path.endswith(".model")


def _settings_of(model: object) -> str:
    """Return the text of a model with lists as tuples, and NumPy's numbers as plain ones: so are recorded ones."""
    plain = re.sub(r"np\.\w+\(([^()]*)\)", r"\1", str(model))
    return plain.replace("[", "(").replace("]", ")").replace(",)", ")")


def _link_remedy(path: str, saved: Any, current: Any) -> str:
    if not (isinstance(saved, str) and isinstance(current, str)) or Path(saved).exists() or not Path(current).exists():
        return ""
    link = shlex.join(["ln", "-s", str(Path(current).absolute()), saved])
    return f"; if it was moved, move it back or link it ({link}), and leave {path} as it was"


_KINDS: Mapping[str, Any] = {kind.__name__: kind for kind in (Fragment, JointFragment, Packed, Inserted, Update)}


_PLAIN: Final = "plain"


def _is_plain(item: Any) -> bool:
    """Return whether serialization keeps an item as it is."""
    if isinstance(item, dict):
        return all(isinstance(key, str) and _is_plain(value) for key, value in item.items())
    if isinstance(item, list):
        return all(map(_is_plain, item))
    return item is None or isinstance(item, bool | int | float | str | np.ndarray)


class QueuedItems:
    """Converts items to trees and back; `payloads` has the rows of all items in order."""

    def __init__(self, payloads: Sequence[Any] = ()) -> None:
        self.payloads = list(payloads)

    def to_tree(self, item: Any) -> Tree:
        """Return an item's tree; raise CheckpointFailed for a user's own type."""
        kind = type(item).__name__
        if _is_plain(item):
            return {"kind": _PLAIN, "of": item}
        if _KINDS.get(kind) is not type(item):
            kept = f"{', '.join(_KINDS)}, and numbers, texts, arrays, and lists and dicts of these, can be kept"
            raise CheckpointFailed(f"a {kind} waits in the plan ({item!r:.80}), and only {kept}")
        tree = {field.name: getattr(item, field.name) for field in fields(item)}
        # The tree has indices of payloads, because payloads are serialized where their rows are: by the runtime.
        if "payloads" in tree:
            tree["payloads"] = [len(self.payloads) + place for place in range(len(item.payloads))]
            self.payloads.extend(item.payloads)
        if "loss" in tree:
            tree["loss"] = dict(item.loss)
        return {"kind": kind, **tree}

    def from_tree(self, tree: Tree) -> Any:
        """Return the item that `to_tree` was called with."""
        if isinstance(tree, Mapping) and tree["kind"] == _PLAIN:
            return tree["of"]
        # Serialization turns tuples into lists.
        values: dict[str, Any] = {
            name: tuple(value) if name in ("payloads", "keys", "finished") else value for name, value in tree.items()
        }
        kind = _KINDS[str(values.pop("kind"))]
        if "payloads" in values:
            values["payloads"] = tuple(self.payloads[number] for number in values["payloads"])
        return kind(**values)


class CheckpointTiming(Service):
    """Calls `save` after the first round and then every `every_env_steps`; None: only at the end of the run.

    If the best checkpoint is that of an evaluation's figure, also after each evaluation, since it counts for the
    checkpoint that follows it; the last evaluation, for the last checkpoint. A failed checkpoint is a fault. `failure`
    is the error of the last attempt, or None.
    """

    def __init__(
        self,
        settings: CheckpointConfig,
        metrics: RunMetrics,
        checkpointer: Checkpointer,
        save: Callable[[], Path],
        budget: FaultBudget,
        rating: Callable[[], float | None],
    ) -> None:
        self._every = settings.every_env_steps
        self._rates_evaluations = settings.best is not None and is_of_evaluation(settings.best)
        self._rating = rating
        self._metrics = metrics
        self._checkpointer = checkpointer
        self._save = save
        self._budget = budget
        # Due after the first round, so that a folder that cannot be written is noticed at the start (decision 0024).
        self._due = 0
        self._updates_saved = 0
        self._is_last = False
        # The env steps of the last evaluation before the last attempt.
        self._evaluation_tried: int | None = None

    @property
    def has_news(self) -> bool:
        """Whether env steps were taken since the last checkpoint, or updates made, as of the last rows of a dataset."""
        if self._metrics.env_steps != self._checkpointer.saved_at:
            return self._metrics.env_steps != 0
        return self._updates != self._updates_saved

    @property
    def _updates(self) -> int:
        return sum(totals.updates for totals in self._metrics.learners.values())

    @property
    def is_due(self) -> bool:
        """Whether a checkpoint is due after this round."""
        if self._every is None:
            return False
        return self._metrics.env_steps >= self._due or (self._rates_evaluations and self._has_untried_evaluation)

    @property
    def _has_new_evaluation(self) -> bool:
        at, saved_at = self._metrics.evaluated_at, self._checkpointer.saved_at
        return at is not None and (saved_at is None or at > saved_at)

    @property
    def _has_untried_evaluation(self) -> bool:
        return self._has_new_evaluation and self._metrics.evaluated_at != self._evaluation_tried

    @property
    def is_rated(self) -> bool:
        """Whether a checkpoint that is taken now has the metric `best`, which an evaluation may not have given anew."""
        is_now = self._metrics.evaluated_at == self._metrics.env_steps
        return not self._rates_evaluations or is_now or self._has_new_evaluation

    def resumed(self, checkpoint: Checkpoint, report: ResumeReport) -> None:
        self._updates_saved = self._updates
        if self._every is not None:
            self._due = self._metrics.env_steps + self._every

    def stopped(self) -> None:
        """Keep the checkpoint that was taken before the run stopped.

        Plans whose branches take turns, such as Ape-X's, may make updates after it, while they end. A checkpoint of
        ended plans would replace it, and a run that resumes from such a checkpoint ends at once.
        """
        self._is_last = self._metrics.env_steps == self._checkpointer.saved_at

    def after_training(self) -> None:
        if self.has_news and not self._is_last and self.failure is None and self._budget.failure is None:
            self.take()

    def at_end(self) -> None:
        if not self._rates_evaluations or self._metrics.evaluated_at != self._checkpointer.saved_at:
            return
        try:
            # The last evaluation comes after the last checkpoint.
            self._checkpointer.rate(self._rating())
        except CheckpointFailed as failure:
            self._failed(failure)

    def _failed(self, failure: ActorLost | CheckpointFailed) -> None:
        where = f"checkpoint at {self._metrics.env_steps} env steps"
        self._budget.faulted(Fault(FaultKind.CHECKPOINTS_FAILED, where, str(failure), "", 0))
        self.failure = failure

    def take(self) -> None:
        """Take a checkpoint while nothing is in flight; count a failure as a fault."""
        while self._every is not None and self._metrics.env_steps >= self._due:
            self._due += self._every
        updates, self._evaluation_tried = self._updates, self._metrics.evaluated_at
        try:
            try:
                path = self._save()
            except ActorLost:
                # The process may have been lost earlier and only noticed now; by now it has been replaced.
                path = self._save()
        except (ActorLost, CheckpointFailed) as failure:
            self._failed(failure)
            return
        self.failure, self._updates_saved = None, updates
        log.info("checkpoint %s", path)
