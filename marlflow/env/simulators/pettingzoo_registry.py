"""Environments that are registered in PettingZoo, by id.

    env = marlflow.env.simulators.pettingzoo_registry.make("butterfly/pistonball-v6", n_pistons=10)

Ids are as in `pettingzoo.make` (PettingZoo 1.27, https://pettingzoo.farama.org/api/registry/). Environments that a
module registers when it is imported have the module before their id, as in gymnasium: `my_package.games:mine/game-v0`.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Literal

import pettingzoo
from pettingzoo import AECEnv, ParallelEnv
from pettingzoo.env_registry.exceptions import FailedToImport, PettingZooRegistryError
from pettingzoo.utils import BaseWrapper
from pettingzoo.utils.conversions import aec_to_parallel_wrapper

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant
from marlflow.env.factories import extra_of, ignore_known_warnings, import_factory
from marlflow.env.user_code import import_module, own_lines

TARGET: Final = "marlflow.env.simulators.pettingzoo_registry.make"
OWN_ARGUMENTS: Final = ("id", "api")
_APIS: Final = ("parallel", "aec")
_EXAMPLE: Final = "butterfly/pistonball-v6"
# PettingZoo 1.27 draws into their observations only in a render mode.
_DRAWN_INTO: Final = ("pistonball", "cooperative_pong")
# Whose observe() has no side effects.
_PICTURES: Final = "pettingzoo.butterfly."


def make(
    id: str, api: Literal["parallel", "aec"] | None = None, **arguments: Any
) -> AECEnv[Any, Any, Any] | ParallelEnv[Any, Any, Any]:
    """Make the registered environment `id` with its `arguments`; an id without a version means the newest one.

    `api` None is `parallel` if the environment has this form, else `aec`. Raises ConfigInvalid if there is no such
    environment, or if a package that it needs is not installed. PettingZoo's pistonball and cooperative pong, whose
    agents see no ball without a render mode, have `rgb_array` unless another is given.
    """
    spec, form = _find(id, api)
    ignore_known_warnings(_import_path(spec))
    has_pictures = _import_path(spec).startswith(_PICTURES)
    if has_pictures and spec.name in _DRAWN_INTO and arguments.get("render_mode") is None:
        arguments = {**arguments, "render_mode": "rgb_array"}
    try:
        env = pettingzoo.make(form, spec, **arguments)
    except FailedToImport as error:
        raise ConfigInvalid([_import_problem(spec, error)]) from error
    if has_pictures and isinstance(env, aec_to_parallel_wrapper):
        env.aec_env = _ObservedOnce(env.aec_env)
    return env


class _ObservedOnce(BaseWrapper[Any, Any, Any]):
    """An AEC environment whose `last` gives no observation.

    PettingZoo's parallel form calls it for each agent and drops the observation, before it observes all agents. To cut
    twice as many pictures out of the screen is half of the time of pistonball.
    """

    def last(self, observe: bool = True) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        turn: tuple[Any, float, bool, bool, dict[str, Any]] = self.env.last(observe=False)
        return turn


def parameters(arguments: Mapping[str, Any]) -> Mapping[str, inspect.Parameter] | None:
    """Return the parameters of `make` and of the environment that `arguments` choose; None if it takes any.

    Raises ConfigInvalid.
    """
    spec, _ = _find(arguments.get("id"), arguments.get("api"))
    path = _import_path(spec)
    own = {name: p for name, p in inspect.signature(make).parameters.items() if name in OWN_ARGUMENTS}
    taken = inspect.signature(import_factory(path)).parameters
    if _takes_any(taken) and path.startswith("pettingzoo."):
        # PettingZoo's factories pass their arguments on to raw_env.
        taken = inspect.signature(import_factory(f"{path.rpartition('.')[0]}.raw_env")).parameters
    return None if _takes_any(taken) else {**own, **taken}


def display_name(arguments: Mapping[str, Any]) -> str:
    """Return the environment's name in messages: its id."""
    return str(arguments.get("id"))


def stable_name(arguments: Mapping[str, Any]) -> str:
    """Return what identifies the environment in checkpoints.

    For PettingZoo's own environments this is the import path by which they were made before there were ids:

    >>> stable_name({"id": "classic/connect_four-v3", "api": "aec"})
    'pettingzoo.classic.connect_four_v3.env'
    """
    spec, form = _find(arguments.get("id"), arguments.get("api"))
    if not _import_path(spec).startswith("pettingzoo."):
        return f"{spec.id} ({form})"
    return f"pettingzoo.{spec.namespace}.{spec.name}_v{spec.version}.{'env' if form == 'aec' else 'parallel_env'}"


def _find(id: Any, api: Any) -> tuple[pettingzoo.EnvSpec, Any]:
    if not isinstance(id, str):
        raise ConfigInvalid([f"env.id must be the id of a registered environment, such as {_EXAMPLE}, not {id!r}"])
    if api not in (None, *_APIS):
        raise ConfigInvalid([f"env.api must be parallel or aec, or null for the one that {id!r} has, not {api!r}"])
    module, _, name = id.rpartition(":")
    if module:
        try:
            import_module(module)
        except ImportError as error:
            text = f"{module}, which is to register {name!r}, cannot be imported: {error}{own_lines(error)}"
            raise ConfigInvalid([text]) from error
    found = {}
    for form in _APIS:
        try:
            found[form] = pettingzoo.spec(form, name)
        except PettingZooRegistryError:
            continue
    if not found:
        raise ConfigInvalid([f"PettingZoo has no environment {name!r}{_suggestion(name)}"])
    form = next(iter(found)) if api is None else api
    if form not in found:
        raise ConfigInvalid([f"{name!r} has no {form} form: set env.api={next(iter(found))}"])
    return found[form], form


def _suggestion(name: str) -> str:
    ids = sorted({*pettingzoo.aec_registry, *pettingzoo.parallel_registry})
    text = meant(name, ids)
    if "did you mean" in text:
        return text
    # Without its namespace and its version, the name alone may be right.
    same = [id for id in ids if id.partition("/")[2].rpartition("-v")[0] == name.rpartition("/")[2].rpartition("-v")[0]]
    return f"; did you mean {same[0]!r}?" if same else f"; ids look like {_EXAMPLE}: {', '.join(ids)}"


def _import_path(spec: pettingzoo.EnvSpec) -> str:
    if callable(spec.entry_point):
        return f"{spec.entry_point.__module__}.{spec.entry_point.__qualname__}"
    return str(spec.entry_point).replace(":", ".")


def _takes_any(taken: Mapping[str, inspect.Parameter]) -> bool:
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken.values())


def _import_problem(spec: pettingzoo.EnvSpec, error: FailedToImport) -> str:
    cause = error.__cause__ or error
    reason = f"environment {spec.id!r} cannot be imported: {cause}"
    if extra := extra_of(_import_path(spec)):
        return f"{reason}; pip install 'marlflow[{extra}]'"
    if _import_path(spec).startswith("pettingzoo."):
        return f"{reason}; pip install 'pettingzoo[{spec.namespace}]'"
    if not isinstance(cause, ModuleNotFoundError):
        return f"{reason}{own_lines(cause)}"
    return f"{reason}; is its package installed?"
