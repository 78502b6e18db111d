"""The folder of a run, as a user names it."""

from __future__ import annotations

from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.base.links import check_links
from marlflow.runs.saved_runs import EXPERIMENT, folder
from marlflow.runs.shipped_runs import PREFIX, unpacked

RUN_MARKS = ("run.json", EXPERIMENT, "checkpoints", ".hydra")
"""A run's folder has at least one of these."""


def run_folder(given: Path | str, purpose: str, verb: str) -> Path:
    """Return the path that was given; raises ConfigInvalid if it is not the folder of a run with checkpoints.

    `gallery:<name>` is a run that comes with marlflow. No link in a folder may lead out of it.

    `purpose` is who needs it, a command for example, and `verb` what it does with it.
    """
    if str(given).startswith(PREFIX):
        return unpacked(str(given).removeprefix(PREFIX))
    run_dir = Path(given)
    if not run_dir.is_dir():
        raise ConfigInvalid([f"there is no directory {given}; {purpose} needs that of a run"])
    if not any((run_dir / mark).exists() for mark in RUN_MARKS):
        near = suggestion(run_dir.resolve())
        raise ConfigInvalid([f"{given} is not the directory of a run: it has none of {', '.join(RUN_MARKS)}{near}"])
    check_links(run_dir)
    if not folder(run_dir).is_dir():
        raise ConfigInvalid(
            [
                f"{given} has no checkpoints, so there is nothing to {verb}{suggestion(run_dir.resolve())}; a run "
                "takes its first checkpoint after its first round"
            ]
        )
    return run_dir


def suggestion(given: Path) -> str:
    """Suggest the run that contains the folder, or the newest run in it."""
    recorded = (".hydra", "checkpoints")
    inside = [path for name in recorded for depth in ("*", "*/*") for path in given.glob(f"{depth}/{name}")]
    inside.sort(key=lambda path: path.stat().st_mtime)
    around = [part / name for part in given.parents for name in recorded if (part / name).is_dir()]
    candidates = [*around[:1], *reversed(inside)]
    return f" (did you mean {candidates[0].parent}?)" if candidates else ""
