"""How games are shown, in a window, in the terminal or as a video, and watchers of games that write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.base.progress import progress
from marlflow.base.spaces import Spaces
from marlflow.env.adapter import StepResult
from marlflow.env.make import render_modes
from marlflow.trained.boards import Board, board_of, innermost
from marlflow.trained.games import Decision, Episode, Stopped, Watcher
from marlflow.trained.person_rows import EpisodeRows, PersonDataset
from marlflow.trained.video import FrameInvalid, VideoWriter, rgb_frame
from marlflow.trained.window import check_display, manual_policy_of

View: TypeAlias = Literal["auto", "window", "terminal"]
ADD_RENDERING: Final = (
    "an environment of your own needs an argument render_mode, and a render() that returns a picture (rgb_array) or "
    "text (ansi); see 'Let it be watched' in docs/your_own_environment.md"
)
_FPS = 10.0


@dataclass(frozen=True, slots=True)
class Shown:
    """How games are shown: `view` is `window`, `terminal`, or None; the environment is made in `render_mode`."""

    view: Literal["window", "terminal"] | None
    render_mode: str | None


def frames_per_second(env: Any) -> float:
    """Return how many env steps the environment shows per second, by its metadata's `render_fps`, or else 10."""
    fps = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(fps) if isinstance(fps, int | float) and fps > 0 else _FPS


def shown(env: Any, view: View, video: bool, person: bool) -> Shown:
    """Choose for `env`, made without a render mode; raises ConfigInvalid if it cannot be shown like that."""
    modes, name = render_modes(env), _name(env)
    if person:
        return _for_a_person(env, modes, name, view, video)
    if video:
        if view != "auto":
            raise ConfigInvalid([f"view={view} shows games, and a video is written without: leave one of them out"])
        return Shown(None, _for_a_video(modes, name))
    text_only = modes is not None and "ansi" in modes and "rgb_array" not in modes
    if view == "terminal" or (view == "auto" and text_only):
        if modes is not None and "ansi" in modes:
            return Shown("terminal", "ansi")
        if board_of(env).public:
            return Shown("terminal", None)
        drawn = modes is None or any(mode in modes for mode in ("human", "rgb_array"))
        remedy = "leave view out, or use --video out.mp4" if drawn else ADD_RENDERING
        raise ConfigInvalid([f"{name} cannot be shown as text: it has no render mode 'ansi'; {remedy}"])
    return Shown("window", _for_a_window(modes, name))


def _for_a_person(env: Any, modes: Sequence[str] | None, name: str, view: View, video: bool) -> Shown:
    with_keys = manual_policy_of(env) is not None and "human" in (modes or ())
    if view == "window" and not with_keys:
        raise ConfigInvalid(
            [f"{name} has no keys of its own (ManualPolicy), so it is played in the terminal: leave view out"]
        )
    if with_keys and view != "terminal":
        if video:
            raise ConfigInvalid(
                [
                    f"{name} is played in a window, which cannot be written as a video; leave --video out, or add "
                    "view=terminal"
                ]
            )
        check_display("use view=terminal to play by typing")
        return Shown("window", "human")
    if video:
        return Shown("terminal", _for_a_video(modes, name))
    return Shown("terminal", "ansi" if modes is not None and "ansi" in modes else None)


def _for_a_video(modes: Sequence[str] | None, name: str) -> str:
    for mode in ("rgb_array", "ansi"):
        if modes is None or mode in modes:
            return mode
    raise ConfigInvalid([_undrawn(modes, name, "rgb_array or ansi")])


def _for_a_window(modes: Sequence[str] | None, name: str) -> str:
    for mode in ("human", "rgb_array"):
        if modes is None or mode in modes:
            check_display("write a video instead: --video out.mp4")
            return mode
    raise ConfigInvalid([_undrawn(modes, name, "human or rgb_array")])


def _undrawn(modes: Sequence[str] | None, name: str, needed: str) -> str:
    known = ", ".join(modes or ()) or "none"
    return f"{name} cannot be drawn: its metadata['render_modes'] are {known}, and {needed} is needed; {ADD_RENDERING}"


