"""Find what a user names of a saved run: its folder or `gallery:<name>`, a checkpoint in it, and its players.

No slow module is imported, so that a wrong name is refused at once.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal

from marlflow.base.errors import CheckpointUnusable, ConfigInvalid
from marlflow.base.files import cache_folder
from marlflow.base.links import check_links
from marlflow.base.sentences import meant
from marlflow.base.serialization import MALFORMED
from marlflow.runs.checkpoint_format import Checkpoint, notes_of
from marlflow.runs.checkpoints import CheckpointStore

log = logging.getLogger("marlflow")

DRIVER = "driver"
"""The name of the file with the driver's state."""

EXPERIMENT = "experiment.json"
"""The file of a run's folder that describes its experiment as plain data, in the form of a configuration."""

Which = Literal["best"] | int | None
"""A checkpoint of a run: the best by a metric, the one at this number of env steps, or (None) the newest."""
RUN_MARKS = ("run.json", EXPERIMENT, "checkpoints", ".hydra")
"""A run's folder has at least one of these."""
PREFIX = "gallery:"
_SHIPPED = Path(__file__).parent / "gallery"
RANDOM: Final = "random"
"""Acts uniformly at random; a policy of this name takes precedence."""
MIXTURE: Final = "mixture"
"""The meta-strategy of a run with `league=psro`."""
TEAM: Final = "team"
"""The policies of a run, each for the agents that it played in training."""
EXPORTED: Final = ".safetensors"
"""The ending of the files of `marlflow league --export`."""
FROZEN: Final = "frozen."
"""The prefix of the names of frozen policies' files in a checkpoint."""


def folder(run_dir: Path) -> Path:
    """Return a run's checkpoint folder."""
    return run_dir / "checkpoints"


def newest(run_dir: Path) -> Checkpoint:
    """Return a run's newest valid checkpoint, whatever was passed over; raise CheckpointUnusable if there is none."""
    return CheckpointStore(folder(run_dir), keep=1).load()


def chosen(
    run_dir: Path, which: Which = None, scores: Callable[[], Mapping[int, float]] = dict, strict: bool = False
) -> Checkpoint:
    """Return a valid checkpoint of a run; raise CheckpointUnusable if it is not there.

    The best checkpoint has the highest metric `checkpoint.best`. If the run set none, it has the highest score;
    `scores` returns the score of each checkpoint, by env steps. If the checkpoint to choose is damaged, a warning is
    logged and another one is chosen; if `strict`, CheckpointUnusable is raised.
    """
    checkpoint = _chosen(run_dir, which, scores)
    if checkpoint.passed_over and strict:
        raise CheckpointUnusable(
            [
                f"{_damaged(checkpoint)}, and strict=true uses no other; put it back from a copy, or choose a whole "
                f"one: checkpoint={checkpoint.env_steps}"
            ]
        )
    if (notice := skipped(checkpoint)) is not None:
        log.warning(notice)
    return checkpoint


def _chosen(run_dir: Path, which: Which, scores: Callable[[], Mapping[int, float]]) -> Checkpoint:
    store = CheckpointStore(folder(run_dir), keep=1)
    if which is None:
        return store.load()
    if which != "best":
        return store.at(which)
    metric = _recorded(run_dir, "checkpoint").get("best")
    if (best := store.best(dict if metric else scores)) is not None:
        return best
    newest_whole, whole = store.load(), store.whole()
    why = (
        f"its checkpoint.best, {metric}, had no value at any of them"
        if metric
        else "the run had no checkpoint.best, a metric such as policies.<id>.eval_return_mean, and no evaluation of "
        "its only learner at a checkpoint"
    )
    kept = ", ".join(f"{one.env_steps}{' (the newest)' * (one.env_steps == newest_whole.env_steps)}" for one in whole)
    raise CheckpointUnusable(
        [f"which checkpoint of {run_dir} is the best is not known: {why}; choose one by its env steps: {kept}"]
    )


def skipped(checkpoint: Checkpoint) -> str | None:
    """Return one sentence on the damaged checkpoints that this one replaces; None if there are none."""
    if not checkpoint.passed_over:
        return None
    return f"{_damaged(checkpoint)}; checkpoint {checkpoint.env_steps} is used instead"


def _damaged(checkpoint: Checkpoint) -> str:
    return "; ".join(f"checkpoint {path} is not whole ({why})" for path, why in checkpoint.passed_over)


@contextmanager
def usable(checkpoint: Checkpoint) -> Iterator[None]:
    """Raise CheckpointUnusable, with the checkpoint's path, for malformed contents found in this context."""
    try:
        yield
    except CheckpointUnusable as error:
        raise CheckpointUnusable([f"{checkpoint.path}: {problem}" for problem in error.problems]) from error
    # Hashes only show that the files are complete: a user who can write to the folder may have put anything there.
    except MALFORMED as error:
        reason = f"what is in it is not of the shape that marlflow writes ({type(error).__name__}: {error})"
        remedy = "remove it, and the one before it is used"
        raise CheckpointUnusable([f"{checkpoint.path} cannot be used: {reason}; {remedy}"]) from error


