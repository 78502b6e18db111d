"""Parts of the page that only some runs have: leagues and videos."""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from marlflow.base.errors import InvalidInput
from marlflow.base.links import link_problem
from marlflow.html_report.groups import RunGroup
from marlflow.html_report.runs import Config, ReportedRun, section
from marlflow.runs.checkpoint_format import Checkpoint
from marlflow.runs.saved_runs import newest, skipped

if TYPE_CHECKING:
    from marlflow.league.standings import Standings

FILMS: Final = {".mp4": "video/mp4", ".webm": "video/webm", ".gif": "image/gif", ".webp": "image/webp"}
"""MIME types of films by the ending of their names; pages show pictures as <img>, all others as <video>."""
_EMBEDDED_BYTES, _ALL_EMBEDDED_BYTES = 3_000_000, 30_000_000


@dataclass(frozen=True, slots=True)
class LeagueTable:
    """The standings of a run's league at its newest checkpoint; `acting` is how members acted in the games of them."""

    group: RunGroup
    run: ReportedRun
    standings: Standings
    epoch: int
    games: int
    matches: int
    acting: str


@dataclass(frozen=True, slots=True)
class RunVideo:
    """A video or animated picture in a run's folder; `source` is its data, or the path to it from the page."""

    group: RunGroup
    run: ReportedRun
    name: str
    kind: str
    source: str

    @property
    def is_picture(self) -> bool:
        """Whether it is shown as a picture."""
        return self.kind.startswith("image/")


def leagues(groups: Sequence[RunGroup]) -> tuple[list[LeagueTable], list[str]]:
    """Return the leagues of all runs that have one, and a sentence on each whose checkpoint cannot be read."""
    found, notes = list[LeagueTable](), list[str]()
    for group in groups:
        for run in (run for run in group.runs if section(run.last, "league")):
            try:
                checkpoint = newest(run.folder)
                found.append(_league(group, run, checkpoint))
            except InvalidInput as error:
                notes.append(f"the standings of {run.folder} are left out: {error}")
                continue
            notes += [notice] if (notice := skipped(checkpoint)) else []
    return found, notes


def league_acting(config: Config, are_matches: bool) -> str:
    """Return how members acted in the games that a league's results are of: its matches, or without any its training.

    >>> league_acting({}, are_matches=False)
    'training games, exploration included'
    """
    if not are_matches:
        return "training games, exploration included"
    acts = section(config, "league", "snapshots").get("acts")
    sampled = "matches with sampled actions, greedy ones of value-based policies"
    return {"greedy": "matches with greedy actions", "sampled": sampled, "auto": sampled}.get(str(acts), "matches")


def _league(group: RunGroup, run: ReportedRun, checkpoint: Checkpoint) -> LeagueTable:
    # They import torch, which takes seconds.
    from marlflow.league.standings import standings
    from marlflow.runs.saved_league import saved_league

    saved = saved_league(run.folder, checkpoint)
    shown = standings(saved.members, saved.payoffs, saved.ratings, saved.versions())
    acting = league_acting(run.config, bool(saved.matches.cells))
    return LeagueTable(group, run, shown, saved.epoch, saved.games, saved.matches.games_counted, acting)


def videos(groups: Sequence[RunGroup], out: Path) -> tuple[list[RunVideo], list[str]]:
    """Return all videos of runs, and a sentence on each that a link leads to out of the run's folder.

    Short ones are embedded in the page in `out`, as long as it stays small.
    """
    found, notes = list[RunVideo](), list[str]()
    left = _ALL_EMBEDDED_BYTES
    for group in groups:
        for run in group.runs:
            for path in _videos_in(run.folder):
                if problem := link_problem(run.folder, path):
                    notes.append(f"{problem}; the video is left out")
                    continue
                source = quote(os.path.relpath(path.resolve(), out.resolve()))
                try:
                    if (size := path.stat().st_size) <= min(_EMBEDDED_BYTES, left):
                        data = base64.b64encode(path.read_bytes()).decode("ascii")
                        source = f"data:{FILMS[path.suffix.lower()]};base64,{data}"
                        left -= size
                except FileNotFoundError:
                    continue  # a run that is not over has replaced it
                name = path.relative_to(run.folder).as_posix()
                found.append(RunVideo(group, run, name, FILMS[path.suffix.lower()], source))
    return found, notes


def _videos_in(folder: Path) -> Iterator[Path]:
    """Yield the videos in a run's folder and its subfolders, except checkpoints."""
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        if path.suffix.lower() in FILMS and path.is_file() and path.parent.name != "checkpoints":
            yield path
