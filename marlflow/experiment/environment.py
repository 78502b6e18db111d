"""Opens the environment once before a run, and says in one sentence why it cannot be, with the user's own lines."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed
from marlflow.env import Window, make_environment, open_window
from marlflow.env.frames import their_frames
from marlflow.env.make import wrapped
from marlflow.experiment.experiment import Env

_FRAMES = 4


def environment_maker(env: Env) -> Callable[[], Any]:
    """What makes one copy of the environment; it can be sent to other processes."""
    if isinstance(env.factory, str):
        return functools.partial(make_environment, env.factory, dict(env.arguments), tuple(env.wrappers))
    return functools.partial(_made_by, env.factory, dict(env.arguments), tuple(env.wrappers))


def _made_by(
    factory: Callable[..., Any], arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]]
) -> Any:
    return wrapped(factory(**arguments), wrappers, _name(factory))


def environment_name(env: Env) -> str:
    """What messages call it before it is made."""
    return _name(env.factory)


def _name(factory: Callable[..., Any] | str) -> str:
    if isinstance(factory, functools.partial):
        return _name(factory.func)
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", type(factory).__qualname__)


@contextmanager
def opened(make_env: Callable[[], Any], env: Env) -> Iterator[Window]:
    """The window on one copy, for as long as it is looked at; raises ConfigInvalid if it cannot be made or reset."""
    window = _open(make_env, env)
    try:
        yield window
    finally:
        window.close()


def _open(make_env: Callable[[], Any], env: Env) -> Window:
    name = _name(env.factory)
    try:
        return open_window(make_env(), name=name)
    except ConfigInvalid:
        raise
    except EnvironmentFailed as error:
        # Its reason says what was called: reset() raised ValueError: ...
        raise ConfigInvalid([f"environment {name} cannot start: {error.reason}{_lines(error.__cause__)}"]) from error
    except Exception as error:
        given = ", ".join(f"{key}={value!r}" for key, value in env.arguments.items())
        what = f"environment {name} cannot be made" + (f" with {given}" if given else "")
        raise ConfigInvalid([f"{what}: {type(error).__name__}: {error}{_lines(error)}"]) from error


def _lines(error: BaseException | None) -> str:
    """Where it was raised: the innermost frames that are not marlflow's own, as Python writes them."""
    frames = their_frames(error) if error is not None else []
    written = "".join(traceback.format_list(frames[-_FRAMES:])).rstrip()
    return f"\n{written}" if written else ""
