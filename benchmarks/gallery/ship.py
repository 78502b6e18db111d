"""Make the newest checkpoint of a run one of the trained policies that come with marlflow, as `gallery:<name>`.

python -m benchmarks.gallery.ship RUN NAME    with RUN a folder of `marlflow train`; NAME becomes gallery:NAME
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from marlflow.base.serialization import from_bytes, to_bytes
from marlflow.runs import saved_runs
from marlflow.runs.checkpoint_format import MANIFEST, Checkpoint, CheckpointFile, manifest_text, tensors_file
from marlflow.runs.saved_runs import DRIVER, EXPERIMENT, newest

GALLERY = Path(saved_runs.__file__).parent / "gallery"
_RUN = "run.json"
# Fields that say where the run was, and whose it is.
_OF_ITS_USER = {"started_in": "", "signature": ""}
_TO_ACT: Final = ("version", "published", "published_sizes")
"""What acting needs of a learner's state; its critic and optimizer are several times as large."""


def ship(run: Path, name: str) -> Path:
    """Copy what loading needs; return the folder."""
    if not name.isidentifier():
        raise SystemExit(f"NAME consists of letters, digits and _, and {name!r} does not")
    target, checkpoint = GALLERY / name, newest(run)
    shutil.rmtree(target, ignore_errors=True)
    folder = target / "checkpoints" / checkpoint.path.name
    folder.mkdir(parents=True)
    kept = dict(_to_act(checkpoint))
    for file, data in kept.items():
        (folder / tensors_file(file)).write_bytes(data)
    files = {file: CheckpointFile(len(data), hashlib.sha256(data).hexdigest()) for file, data in kept.items()}
    (folder / MANIFEST).write_bytes(manifest_text(replace(checkpoint, files=files)))
    shutil.copy(run / EXPERIMENT, target)
    about = {**json.loads((run / _RUN).read_text(encoding="utf-8")), **_OF_ITS_USER}
    (target / _RUN).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return target


def _to_act(checkpoint: Checkpoint) -> Iterator[tuple[str, bytes]]:
    """Yield the name and content of each file that loading, playing and evaluating read."""
    for name in checkpoint.names:
        if name.startswith("learner."):
            state = from_bytes(checkpoint.read(name))
            yield name, to_bytes({key: state[key] for key in _TO_ACT if key in state})
        elif name == DRIVER:
            yield name, checkpoint.read(name)


def main(words: Sequence[str]) -> None:
    """Ship the run that the command line names, and say how large it is."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gallery.ship",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("name")
    options = parser.parse_args(words)
    made = ship(options.run, options.name)
    print(f"{made}: {sum(path.stat().st_size for path in made.rglob('*') if path.is_file()):,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
