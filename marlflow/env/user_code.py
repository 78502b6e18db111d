"""Import and call code of users and packages; distinguish calls that do not fit from errors inside the code."""

from __future__ import annotations

import importlib
import inspect
import re
import traceback
import types
from bdb import BdbQuit
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marlflow.base.errors import MarlflowError
from marlflow.env.episode_location import lines_of

# The number of frames of packages that are shown if no frame is the user's own code.
_FRAMES = 2
_UNEXPECTED = re.compile(r"got an unexpected keyword argument '(\w+)'")


class ImportFailed(ImportError):
    """A module or name exists, but an error inside it ended its import; `lines` shows where. `name` as in ImportError.

    Not to be installed or spelled otherwise, unlike with other ImportErrors.
    """

    def __init__(self, error: BaseException) -> None:
        missing = isinstance(error, ModuleNotFoundError)
        # "No module named 'x'" needs no class name.
        super().__init__(str(error) if missing else _said(error), name=getattr(error, "name", None))
        self.lines = lines_of(error, _FRAMES)
        if isinstance(error, SyntaxError):
            # Its place is in the error itself, whose last line is its text.
            self.lines += "\n" + "".join(traceback.format_exception_only(error)[:-1]).rstrip()


def own_lines(error: BaseException) -> str:
    """Return the lines of code outside marlflow that an error came from, one per line."""
    return error.lines if isinstance(error, ImportFailed) else lines_of(error, _FRAMES)


def import_module(path: str) -> types.ModuleType:
    """Import a module; raises ModuleNotFoundError if it does not exist, ImportFailed if an error inside ends it."""
    try:
        return importlib.import_module(path)
    except BdbQuit:
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{path}.".startswith(f"{error.name}."):
            raise
        raise ImportFailed(error) from error
    # Packages that lack something of the system call sys.exit().
    except (Exception, SystemExit) as error:
        raise ImportFailed(error) from error


def attribute(module: types.ModuleType, name: str) -> Any:
    """Return an attribute of a module, None without one; raises ImportError as the module does, or ImportFailed."""
    try:
        return getattr(module, name, None)
    except (ImportError, BdbQuit):
        # SuperSuit raises ImportError for names that do not exist, or only in another version.
        raise
    except (Exception, SystemExit) as error:
        raise ImportFailed(error) from error


def does_not_fit(
    make: Callable[..., Any], error: BaseException, positional: Sequence[Any], named: Mapping[str, Any]
) -> bool:
    """Return whether `error`, raised by the caller's call of `make`, says that the arguments are not its parameters."""
    if not isinstance(error, TypeError):
        return False
    try:
        signature = inspect.signature(make)
    except (TypeError, ValueError):
        # A builtin without a signature: its own errors come from the caller's line.
        return error.__traceback__ is None or error.__traceback__.tb_next is None
    try:
        signature.bind(*positional, **named)
    except TypeError:
        return True
    # A factory with **kwargs passes its arguments on to another, which may not take them.
    passes_on = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())
    refused = _UNEXPECTED.search(str(error))
    return passes_on and refused is not None and refused[1] in named


def failed_call(
    make: Callable[..., Any], error: BaseException, positional: Sequence[Any] = (), named: Mapping[str, Any] = {}
) -> str:
    """Say why a call of `make` failed: its values, or an error inside; with the lines that are not marlflow's."""
    name = getattr(make, "__name__", type(make).__name__)
    lines = own_lines(error)
    # marlflow's own classes raise on purpose.
    refuses = isinstance(error, ValueError) or not lines or does_not_fit(make, error, positional, named)
    return f"{name} does not take these values: {error}{lines}" if refuses else f"{name} raised {_said(error)}{lines}"


def _said(error: BaseException) -> str:
    return str(error) if isinstance(error, MarlflowError) else f"{type(error).__name__}: {error}".rstrip(": ")
