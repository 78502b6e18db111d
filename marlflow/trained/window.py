"""Windows: shows games in one, and lets a person play with the keys that an environment knows."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from gymnasium import spaces

from marlflow.base.errors import ConfigInvalid, MarlflowError
from marlflow.env.adapter import StepResult
from marlflow.trained.boards import innermost
from marlflow.trained.games import Decision, Episode, Stopped, Watcher
from marlflow.trained.video import FrameInvalid, rgb_frame

# Their environments draw themselves at each step in the render mode `human`; others wait for render().
_DRAW_THEMSELVES: Final = ("pettingzoo.", "mpe2.")


def check_display(remedy: str) -> None:
    """Raise ConfigInvalid that ends in `remedy` if no window can be opened here, or pygame is missing."""
    # Other systems always have a display; if SDL_VIDEODRIVER is set, the user has chosen what to draw on.
    named = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"))
    if sys.platform.startswith("linux") and not named:
        raise ConfigInvalid(
            [f"there is no display for a window (neither DISPLAY nor WAYLAND_DISPLAY is set); {remedy}"]
        )
    pygame = import_pygame()
    try:
        pygame.display.init()
    except pygame.error as error:
        raise ConfigInvalid([f"no window can be opened: {error}; {remedy}"]) from error


def import_pygame() -> Any:
    """Import pygame; raises ConfigInvalid that names the extra if it is missing."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    try:
        import pygame
    except ImportError as error:
        raise ConfigInvalid([f"windows need pygame: {error}; pip install 'marlflow[video]'"]) from error
    return pygame


class Window(Watcher):
    """Watches games in a window, at `fps` env steps per second; its end is Escape, or closing it.

    An environment with the render mode `human` draws itself. The frames of any other (`rgb_array`) are shown in another
    window.
    """

    def __init__(self, env: Any, fps: float, title: str) -> None:
        self._env, self._pause_s, self._title = env, 1 / fps, title
        self._pygame = import_pygame()
        self._human = getattr(env, "render_mode", None) == "human"
        self._must_render = not (self._human and type(innermost(env)).__module__.startswith(_DRAW_THEMSELVES))
        self._surface: Any = None
        self._due_s = 0.0

    def began(self, episode: Episode) -> None:
        self._due_s = time.monotonic()
        if self._pygame.display.get_init() and self._pygame.display.get_surface() is not None:
            self._pygame.display.set_caption(f"{self._title}, episode {episode.number + 1} of {episode.of}")

    def stepped(self, result: StepResult) -> None:
        """Show the environment's current state, and wait until the next env step is due."""
        del result
        try:
            drawn = self._env.render() if self._must_render else None
        except Exception as error:
            raise MarlflowError(
                f"the environment cannot be drawn in a window: {type(error).__name__}: {error}; try --video out.mp4"
            ) from error
        if not self._human:
            self._show(drawn)
        self._due_s = max(self._due_s + self._pause_s, time.monotonic())
        self._answer_events()
        while (left_s := self._due_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.05))
            self._answer_events()

    def close(self) -> None:
        """Close the window."""
        self._pygame.display.quit()

    def _show(self, drawn: Any) -> None:
        try:
            frame = rgb_frame(drawn)
        except FrameInvalid as invalid:
            raise MarlflowError(f"render() of the environment returned {invalid}") from invalid
        if frame is None:
            return
        pygame = self._pygame
        size = frame.shape[1], frame.shape[0]
        if self._surface is None or self._surface.get_size() != size:
            self._surface = pygame.display.set_mode(size)
            pygame.display.set_caption(self._title)
        pygame.surfarray.blit_array(self._surface, np.swapaxes(frame, 0, 1))
        pygame.display.flip()

    def _answer_events(self) -> None:
        answer_events(self._pygame)


def answer_events(pygame: Any) -> None:
    """Raise Stopped if the window was closed or Escape was pressed; other keys stay in the queue for other readers.

    It also shows the operating system that the program responds.
    """
    if not pygame.display.get_init() or pygame.display.get_surface() is None:
        return
    if pygame.event.get(pygame.QUIT):
        raise Stopped
    pressed = pygame.event.get(pygame.KEYDOWN)
    if any(event.key == pygame.K_ESCAPE for event in pressed):
        raise Stopped
    for event in pressed:
        # Butterfly's policies reset their environment at Backspace, which would begin another episode in this one.
        if event.key != pygame.K_BACKSPACE:
            pygame.event.post(event)


def manual_policy_of(env: Any) -> Any:
    """Return the class `ManualPolicy` of the environment's package, as in PettingZoo's butterfly; None without one."""
    package = type(innermost(env)).__module__.rpartition(".")[0]
    if not package:
        return None
    try:
        module = importlib.import_module(f"{package}.manual_policy")
    except ImportError:
        return None
    return getattr(module, "ManualPolicy", None)


class WindowPerson(Watcher):
    """Plays `agent` with the keys of the environment's own ManualPolicy; without a key its default is taken.

    The person may hold a key down. As a watcher, it passes the keys to `say` before the first game.
    Raises ConfigInvalid if wrappers changed the agent's actions.
    """

    def __init__(
        self, env: Any, agent: str, action_space: spaces.Space[Any], fps: float, say: Callable[[str], None]
    ) -> None:
        self._env, self._agent, self._fps, self._say = env, agent, fps, say
        self._pygame = import_pygame()
        self._policy: Any = None
        # Pistons move by -1, 0 and 1, and count from 0 if they are not continuous.
        pistons = type(env.unwrapped).__module__.startswith("pettingzoo.butterfly.pistonball")
        self._offset = int(pistons and isinstance(action_space, spaces.Discrete))
        own = env.unwrapped.action_space(agent)
        if own != action_space:
            raise ConfigInvalid(
                [
                    f"{agent} cannot be played by keys: wrappers of the environment changed its actions from {own} to "
                    f"{action_space}"
                ]
            )

    def __call__(self, decision: Decision) -> Any:
        """Return the action of the keys that are down; raises Stopped at Escape, or if the window is closed."""
        answer_events(self._pygame)
        try:
            chosen = self._policy(decision.observation, decision.agent)
        except SystemExit:
            raise Stopped from None
        space = decision.space
        if isinstance(space, spaces.Box):
            return np.full(space.shape, chosen, space.dtype)
        return np.int64(chosen + self._offset)

    def began(self, episode: Episode) -> None:
        """Make the environment's policy, which needs a running episode."""
        if self._policy is not None:
            return
        game = self._env.unwrapped
        made = manual_policy_of(self._env)
        self._policy = made(game, game.possible_agents.index(self._agent))
        # Some environments open their window at the first env step, after the first action.
        self._pygame.display.init()
        # Keys that are held come again at each env step.
        self._pygame.key.set_repeat(1, max(1, int(1000 / self._fps)))
        keys = ", ".join(self._pygame.key.name(key) for key in getattr(self._policy, "action_mapping", {}))
        self._say(f"you are {self._agent}; your keys: {keys}; Escape ends the games")
