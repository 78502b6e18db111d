"""Makes an environment from the path of its factory, as the configuration names it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.base.near import meant

# Which of marlflow's extras brings the environments of which module.
_EXTRAS = {
    "mpe2": "mpe",
    "pettingzoo.classic": "classic",
    "pettingzoo.butterfly": "butterfly",
    "pettingzoo.sisl": "sisl",
    "marlflow.env.openspiel": "openspiel",
}

# What importing, making or playing the environments of a module warns of, and nobody who uses them can change.
_NOISE: Mapping[str, Sequence[tuple[str, type[Warning]]]] = {
    "pettingzoo": [("The old environment creation API has been deprecated", DeprecationWarning)],
    "pettingzoo.butterfly.cooperative_pong_v6": [(r".*You are calling render method without", UserWarning)],
    "pettingzoo.classic.texas_holdem_no_limit_v6": [(r".*Box (low|high)'s precision lowered by casting", UserWarning)],
    # Of the bindings of Box2D; where warnings are errors it would end the process.
    "pettingzoo.sisl.multiwalker_v9": [(r"builtin type [sS]wig\w+ has no __module__ attribute", DeprecationWarning)],
}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A wrapper and its arguments, as a configuration names it: `name` is for messages. It can be pickled."""

    name: str
    make: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, env: Any) -> Any:
        """The environment with the wrapper around it."""
        return self.make(env, **self.arguments)


def make_environment(
    target: str, arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()
) -> AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]:
    """Calls the factory at `target` (`package.module.name`) and puts it into `wrappers`, the first one innermost.

    Raises ConfigInvalid if it cannot be imported or called, does not make a PettingZoo environment, or one that a
    wrapper does not take.
    """
    factory = import_factory(target)
    try:
        env = factory(**arguments)
    except TypeError as error:
        refused = f"does not take {_written(arguments)}" if arguments else "cannot be made without arguments"
        raise ConfigInvalid([f"environment {target} {refused}: {error}"]) from error
    return wrapped(env, wrappers, target)


def wrapped(
    env: Any, wrappers: Sequence[Callable[[Any], Any]], name: str
) -> AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]:
    """`env`, which messages call `name`, in `wrappers`, the first one innermost; raises ConfigInvalid as above."""
    if not isinstance(env, AECEnv | ParallelEnv):
        problem = f"{name} makes a {type(env).__name__}, not a PettingZoo AECEnv or ParallelEnv"
        raise ConfigInvalid([problem + _instead(env)])
    for wrapper in wrappers:
        which = f"wrapper {_wrapper_name(wrapper)} of environment {name}"
        try:
            outer = wrapper(env)
        except ConfigInvalid as error:
            raise ConfigInvalid([f"{which}: {said}{_masks_first(env, said)}" for said in error.problems]) from error
        except Exception as error:
            said = f"{type(error).__name__}: {error}".rstrip(": ")
            raise ConfigInvalid([f"{which} raised {said}{_masks_first(env, said)}"]) from error
        if not isinstance(outer, AECEnv | ParallelEnv):
            raise ConfigInvalid([f"{which} returned {type(outer).__name__}, not an environment"])
        env = outer
    return env


def _wrapper_name(wrapper: Callable[[Any], Any]) -> str:
    return wrapper.name if isinstance(wrapper, Wrapper) else getattr(wrapper, "__qualname__", repr(wrapper))


def _masks_first(env: Any, said: str) -> str:
    """What helps where `said` is that a wrapper does not take a Dict, and it is one for its action mask."""
    spaces: list[Any] = [env.observation_space(agent) for agent in getattr(env, "possible_agents", ())]
    if "Dict" in said and any("action_mask" in getattr(space, "spaces", ()) for space in spaces):
        return "; action masks come with its observations, so take them out first: wrappers=[mask_in_info,...]"
    return ""


def import_factory(target: str) -> Callable[..., Any]:
    """The callable at `package.module.name`; raises ConfigInvalid, naming what is near or what to install."""
    module_path, _, name = target.rpartition(".")
    if not all(part.isidentifier() for part in target.split(".")) or not module_path:
        raise ConfigInvalid(
            [f"environment {target!r} is not an import path: write package.module.function, from the folder it is in"]
        )
    _hush(target)
    try:
        module = importlib.import_module(module_path)
    except ImportError as error:
        raise ConfigInvalid([_cannot_import(target, module_path, error)]) from error
    factory = getattr(module, name, None)
    if factory is None:
        raise ConfigInvalid([f"module {module_path} has no {name!r}{meant(name, sorted(_callables(module)))}"])
    if not callable(factory):
        instead = f"give its function, e.g. {target}.parallel_env" if inspect.ismodule(factory) else "give a function"
        raise ConfigInvalid([f"{target} is of type {type(factory).__name__}: {instead}"])
    return factory  # type: ignore[no-any-return]


def _cannot_import(target: str, module_path: str, error: ImportError) -> str:
    text = f"environment {target} cannot be imported: {error}"
    for prefix, extra in _EXTRAS.items():
        missing_itself = module_path == error.name or module_path.startswith(f"{error.name}.")
        if f"{module_path}.".startswith(f"{prefix}.") and not (missing_itself and _exists(prefix)):
            return f"{text}; pip install 'marlflow[{extra}]'"
    parent, _, name = module_path.rpartition(".")
    if parent and _exists(parent):
        return text + meant(name, sorted(_submodules(parent)))
    return f"{text}; is its package installed, and is the name right?"


def comes_with_an_extra(module: str) -> bool:
    """Whether one of marlflow's extras brings this top module; `import_factory` says which, where it is missing."""
    return any(path.partition(".")[0] == module for path in _EXTRAS)


def _hush(target: str) -> None:
    """Ignores, from now on, what the environment at `target` needlessly warns of."""
    for module, noise in _NOISE.items():
        if target.startswith(f"{module}."):
            for message, category in noise:
                warnings.filterwarnings("ignore", message, category)


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


def _written(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"


def _instead(env: object) -> str:
    if hasattr(env, "observation_space") and not hasattr(env, "possible_agents") and hasattr(env, "step"):
        return "; an environment of one agent (gymnasium) is not supported"
    return ""
