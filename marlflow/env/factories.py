"""Imports what makes environments: functions and classes at import paths."""

from __future__ import annotations

import importlib.util
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from pettingzoo import AECEnv, ParallelEnv

from marlflow.base.errors import ConfigInvalid
from marlflow.base.public_names import moved_to
from marlflow.base.sentences import meant
from marlflow.env.user_code import ImportFailed, attribute, import_module, own_lines

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