def _name(env: Any) -> str:
    metadata = getattr(env, "metadata", None) or {}
    return f"environment {metadata.get('name') or type(innermost(env)).__name__}"


class VideoWatcher(Watcher):
    """Adds a frame to `video` after each reset and each env step: an episode of n env steps has n + 1 frames.

    If the environment renders nothing, the last frame is repeated. Raises MarlflowError if there is no frame yet, or if
    what the environment renders is not an image, and Stopped once the video has `most_frames` (None: any).
    """

    def __init__(self, env: Any, video: VideoWriter, most_frames: int | None = None) -> None:
        self._env, self._video, self._most_frames = env, video, most_frames

    def began(self, episode: Episode) -> None:
        self._episode = episode

    def stepped(self, result: StepResult) -> None:
        del result
        progress(f"drawing episode {self._episode.number + 1} of {self._episode.of}, frame", self._video.frames)
        try:
            frame = rgb_frame(self._env.render())
        except FrameInvalid as invalid:
            raise MarlflowError(f"render() of the environment returned {invalid}") from invalid
        except Exception as error:
            problem = f"render() of the environment raised {type(error).__name__}: {error}"
            if type(error).__module__.startswith("pyglet"):
                problem += "; it draws with pyglet, which needs a display for videos too: run it under xvfb-run"
            raise MarlflowError(problem) from error
        if frame is not None:
            self._video.add(frame)
        elif self._video.frames:
            self._video.repeat()
        else:
            mode = getattr(self._env, "render_mode", None)
            raise MarlflowError(f"render() of the environment returned nothing in its render mode {mode!r}")
        if self._video.frames == self._most_frames:
            raise Stopped


class TextWatcher(Watcher):
    """Shows the board after each reset and each env step, with the actions between."""

    def __init__(self, board: Board, say: Callable[[str], None]) -> None:
        self._board, self._say = board, say

    def began(self, episode: Episode) -> None:
        self._say(f"\nepisode {episode.number + 1} of {episode.of}, seed {episode.seed}")

    def decided(self, decision: Decision, action: Any) -> None:
        """Show an action, by its name if it has one."""
        name = self._board.action(decision.agent, int(action)) if isinstance(decision.space, spaces.Discrete) else ""
        self._say(f"{decision.agent}: {name or action}")

    def stepped(self, result: StepResult) -> None:
        del result
        self._say(self._board.for_all().rstrip())


class RowsWatcher(Watcher):
    """Records the rows of `agent`, whom a person plays; an episode that was not finished leaves none."""

    def __init__(self, agent: str, agent_spaces: Spaces, dataset: PersonDataset) -> None:
        self._agent, self._spaces, self._dataset = agent, agent_spaces, dataset
        self._rows: EpisodeRows | None = None

    def began(self, episode: Episode) -> None:
        """Forget the rows of an episode that was not finished."""
        del episode
        self._rows = None

    def decided(self, decision: Decision, action: Any) -> None:
        if decision.agent == self._agent:
            if self._rows is None:
                self._rows = EpisodeRows(decision.slot, self._spaces)
            row = _as_row(decision.space, action)
            self._rows.decided(decision.observation, decision.mask, row, decision.env_steps)

    def stepped(self, result: StepResult) -> None:
        """Add the reward of the person's agent, and its end."""
        rows = self._rows
        if rows is None:
            # Nothing before its first decision belongs to a row.
            return
        for slot, reward in zip(result.reward_slots, result.rewards, strict=True):
            if slot == rows.slot:
                rows.rewarded(reward)
        for end in result.ended:
            if end.slot == rows.slot:
                rows.ended(end)

    def ended(self, episode: Episode) -> None:
        self._dataset.add(self._rows, episode.env_steps)


def _as_row(space: spaces.Space[Any], action: Any) -> Array:
    """Return an action of the environment as in the column `action`: counted from 0, a Box as float32."""
    if isinstance(space, spaces.Box):
        return np.asarray(action, np.float32)
    return np.asarray(action, np.int64) - np.asarray(getattr(space, "start", 0), np.int64)
