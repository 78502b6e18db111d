"""Pictures of the gallery: learning curves as SVG, and a short film and a still picture of the trained policies."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import marlflow as mf
from benchmarks.gallery.cases import EPISODES, LEAST_ENV_STEPS
from benchmarks.gallery.results import EVALUATION_SEED
from marlflow.base.arrays import Array
from marlflow.env.opening import open_adapter
from marlflow.html_report.charts import CurveLine, drawn_curves, look
from marlflow.html_report.measures import ReturnSeries
from marlflow.policy.actor import AskedMode
from marlflow.trained.games import Episode, play_episode, policy_player, seating
from marlflow.trained.play import PlayOptions, play
from marlflow.trained.views import VideoWatcher, frames_per_second, render_modes

CURVE, NASH_CONV, FILM, STILL = "curve.svg", "nash_conv.svg", "film.webp", "still.webp"
MOST_BYTES = 300_000
"""Of a film."""
_SIZE, _STILL_SIZE = (320, 420), (160, 120)
_CURVE_WIDTH = 480
_MOST_FRAMES, _MOST_SECONDS = 75, 12.0
_TEXT_GAMES, _TEXT_LINES = 3, 30
# For light and dark pages: browsers pass the page's `color-scheme` on to its images.
_STYLE = (
    "<style>:root{--muted:#5b6675;--grid:#dde2e8;--series-0:#0072b2;--series-1:#d55e00;--series-2:#00805f;"
    "--series-3:#b8558f}@media(prefers-color-scheme:dark){:root{--muted:#9aa6b5;--grid:#38414d;--series-0:#4da6e0;"
    "--series-1:#f58b3c;--series-2:#31c796;--series-3:#e08fc2}}</style>"
)


@dataclass(frozen=True, slots=True)
class Film:
    """A film of an episode of `env_steps` in the checkpoint's run `seed`, or the text of some games.

    `skipped`: how many episodes before it were shorter than LEAST_ENV_STEPS.
    """

    seed: int
    frames: int = 0
    env_steps: int = 0
    text: str = ""
    skipped: int = 0
    returns: Mapping[str, float] = field(default_factory=dict)
    seating: Mapping[str, str] = field(default_factory=dict)


def write_curve(
    path: Path, name: str, curves: Sequence[Mapping[str, Any]], levels: Mapping[str, float], unit: str = ""
) -> None:
    """Draw curves of a page's data, one line for each, with the interquartile mean over its runs.

    `levels` are values to compare with, by the keys of curves; `unit` is for the vertical axis. The file names the
    data that it was drawn from.
    """
    lines = [
        CurveLine(
            tuple(map(_series, one["runs"])),
            look(place),
            one["title"] if len(curves) > 1 else "",
            levels.get(one["key"]),
        )
        for place, one in enumerate(curves)
    ]
    drawn = drawn_curves(lines, name, returns=unit)
    namespaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    head, _, rest = drawn.partition(">")
    head = head.replace("<svg ", f'<svg {namespaces} width="{_CURVE_WIDTH}" ', 1).replace(' aria-hidden="true"', "")
    path.write_text(f"{head}><desc>{data_hash(curves, levels)}</desc>{_STYLE}{rest}\n", encoding="utf-8")


def data_hash(curves: Sequence[Mapping[str, Any]], levels: Mapping[str, float]) -> str:
    """Return a hash of what a figure is drawn from."""
    data = json.dumps([list(curves), dict(levels)], sort_keys=True)
    return f"sha256 {hashlib.sha256(data.encode()).hexdigest()}"


def _series(run: Mapping[str, Sequence[float]]) -> ReturnSeries:
    steps, values = (np.array(run[name], np.float64) for name in ("env_steps", "values"))
    return ReturnSeries(steps, values, np.zeros(len(steps)))


class _Frames:
    """Keeps frames in memory, as a VideoWatcher adds them."""

    def __init__(self) -> None:
        self.kept: list[Array] = []

    @property
    def frames(self) -> int:
        """The number of frames."""
        return len(self.kept)

    def add(self, frame: Array) -> None:
        """Keep a frame."""
        self.kept.append(frame)

    def repeat(self) -> None:
        """Keep the last frame once more."""
        self.kept.append(self.kept[-1])


def film(run: Path, seed: int, folder: Path, mode: AskedMode, policy: str | None = None) -> Film | None:
    """Write the film and the still picture of an episode of a run's newest checkpoint.

    `policy` plays all agents; None: as in training. An environment that draws no pictures gives the text of some games
    instead; None if it has no text either.
    """
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    team = mf.load(run)
    probe = team.played_env()
    modes = render_modes(probe) or ()
    seats = {} if policy is None else dict.fromkeys(probe.possible_agents, policy)
    probe.close()
    if "rgb_array" not in modes:
        return _text(team, seed, mode, seats) if "ansi" in modes else None
    env = team.played_env(render_mode="rgb_array")
    adapter, frames = open_adapter(env), _Frames()
    try:
        names = seating(team, None, None, seats, adapter.agents)
        for skipped in range(EPISODES):
            frames.kept.clear()
            episode = Episode(skipped, EPISODES, team.reset(EVALUATION_SEED, skipped))
            play_episode(adapter, episode, {}, policy_player(team, names, mode), [VideoWatcher(env, frames)])
            if episode.env_steps >= LEAST_ENV_STEPS:
                break
        fps = frames_per_second(env)
    finally:
        adapter.close()
    pictures = [wide(frame, len(adapter.agents)) for frame in frames.kept]
    count = write_film(pictures, fps, folder / FILM)
    _scaled(pictures[len(pictures) // 2], _STILL_SIZE).save(folder / STILL, quality=80)
    return Film(seed, count, episode.env_steps, "", skipped, dict(episode.returns), names)


def _text(team: Any, seed: int, mode: AskedMode, seats: Mapping[str, str]) -> Film:
    lines: list[str] = []
    options = PlayOptions(_TEXT_GAMES, EVALUATION_SEED, mode, view="terminal", seats=seats)
    played = play(team, options, lines.append)
    # The first line says who plays; a game begins with an empty one.
    games = [game.strip() for game in "\n".join(lines[1:]).split("\n\n")]
    shown = games[:1]
    for game in games[1:]:
        if sum(one.count("\n") + 2 for one in [*shown, game]) <= _TEXT_LINES:
            shown.append(game)
    text = "\n\n".join("\n".join(line.rstrip() for line in game.splitlines()) for game in shown)
    env_steps = sum(one.env_steps for one in played.episodes[: len(shown)])
    return Film(seed, text=text, env_steps=env_steps, seating=played.seating)


def write_film(frames: Sequence[Array], fps: float, path: Path) -> int:
    """Write frames as an animated WebP of at most 300 kB, in real time or faster; return how many were kept."""
    every = max(1, -(-len(frames) // _MOST_FRAMES))
    kept = [_scaled(frame, _SIZE) for frame in frames[::every]]
    duration_ms = 1000 * min(every / fps, _MOST_SECONDS / len(kept))
    for quality in (75, 50, 30, 15):
        data = BytesIO()
        kept[0].save(
            data,
            "webp",
            save_all=True,
            append_images=kept[1:],
            duration=round(duration_ms),
            loop=0,
            quality=quality,
            method=4,
        )
        if data.tell() <= MOST_BYTES:
            path.write_bytes(data.getvalue())
            return len(kept)
    raise ValueError(f"{path} is larger than {MOST_BYTES} bytes at the lowest quality: keep fewer frames")


def wide(frame: Array, agents: int) -> Array:
    """Return a frame of panes one above the other, one for each of an even number of agents, as two columns.

    >>> wide(np.zeros((16, 6, 3)), agents=4).shape
    (8, 12, 3)
    """
    height, width = frame.shape[:2]
    if agents % 2 or height < 2 * width:
        return frame
    return np.concatenate([frame[: height // 2], frame[height // 2 :]], axis=1)


def _scaled(frame: Array, size: tuple[int, int]) -> Image.Image:
    picture = Image.fromarray(frame)
    picture.thumbnail(size, Image.Resampling.LANCZOS)
    return picture
