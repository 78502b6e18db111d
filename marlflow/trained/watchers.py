"""Watchers of games that write: videos, text, and a person's rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.progress import progress
from marlflow.base.spaces import Spaces
from marlflow.env.adapter import StepResult
from marlflow.trained.boards import Board
from marlflow.trained.frames import FrameInvalid, rgb_frame
from marlflow.trained.games import Decision, Episode
from marlflow.trained.person_rows import EpisodeRows, PersonDataset
from marlflow.trained.video import VideoWriter


class VideoWatcher:
    """Adds a frame to `video` after each reset and each env step: an episode of n env steps has n + 1 frames.

    Where the environment renders nothing, the last frame is repeated. Raises MarlflowError if there is none yet, or
    what it renders is no picture.
    """

    def __init__(self, env: Any, video: VideoWriter) -> None:
        self._env, self._video = env, video

    def began(self, episode: Episode) -> None:
        self._episode = episode

    def decided(self, decision: Decision, action: Any) -> None:
        del decision, action

    def stepped(self, result: StepResult) -> None:
        """Add a frame."""
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

    def ended(self, episode: Episode) -> None:
        del episode


class TextWatcher:
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
        """Show the board as it is now."""
        del result
        self._say(self._board.for_all().rstrip())

    def ended(self, episode: Episode) -> None:
        del episode


class RowsWatcher:
    """Records the rows of `agent`, whom a person plays; an episode that was not finished leaves none."""

    def __init__(self, agent: str, agent_spaces: Spaces, dataset: PersonDataset) -> None:
        self._agent, self._spaces, self._dataset = agent, agent_spaces, dataset
        self._rows: EpisodeRows | None = None

    def began(self, episode: Episode) -> None:
        """Forget the rows of an episode that was not finished."""
        del episode
        self._rows = None

    def decided(self, decision: Decision, action: Any) -> None:
        """Add a decision of the person."""
        if decision.agent == self._agent:
            if self._rows is None:
                self._rows = EpisodeRows(decision.slot, self._spaces)
            row = _as_row(decision.space, action)
            self._rows.decided(decision.observation, decision.mask, row, decision.env_steps)

    def stepped(self, result: StepResult) -> None:
        """Add what the person's agent received, and its end."""
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
        """Write the rows."""
        self._dataset.add(self._rows, episode.env_steps)


def _as_row(space: spaces.Space[Any], action: Any) -> Array:
    """Return an action of the environment as in the column `action`: counted from 0, a Box as float32."""
    if isinstance(space, spaces.Box):
        return np.asarray(action, np.float32)
    return np.asarray(action, np.int64) - np.asarray(getattr(space, "start", 0), np.int64)
