"""Makes environments from import paths."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import warnings
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.base.public_names import moved_to
from marlflow.base.sentences import meant
from marlflow.env.batched.protocol import BatchedEnv
from marlflow.env.batched.versions import Batched, BatchedMaker, batch_wrapped, batched_maker, makes_batches
from marlflow.env.functional_protocol import FunctionalEnv
from marlflow.env.user_code import ImportFailed, attribute, does_not_fit, import_module, own_lines

# The extra of marlflow that installs each module's environments.
_EXTRAS = {
    "mpe2": "mpe",
    "pettingzoo.classic": "classic",
    "pettingzoo.butterfly": "butterfly",
    "pettingzoo.sisl": "sisl",
    "marlflow.env.simulators.lbf": "lbf",
    "marlflow.env.simulators.openspiel": "openspiel",
    "marlflow.env.simulators.rware": "rware",
    "marlflow.env.functional.jaxmarl": "jaxmarl",
    "marlflow.env.functional.jumanji": "jumanji",
    "marlflow.env.functional.pgx": "pgx",
    "marlflow.env.batched.vmas": "vmas",
}

_ROUNDED_BOUNDS = (r".*Box (low|high)'s precision lowered by casting", UserWarning)
# Warnings of these modules' environments that their users cannot fix, by the start of the modules' names.
_KNOWN_WARNINGS: Mapping[str, Sequence[tuple[str, type[Warning]]]] = {
    "pettingzoo.butterfly.cooperative_pong": [(r".*You are calling render method without", UserWarning)],
    "pettingzoo.classic.rlcard_envs.texas_holdem_no_limit": [_ROUNDED_BOUNDS],
    "pettingzoo.classic.texas_holdem_no_limit": [_ROUNDED_BOUNDS],
    # From Box2D's bindings; as an error this warning would end the process.
    "pettingzoo.sisl.multiwalker": [(r"builtin type [sS]wig\w+ has no __module__ attribute", DeprecationWarning)],
}


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A picklable wrapper with its arguments; `name` is for messages."""

    name: str
    make: Callable[..., Any]
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, env: Any) -> Any:
        return self.make(env, **self.arguments)


@dataclass(frozen=True, slots=True)
class EnvMaker:
    """Make environments from a factory or its import path; picklable. `name` is for messages.

    `batched` says whether `make_batched` is to be used, if there is a version for it.
    """

    factory: Callable[..., Any] | str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Callable[[Any], Any]]
    name: str
    batched: Batched = False

    def __call__(self) -> Any:
        if isinstance(self.factory, str):
            return make_environment(self.factory, self.arguments, self.wrappers)
        return wrapped(self.factory(**_for_one(self.factory, self.arguments)), self.wrappers, self.name)

    @property
    def make_batched(self) -> BatchedMaker | None:
        """Makes environments that are stepped by one call; None: they are stepped one by one. Raises ConfigInvalid."""
        return batched_maker(self.factory, self.arguments, self.wrappers, self.batched)

    def without_window(self) -> EnvMaker:
        """Return one whose environments open no window, by `render_mode="human"`."""
        if self.arguments.get("render_mode") != "human":
            return self
        return replace(self, arguments={**self.arguments, "render_mode": None})


