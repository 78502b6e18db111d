"""Make the newest checkpoint of a run one of the trained policies that come with marlflow, as `gallery:<name>`.

python -m benchmarks.gallery.ship RUN NAME    with RUN a folder of `marlflow train`; NAME becomes gallery:NAME
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from marlflow.runs import saved_runs
from marlflow.runs.saved_runs import EXPERIMENT, newest

GALLERY = Path(saved_runs.__file__).parent / "gallery"
_RUN = "run.json"
# Fields that say where the run was, and whose it is.
_OF_ITS_USER = {"started_in": "", "signature": ""}


def ship(run: Path, name: str) -> Path:
    """Copy what loading needs; return the folder."""
    if not name.isidentifier():
        raise SystemExit(f"NAME consists of letters, digits and _, and {name!r} does not")
    target, checkpoint = GALLERY / name, newest(run)
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(checkpoint.path, target / "checkpoints" / checkpoint.path.name)
    shutil.copy(run / EXPERIMENT, target)
    about = {**json.loads((run / _RUN).read_text(encoding="utf-8")), **_OF_ITS_USER}
    (target / _RUN).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    return target


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
