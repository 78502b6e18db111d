"""Chooses how games are shown: in a window, in the terminal, or as a video."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from marlflow.base.errors import ConfigInvalid
from marlflow.trained.boards import board_of
from marlflow.trained.window import check_display, manual_policy_of

View: TypeAlias = Literal["auto", "window", "terminal"]
VIEWS: Final[tuple[str, ...]] = get_args(View)
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


def render_modes(env: Any) -> Sequence[str] | None:
    """Return the render modes that the environment's metadata declare; None if they do not say."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes")
    return None if modes is None else [str(mode) for mode in modes]


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
    return f"environment {metadata.get('name') or type(env.unwrapped).__name__}"