def _for_one(factory: Callable[..., Any], arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the arguments for one environment, also of a factory that makes batches."""
    return {"num_envs": 1, **arguments} if makes_batches(factory) else arguments


def make_environment(target: str, arguments: Mapping[str, Any], wrappers: Sequence[Callable[[Any], Any]] = ()) -> Any:
    """Call the factory at `target` (`package.module.name`) and apply `wrappers`, the first one innermost.

    Returns a PettingZoo AECEnv or ParallelEnv, or a BatchedEnv of one environment. Raises ConfigInvalid if the factory
    cannot be imported or called, makes another thing, or a wrapper refuses it.
    """
    factory = import_factory(target)
    given = _for_one(factory, arguments)
    try:
        env = factory(**given)
    except TypeError as error:
        # An error inside the factory is raised unchanged, with its own traceback.
        if not does_not_fit(factory, error, (), given):
            raise
        given_text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        refused = f"does not take {given_text}" if arguments else "cannot be made without arguments"
        raise ConfigInvalid([f"environment {target} {refused}: {error}{own_lines(error)}"]) from error
    return wrapped(env, wrappers, target)


def wrapped(env: Any, wrappers: Sequence[Callable[[Any], Any]], name: str) -> Any:
    """Apply `wrappers`, the first one innermost; raises ConfigInvalid. `name` is for messages."""
    if isinstance(env, BatchedEnv):
        return batch_wrapped(env, wrappers, name)
    if not isinstance(env, AECEnv | ParallelEnv):
        problem = f"{name} makes a {type(env).__name__}, not a PettingZoo AECEnv or ParallelEnv"
        functional = f"; a functional environment is env=functional env.make={name}"
        hint = functional if isinstance(env, FunctionalEnv) else _other_interface_hint(env)
        raise ConfigInvalid([problem + hint])
    for wrapper in wrappers:
        own_name = wrapper.name if isinstance(wrapper, Wrapper) else getattr(wrapper, "__qualname__", repr(wrapper))
        description = f"wrapper {own_name} of environment {name}"
        try:
            outer = wrapper(env)
        except ConfigInvalid as error:
            raise ConfigInvalid(
                [f"{description}: {reason}{_mask_hint(env, reason)}" for reason in error.problems]
            ) from error
        except BdbQuit:
            raise
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            text = f"{description} raised {reason}{_mask_hint(env, reason)}{own_lines(error)}"
            raise ConfigInvalid([text]) from error
        if not isinstance(outer, AECEnv | ParallelEnv):
            raise ConfigInvalid([f"{description} returned {type(outer).__name__}, not an environment"])
        env = outer
    return env


def render_modes(env: Any) -> Sequence[str] | None:
    """Return the render modes that the environment's metadata declare; None if they do not say."""
    modes = (getattr(env, "metadata", None) or {}).get("render_modes")
    return None if modes is None else [str(mode) for mode in modes]


def _mask_hint(env: Any, reason: str) -> str:
    # Some Dict observations are only Dicts for their action mask.
    spaces: list[Any] = [env.observation_space(agent) for agent in getattr(env, "possible_agents", ())]
    if "Dict" in reason and any("action_mask" in getattr(space, "spaces", ()) for space in spaces):
        return "; action masks come with its observations, so take them out first: wrappers=[mask_in_info,...]"
    return ""


def import_factory(target: str) -> Callable[..., Any]:
    """Import the callable at `package.module.name`; raises ConfigInvalid with similar names or what to install."""
    module_path, _, name = target.rpartition(".")
    if not all(part.isidentifier() for part in target.split(".")) or not module_path:
        raise ConfigInvalid(
            [f"environment {target!r} is not an import path: write package.module.function, from the folder it is in"]
        )
    # Before the import, which may warn already.
    ignore_known_warnings(target)
    try:
        module = import_module(module_path)
        factory = attribute(module, name)
        if factory is None and _exists(target):
            # A module that its package does not import by itself.
            factory = import_module(target)
    except ImportError as error:
        raise ConfigInvalid([_import_problem(target, module_path, error)]) from error
    if factory is None:
        names = [name for name in dir(module) if not name.startswith("_") and callable(getattr(module, name))]
        raise ConfigInvalid([f"module {module_path} has no {name!r}{meant(name, sorted(names))}"])
    if not callable(factory):
        instead = f"give its function or class{_usual(factory)}" if inspect.ismodule(factory) else "give a function"
        raise ConfigInvalid([f"{target} is of type {type(factory).__name__}: {instead}"])
    return factory  # type: ignore[no-any-return]


def _usual(module: ModuleType) -> str:
    """Return, for a message, what most probably makes an environment in a module; "" if nothing does."""
    own = {name: value for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__}
    classes = [
        name for name, value in own.items() if inspect.isclass(value) and issubclass(value, AECEnv | ParallelEnv)
    ]
    made = [name for name in ("parallel_env", "env") if callable(getattr(module, name, None))]
    return next((f", e.g. {module.__name__}.{name}" for name in (*made, *classes)), "")


def _import_problem(target: str, module_path: str, error: ImportError) -> str:
    text = f"environment {target} cannot be imported: {error}"
    inside = isinstance(error, ImportFailed)
    for prefix, extra in _EXTRAS.items():
        # A missing dependency of the environment's module needs the extra too; a mistyped module name does not.
        missing_itself = module_path == error.name or module_path.startswith(f"{error.name}.")
        if f"{module_path}.".startswith(f"{prefix}.") and not (missing_itself and _exists(prefix)):
            # The import statements of a missing package do not help to install it.
            shown = inside and not isinstance(error.__cause__, ModuleNotFoundError)
            return f"{text}; pip install 'marlflow[{extra}]'{own_lines(error) if shown else ''}"
    if inside:
        return text + own_lines(error)
    if moved := moved_to(target):
        return text + moved
    parent, _, name = module_path.rpartition(".")
    if parent and _exists(parent):
        return text + meant(name, sorted(_submodules(parent)))
    return f"{text}; is its package installed, and is the name right?"


def comes_with_an_extra(module: str) -> bool:
    """Return whether an extra of marlflow installs this top-level module."""
    return any(path.partition(".")[0] == module for path in _EXTRAS)


def extra_of(path: str) -> str | None:
    """Return the extra of marlflow that installs the environments of the module at `path`, if there is one."""
    return next((extra for module, extra in _EXTRAS.items() if f"{path}.".startswith(f"{module}.")), None)


def ignore_known_warnings(target: str) -> None:
    """Filter out warnings that users of the environment at this import path cannot fix."""
    for module, warnings_of_module in _KNOWN_WARNINGS.items():
        if target.startswith(module):
            for message, category in warnings_of_module:
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


def _other_interface_hint(env: object) -> str:
    if isinstance(env, type):
        return f"; it returned the class {env.__name__}: call it there"
    methods = ("reset", "step", "observation_space", "action_space")
    if hasattr(env, "possible_agents") and all(callable(getattr(env, method, None)) for method in methods):
        base, name = "AECEnv" if hasattr(env, "observe") else "ParallelEnv", type(env).__name__
        return f"; it has the methods of one, so class Mine({name}, pettingzoo.{base}) of your own, left empty, is one"
    if hasattr(env, "observation_space") and not hasattr(env, "possible_agents") and hasattr(env, "step"):
        of_several = "one of several agents, with Tuple spaces, is env=gymnasium_team"
        return f"; an environment of one agent (gymnasium) is not supported, and {of_several}"
    return ""
