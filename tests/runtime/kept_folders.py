"""Folders of checkpoints for tests, and how they come to harm."""

import hashlib
import json
from pathlib import Path
from typing import Any

from marlflow.base.serialization import to_bytes
from marlflow.runs.checkpoints import Checkpoint, CheckpointStore

FILES = {"learner.a/b": b"weights" * 20, "workers": b"w" * 300, "rows.a/b.0-10": bytes(range(256)), "empty": b""}
NOTES = {"policies": {"a/b": "ppo"}, "counts": [1, 2.5, None, True]}


def written(folder: Path, *numbers: int, keep: int = 9) -> CheckpointStore:
    checkpoints = CheckpointStore(folder, keep)
    for number in numbers:
        checkpoints.write(number, contents(number), [], NOTES, None)
    return checkpoints


def contents(number: int) -> dict[str, bytes]:
    return {**FILES, "driver": str(number).encode()}


def read_all(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {name: checkpoint.read(name) for name in checkpoint.names}


def numbers_in(folder: Path) -> list[int]:
    """The checkpoints there; nothing else may be left."""
    return sorted(int(path.name) for path in folder.iterdir())


def file_of(folder: Path, number: int, start: str) -> Path:
    (found,) = (path for path in (folder / str(number)).iterdir() if path.name.startswith(start))
    return found


def flip(path: Path, at: int = 0, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def rewrite(path: Path, **changed: Any) -> None:
    """Changes the manifest, its own hash made to fit."""
    manifest = json.loads((path / "checkpoint.json").read_text())
    content = {key: value for key, value in (manifest | changed).items() if key != "sha256"}
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    content["sha256"] = hashlib.sha256(canonical.encode()).hexdigest()
    (path / "checkpoint.json").write_text(json.dumps(content))


def write_tree(path: Path, name: str, tree: Any) -> None:
    """Another tree in a checkpoint's file, every hash made to fit."""
    data = to_bytes(tree)
    files = json.loads((path / "checkpoint.json").read_text())["files"]
    files[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (path / f"{name}.safetensors").write_bytes(data)
    rewrite(path, files=files)
