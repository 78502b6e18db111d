"""Makes an environment from the path of its factory, as the configuration names it."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid

# Which of marlflow's extras brings the environments of which module.
_EXTRAS = {"mpe2": "mpe", "pettingzoo.classic": "classic", "pettingzoo.butterfly": "butterfly"}


def make_environment(
    target: str, arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()
) -> AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]:
    """Calls the factory at `target` (`package.module.name`) and puts it into `wrappers`, the first one innermost.

    Raises ConfigInvalid if it cannot be imported or called, or does not make a PettingZoo environment.
    """
    factory = import_factory(target)
    try:
        env = factory(**arguments)
    except TypeError as error:
        raise ConfigInvalid([f"environment {target} does not take {_written(arguments)}: {error}"]) from error
    for wrapper in wrappers:
        env = wrapper(env)
        if not isinstance(env, AECEnv | ParallelEnv):
            made = type(env).__name__
            raise ConfigInvalid([f"wrapper {wrapper!r} of environment {target} returned {made}, not an environment"])
    if not isinstance(env, AECEnv | ParallelEnv):
        problem = f"{target} makes a {type(env).__name__}, not a PettingZoo AECEnv or ParallelEnv"
        raise ConfigInvalid([problem + _instead(env)])
    return env


def import_factory(target: str) -> Callable[..., Any]:
    """The callable at `package.module.name`; raises ConfigInvalid, naming what is near or what to install."""
    module_path, _, name = target.rpartition(".")
    if not module_path:
        raise ConfigInvalid([f"environment {target!r} is not an import path: write package.module.function"])
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise ConfigInvalid([_cannot_import(target, module_path, error)]) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise ConfigInvalid([f"module {module_path} has no {name!r}{_near(name, _callables(module))}"])
    if not callable(factory):
        raise ConfigInvalid([f"{target} is a {type(factory).__name__}: give its function, e.g. {target}.parallel_env"])
    return factory  # type: ignore[no-any-return]


def _cannot_import(target: str, module_path: str, error: ImportError) -> str:
    text = f"environment {target} cannot be imported: {error}"
    for prefix, extra in _EXTRAS.items():
        missing_itself = module_path == error.name or module_path.startswith(f"{error.name}.")
        if f"{module_path}.".startswith(f"{prefix}.") and not (missing_itself and _exists(prefix)):
            return f"{text}; pip install 'marlflow[{extra}]'"
    parent, _, name = module_path.rpartition(".")
    if parent and _exists(parent):
        return text + _near(name, _submodules(parent))
    return f"{text}; is its package installed, and is the name right?"


def _exists(module_path: str) -> bool:
    try:
        return importlib.util.find_spec(module_path) is not None
    except ImportError:
        return False


def _submodules(package: str) -> list[str]:
    spec = importlib.util.find_spec(package)
    paths = spec.submodule_search_locations if spec else None
    return [module.name for module in pkgutil.iter_modules(paths)] if paths else []


def _callables(module: Any) -> list[str]:
    return [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]


def _near(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(sorted(known)) or 'nothing'}"


def _written(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"


def _instead(env: object) -> str:
    if hasattr(env, "observation_space") and not hasattr(env, "possible_agents") and hasattr(env, "step"):
        return "; an environment of one agent (gymnasium) is not supported"
    return ""