def run_folder(given: Path | str, purpose: str, verb: str) -> Path:
    """Return the path that was given; raises ConfigInvalid if it is not the folder of a run with checkpoints.

    `gallery:<name>` is a run that comes with marlflow. No link in a folder may lead out of it.

    For messages, `purpose` names the command or function that needs the run, and `verb` says what it does with a run.
    """
    run_dir = located(given)
    if str(given).startswith(PREFIX):
        return run_dir
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {given}; {purpose} needs that of a run"])
    check_marks(run_dir, given)
    check_links(run_dir)
    if not folder(run_dir).is_dir():
        raise ConfigInvalid(
            [
                f"{given} has no checkpoints, so there is nothing to {verb}{suggestion(run_dir.resolve())}; a run "
                "takes its first checkpoint after its first round"
            ]
        )
    return run_dir


def check_marks(folder: Path, given: Path | str) -> None:
    """Raise ConfigInvalid if a folder, which was `given` like this, has nothing that a run leaves."""
    if not any((folder / mark).exists() for mark in RUN_MARKS):
        near = suggestion(folder.resolve())
        raise ConfigInvalid([f"{given} is not the directory of a run: it has none of {', '.join(RUN_MARKS)}{near}"])


def suggestion(given: Path) -> str:
    """Suggest the run that contains the folder, or the newest run in it."""
    recorded = (".hydra", "checkpoints")
    inside = [path for name in recorded for depth in ("*", "*/*") for path in given.glob(f"{depth}/{name}")]
    inside.sort(key=lambda path: path.stat().st_mtime)
    around = [part / name for part in given.parents for name in recorded if (part / name).is_dir()]
    candidates = [*around[:1], *reversed(inside)]
    return f" (did you mean {candidates[0].parent}?)" if candidates else ""


def shipped_runs() -> list[str]:
    """Return the names of the runs that come with marlflow, sorted."""
    return sorted(path.name for path in _SHIPPED.iterdir() if path.is_dir()) if _SHIPPED.is_dir() else []


def located(given: Path | str, base: Path = Path()) -> Path:
    """Return the path of a run or a file: relative ones begin at `base`; `gallery:<name>` comes with marlflow.

    The latter is a copy in the user's cache folder, because evaluations are written into the folder of their run. Other
    files get another name, so only damaged files are ever replaced. Raises ConfigInvalid if there is none of this name,
    or no folder for it.
    """
    if not str(given).startswith(PREFIX):
        return base / given
    name = str(given).removeprefix(PREFIX)
    if name not in (names := shipped_runs()):
        raise ConfigInvalid([f"there is no {PREFIX}{name}{meant(name, names, 'there are')}"])
    files = {path.relative_to(_SHIPPED): path.read_bytes() for path in (_SHIPPED / name).rglob("*") if path.is_file()}
    content = hashlib.sha256(b"".join(str(path).encode() + files[path] for path in sorted(files))).hexdigest()[:8]
    try:
        cache = cache_folder("gallery") / content
        cache.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path, data in files.items():
            _write(cache / path, data)
    except (OSError, RuntimeError) as error:
        remedy = "set XDG_CACHE_HOME to a folder that you can write to"
        raise ConfigInvalid([f"{PREFIX}{name} cannot be unpacked: {error}; {remedy}"]) from error
    check_links(cache / name)
    return cache / name


def _write(path: Path, data: bytes) -> None:
    """Write a file, unless it is there; whole, because another process may read it."""
    if path.is_file() and not path.is_symlink() and path.read_bytes() == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    part.write_bytes(data)
    part.replace(path)


def unknown_members(labels: Collection[str], checkpoint: Checkpoint, base: Path) -> Iterator[str]:
    """Yield a problem for each unknown label; none for a run with a league, because its members are not read.

    `base` is where paths begin. Raises CheckpointUnusable if the checkpoint's notes are malformed.
    """
    identity = notes_of(checkpoint).identity
    policies = identity.get("policies")
    if "league" in identity or not isinstance(policies, dict):
        return
    run_dir = checkpoint.path.parent.parent
    # Opponents of its evaluation are none of a checkpoint's policies.
    declared = _recorded(run_dir, "policies")
    known = list(dict.fromkeys([*policies, *frozen_names(checkpoint), *declared, RANDOM, TEAM, MIXTURE]))
    for label in labels:
        is_elsewhere = ":" in label or label.endswith(EXPORTED) or (base / label).exists()
        if label not in known and not is_elsewhere:
            yield no_member(label, known[:-1])


def _recorded(run_dir: Path, key: str) -> Mapping[str, Any]:
    """Return a mapping of a run's recorded experiment; empty if it is not there or cannot be read."""
    try:
        found = json.loads((run_dir / EXPERIMENT).read_text(encoding="utf-8"))[key]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def frozen_names(checkpoint: Checkpoint) -> list[str]:
    """Return the ids of a checkpoint's frozen entries."""
    return [name.removeprefix(FROZEN) for name in checkpoint.names if name.startswith(FROZEN)]


def no_member(label: str, known: Sequence[str]) -> str:
    """Return the problem of an unknown label."""
    if "/" in label:
        return f"there is no folder {label!r}, and no member of this name"
    return f"there is no member {label!r}{meant(label, known, 'there are')}"


def unknown_agents(person: str | None, seats: Collection[str], agents: Sequence[str]) -> Iterator[str]:
    """Yield a problem for each seat, and for a person's, that is no agent."""
    for agent in seats:
        if agent not in agents:
            yield f"seats: there is no agent {agent!r}{meant(agent, agents, 'the agents are')}"
    if person is not None and person not in agents:
        yield f"there is no agent {person!r} to play as{meant(person, agents, 'the agents are')}"
