"""Train shipped experiments, and write their pages into docs/gallery.

python -m benchmarks.gallery cartpole_team_ppo_dqn    train it with three seeds, evaluate, and write its page
python -m benchmarks.gallery                          all of them, which takes hours
python -m benchmarks.gallery --pages                  write all pages again from their .json files; trains nothing

Runs are kept in runs/gallery/<experiment>/<seed>, and one that is complete is not repeated. After a new page, take the
experiment out of WITHOUT_PAGE in cases.py, and run `python -m docs.algorithms`, which links algorithms to their pages.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.gallery import pages
from benchmarks.gallery.cases import CASES, PAGES, GalleryCase
from benchmarks.gallery.pictures import CURVE, NASH_CONV, film, write_curve
from benchmarks.gallery.results import results
from benchmarks.gallery.runs import run_folder, trained
from benchmarks.seeds import add_seeds


def make(case: GalleryCase, seeds: Sequence[int]) -> None:
    """Train, evaluate, and write the data, the pictures and the page of an experiment."""
    for seed in seeds:
        trained(case, seed)
    data, folder = results(case, seeds), PAGES / case.experiment
    folder.mkdir(parents=True, exist_ok=True)
    played = film(run_folder(case, seeds[0]), seeds[0], folder, data["evaluation"]["mode"], case.film_policy)
    data["film"] = None if played is None else asdict(played)
    (PAGES / f"{case.experiment}.json").write_text(as_text(data), encoding="utf-8")
    write_pages([case.experiment])
    print(f"   wrote {PAGES / case.experiment}.md", flush=True)


def as_text(data: Mapping[str, Any]) -> str:
    """Return data as JSON, with lists of numbers in one line each."""
    return re.sub(r"\[[\s\d.,eE+-]*\]", lambda found: " ".join(found[0].split()), json.dumps(data, indent=1)) + "\n"


def known() -> dict[str, dict[str, Any]]:
    """Return the data of all experiments that have some, in the order of the gallery."""
    files = {name: PAGES / f"{name}.json" for name in CASES}
    return {name: json.loads(path.read_text(encoding="utf-8")) for name, path in files.items() if path.exists()}


def texts() -> dict[str, str]:
    """Return the text of each page by the name of its file."""
    several = known()
    written = {f"{name}.md": pages.page(data) for name, data in several.items()}
    return {**written, "index.md": pages.index(list(several.values()))}


def write_pages(drawn: Sequence[str]) -> None:
    """Write all pages, and draw the curves of some experiments."""
    several = known()
    for name in drawn:
        data, folder = several[name], PAGES / name
        if pages.policy_curves(data):
            write_curve(folder / CURVE, f"{name}-curve", pages.policy_curves(data), pages.levels(data))
        if pages.nash_conv_curves(data):
            write_curve(folder / NASH_CONV, f"{name}-nash-conv", pages.nash_conv_curves(data), {})
    for name, text in texts().items():
        (PAGES / name).write_text(text, encoding="utf-8")


def main(arguments: Sequence[str]) -> int:
    """Make the named experiments, or all; return 1 if one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gallery", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("experiment", nargs="*", help="without any, all of the gallery")
    add_seeds(parser, 3)
    parser.add_argument("--pages", action="store_true", help="train nothing; write the pages again")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.experiment if name not in CASES]:
        parser.error(f"there is no {unknown[0]!r} in the gallery; it has {', '.join(CASES)}")
    if options.pages:
        write_pages(list(known()))
        return 0
    for name in options.experiment or CASES:
        make(CASES[name], options.seeds)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
