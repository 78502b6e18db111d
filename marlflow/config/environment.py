"""Open the environment of a run once before the run; explain failures in one sentence."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import math
import threading
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed
from marlflow.base.sentences import kind_of
from marlflow.config.experiment import Env
from marlflow.config.trust import RECORDED
from marlflow.env import EnvAdapter, open_adapter
from marlflow.env.episode_location import lines_of, raised
from marlflow.env.factories import import_factory
from marlflow.env.make import EnvMaker
from marlflow.env.simulators import pettingzoo_registry
from marlflow.offline.environment import recorded_environment
from marlflow.sampling.watchdog import close_within

log = logging.getLogger("marlflow")

# Seconds until a slow opening is logged.
_OPENS_FOR_S = 30.0
# Lines of the traceback in errors: most environments are in libraries, where the innermost lines show the cause.
_FRAMES = 4

NOT_REPRODUCIBLE = (
    'episodes of the environment depend on more than their seeds (its metadata["reproducible"] is False), so another '
    "run with this seed may play other ones"
)


def environment_maker(env: Env) -> EnvMaker:
    """Return a picklable function that makes one environment."""
    # Names of wrappers were replaced when `env` was made.
    wrappers: tuple[Any, ...] = tuple(env.wrappers)
    return EnvMaker(env.factory, dict(env.arguments), wrappers, _name(env.factory), env.batched)


def environment_name(env: Env) -> str:
    """Return the name of the environment in messages."""
    return pettingzoo_registry.display_name(env.arguments) if _is_registered(env) else _name(env.factory)


def environment_identity(env: Env) -> dict[str, Any]:
    """Return the name and the arguments of the environment as they are compared between runs."""
    if not _is_registered(env):
        # The list of trusted names is no property of the environment.
        is_recorded = env.factory in (RECORDED, recorded_environment)
        compared = {key: value for key, value in env.arguments.items() if not (is_recorded and key == "trust")}
        return {"factory": _name(env.factory), "arguments": compared}
    own = pettingzoo_registry.OWN_ARGUMENTS
    arguments = {key: value for key, value in env.arguments.items() if key not in own}
    return {"factory": pettingzoo_registry.stable_name(env.arguments), "arguments": arguments}


def _is_registered(env: Env) -> bool:
    return env.factory in (pettingzoo_registry.TARGET, pettingzoo_registry.make)


def _name(factory: Callable[..., Any] | str) -> str:
    if isinstance(factory, functools.partial):
        return _name(factory.func)
    return factory if isinstance(factory, str) else getattr(factory, "__qualname__", type(factory).__qualname__)


def argument_problems(env: Env) -> Iterator[str]:
    """Yield arguments whose type differs from the factory's default, and numbers that are not finite.

    Many environments would fail in the middle of an episode, or never.
    """
    defaults = _defaults(env)
    for name, value in env.arguments.items():
        expected, actual = kind_of(defaults.get(name)), kind_of(value)
        if isinstance(value, float) and not math.isfinite(value) and value != defaults.get(name):
            yield f"env.{name} must be a finite number, not {value}"
        elif None not in (expected, actual) and expected != actual:
            yield f"env.{name} must be {expected}, such as {defaults[name]!r}, not {value!r:.80}"


def _defaults(env: Env) -> dict[str, Any]:
    function = factory = env.factory
    try:
        if _is_registered(env):
            taken = pettingzoo_registry.parameters(env.arguments) or {}
            return {name: parameter.default for name, parameter in taken.items()}
        if isinstance(function, str):
            function = import_factory(function)
    except Exception:  # noqa: BLE001  importing runs user code; opening it later reports the error
        return {}
    try:
        parameters = inspect.signature(function).parameters
        if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
            # A factory that only passes **kwargs on: in PettingZoo modules, raw_env has the parameters.
            beside = importlib.import_module(str(factory).rpartition(".")[0]) if isinstance(factory, str) else None
            parameters = inspect.signature(getattr(beside, "raw_env", function)).parameters
    except (TypeError, ValueError):  # a builtin without a signature
        return {}
    return {name: parameter.default for name, parameter in parameters.items()}


@contextmanager
def opened(make_env: Callable[[], Any], env: Env) -> Iterator[EnvAdapter]:
    """Open an adapter for the duration of the block; raise ConfigInvalid if reset() fails."""
    adapter = _open(make_env, env)
    try:
        yield adapter
    finally:
        if (fault := close_within(adapter.close, adapter.where())) is not None:
            log.warning("%s: %s", fault.where, fault.reason)


def _open(make_env: Callable[[], Any], env: Env) -> EnvAdapter:
    name = environment_name(env)
    try:
        with _warn_if_slow(f"environment {name}"):
            _try_batch(env)
            return open_adapter(make_env(), name=name)
    # Leaving a debugger ends the command; it is no error of the environment.
    except (ConfigInvalid, BdbQuit):
        raise
    except EnvironmentFailed as error:
        # The reason already names the call, as in "reset() raised ValueError: ...".
        where = "" if error.__cause__ is None else lines_of(error.__cause__, _FRAMES)
        raise ConfigInvalid([f"environment {name} cannot start: {error.reason}{where}"]) from error
    # Packages that lack something of the system call sys.exit().
    except (Exception, SystemExit) as error:
        given = ", ".join(f"{key}={value!r}" for key, value in env.arguments.items())
        subject = f"environment {name} cannot be made" + (f" with {given}" if given else "")
        raise ConfigInvalid([f"{subject}: {raised(error, _FRAMES)}{_old_name_hint(error)}"]) from error


def _try_batch(env: Env) -> None:
    """Raise ConfigInvalid if env.batched=true asks for a version that there is not, or that refuses the wrappers."""
    make_batched = environment_maker(env).make_batched
    if make_batched is not None and env.batched is True and env.wrappers:
        make_batched(1).close()


def _old_name_hint(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    if not (isinstance(error, TypeError) and "'module' object is not callable" in str(error) and frames):
        return ""
    if "agent_selector(" not in (frames[-1].line or ""):
        return ""
    return (
        "\nit is written for an older PettingZoo; a module of yours can give it the name that it looks for, "
        "pettingzoo.utils.agent_selector = pettingzoo.utils.AgentSelector, and then import its environment"
    )


@contextmanager
def _warn_if_slow(subject: str) -> Iterator[None]:
    text = "%s has been opening for %.0f s: it is being made, or reset for the first time, and nothing ends that"
    timer = threading.Timer(_OPENS_FOR_S, log.warning, (text, subject, _OPENS_FOR_S))
    # A thread still waiting must not keep the process alive.
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
