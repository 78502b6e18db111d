"""Look up the environment of a run by name, and open it once before the run; explain failures in one sentence."""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
import math
import threading
import traceback
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid, EnvironmentFailed
from marlflow.base.sentences import meant, nearest
from marlflow.config.comments import names, text_of
from marlflow.config.experiment import Env, Experiment
from marlflow.config.schema import wrappers_of
from marlflow.config.settings import name_problem
from marlflow.config.suggestions import kind_of
from marlflow.config.target_nodes import ENV_KEYS, TARGET
from marlflow.config.trust import RECORDED
from marlflow.env import EnvAdapter, open_adapter
from marlflow.env.episode_location import lines_of, raised
from marlflow.env.make import EnvMaker, import_factory
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
    return EnvMaker(env.factory, dict(env.arguments), tuple(env.wrappers), _name(env.factory), env.batched)


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


_UNSET = "???"


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """Hold the import path of a factory, its arguments, its wrappers and `num_envs`."""

    factory: str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Any]
    num_envs: int


def default_run_name(env: Env) -> str:
    """Return the name of a run that has none: that of its environment, as on the command line.

    >>> default_run_name(Env("simple_tag")), default_run_name(Env("classic/rps-v2"))
    ('simple_tag', 'rps')
    """
    id = env.arguments.get("id")
    for name, factory, its_id in _factories():
        if factory == env.factory and its_id in (None, id):
            return name
    if env.factory == pettingzoo_registry.TARGET:
        return str(id).rpartition("/")[2]
    path = env.factory if isinstance(env.factory, str) else getattr(env.factory, "__qualname__", "")
    return Experiment.name if name_problem(path) else path


@cache
def _factories() -> list[tuple[str, str, str | None]]:
    """Return each shipped environment's name, factory, and `id` if it has one. To read them all takes 0.2 s."""
    return [(name, values[TARGET], values.get("id")) for name in names("env") for values in [_values(name)]]


def _values(name: str) -> dict[str, Any]:
    values: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(text_of(f"env/{name}")))  # type: ignore[assignment]
    return values


def named_environment(name: str, arguments: Mapping[str, Any]) -> NamedEnvironment:
    """Return the environment `name`, its defaults replaced by `arguments`.

    Raises ConfigInvalid for an unknown name, a misspelled argument or a missing one.
    """
    # env=python is for a factory of the user's own, which Python code passes directly.
    known = [option for option in names("env") if option != "python"]
    if name not in known:
        question = meant(name, known, "there are")
        hint = "; one of your own is the function that makes it, or its import path, package.module.name"
        raise ConfigInvalid([f"there is no environment {name!r}{question}{'' if 'did you mean' in question else hint}"])
    values = _values(name)
    defaults = {key: value for key, value in values.items() if key not in (TARGET, *ENV_KEYS)}
    merged = {**defaults, **arguments}
    problems = [
        f"environment {name!r} has no argument {key!r}; did you mean {close!r}?"
        for key in merged.keys() - defaults.keys()
        if (close := nearest(key, defaults)) is not None
    ]
    unset = [key for key, value in merged.items() if value == _UNSET]
    problems += [f"environment {name!r} needs {key!r}: write Env({name!r}, {{{key!r}: ...}})" for key in unset]
    wrappers = wrappers_of(values["wrappers"], problems)
    if problems:
        raise ConfigInvalid(problems)
    return NamedEnvironment(values[TARGET], merged, wrappers, values["num_envs"])
