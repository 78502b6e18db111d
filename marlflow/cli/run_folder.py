"""The folder of a run, as an argument of a command."""

from __future__ import annotations

from pathlib import Path

from marlflow.base.errors import ConfigInvalid


def run_folder(text: str, command: str) -> Path:
    """Return the folder that `text` names; raises ConfigInvalid if it is the folder of no run that has checkpoints."""
    folder = Path(text)
    if not folder.is_dir():
        raise ConfigInvalid([f"there is no directory {text}; {command} needs that of a run"])
    if not (folder / "checkpoints").is_dir():
        raise ConfigInvalid(
            [
                f"{text} has no checkpoints, so there is nothing to {_VERBS.get(command, command)}"
                f"{suggestion(folder.resolve())}; a run takes its first checkpoint after its first round"
            ]
        )
    return folder


_VERBS = {"league": "show"}


def suggestion(folder: Path) -> str:
    """Suggest the run that contains the folder, or the newest run in it."""
    recorded = (".hydra", "checkpoints")
    inside = [path for name in recorded for depth in ("*", "*/*") for path in folder.glob(f"{depth}/{name}")]
    inside.sort(key=lambda path: path.stat().st_mtime)
    around = [part / name for part in folder.parents for name in recorded if (part / name).is_dir()]
    candidates = [*around[:1], *reversed(inside)]
    return f" (did you mean {candidates[0].parent}?)" if candidates else ""
