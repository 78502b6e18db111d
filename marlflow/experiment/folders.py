"""Whether a folder that a run is to write to can be made, before anything starts; nothing is left of the trial."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path


def folder_problems(setting: str, folder: Path) -> Iterator[str]:
    """One sentence if `folder`, which `setting` names, is no folder and cannot be made, or cannot be written to."""
    try:
        folder = folder.absolute()
        folder.exists()  # raises for a name that is too long, or has a NUL
        existing = next(part for part in (folder, *folder.parents) if part.exists())
        # A folder of its own, for who may write where depends on more than permissions: /proc has none to be made in.
        Path(tempfile.mkdtemp(prefix=".marlflow-", dir=existing)).rmdir()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        yield f"{setting}: the folder {str(folder)!r:.200} cannot be made or written to: {reason}; choose another"
