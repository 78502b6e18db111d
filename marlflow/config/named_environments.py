"""Look up shipped environments by name in conf/env/.

Apart from `environment`: it reads YAML, which a process that plays a finished run does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.base.sentences import meant, nearest
from marlflow.config.comments import names, text_of
from marlflow.config.folders import name_problem
from marlflow.config.target_nodes import ENV_KEYS, TARGET, UNSET
from marlflow.config.wrappers import wrappers_of
from marlflow.env.simulators import pettingzoo_registry


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """Hold the import path of a factory, its arguments, its wrappers and `num_envs`."""

    factory: str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Any]
    num_envs: int


def default_run_name(factory: Callable[..., Any] | str, arguments: Mapping[str, Any]) -> str | None:
    """Return the name of a run that has none: that of its environment, as on the command line. None if it has none.

    >>> default_run_name("mpe2.simple_tag_v3.parallel_env", {"num_good": 2})
    'simple_tag'
    >>> default_run_name(pettingzoo_registry.TARGET, {"id": "classic/rps-v2"})
    'rps'
    """
    id = arguments.get("id")
    for name, shipped, its_id in _factories():
        if shipped == factory and its_id in (None, id):
            return name
    if factory == pettingzoo_registry.TARGET:
        return str(id).rpartition("/")[2]
    path = factory if isinstance(factory, str) else getattr(factory, "__qualname__", "")
    return None if name_problem(path) else path


@cache
def _factories() -> list[tuple[str, str, str | None]]:
    """Return each shipped environment's name, factory, and `id` if it has one. To read them all takes 0.2 s."""
    return [(name, values[TARGET], values.get("id")) for name in names("env") for values in [_values(name)]]


def _values(name: str) -> dict[str, Any]:
    values: dict[str, Any] = OmegaConf.to_container(OmegaConf.create(text_of(f"env/{name}")))  # type: ignore[assignment]
    return values


def settings_of_named(name: str, instead: str = "") -> dict[str, Any]:
    """Return the settings of the shipped environment `name`.

    Raises ConfigInvalid for an unknown name, with what to write `instead` unless it is nearly a known one.
    """
    # env=python is for a factory of the user's own, which Python code passes directly.
    known = [option for option in names("env") if option != "python"]
    if name not in known:
        question = meant(name, known, "there are")
        hint = "" if "did you mean" in question else instead
        raise ConfigInvalid([f"there is no environment {name!r}{question}{hint}"])
    return _values(name)


def named_wrappers(wrappers: Sequence[Callable[[Any], Any] | str]) -> tuple[Callable[[Any], Any], ...]:
    """Return `wrappers` with each shipped name replaced by its functions; raises ConfigInvalid for other names."""
    found: list[Callable[[Any], Any]] = []
    known, problems = names("wrappers"), list[str]()
    for wrapper in wrappers:
        if not isinstance(wrapper, str):
            found.append(wrapper)
        elif wrapper in known:
            found += wrappers_of(OmegaConf.to_container(OmegaConf.create(text_of(f"wrappers/{wrapper}"))), problems)
        else:
            problems.append(f"there is no wrapper {wrapper!r}{meant(wrapper, known, 'there are')}")
    if problems:
        raise ConfigInvalid(problems)
    return tuple(found)


def misspelled_settings(name: str, given: Iterable[str], known: Collection[str]) -> Iterator[str]:
    """Yield a problem for each setting `given` that is nearly one of those `known` of the environment `name`."""
    yield from (
        f"environment {name!r} has no argument {key!r}; did you mean {close!r}?"
        for key in given
        if key not in known and (close := nearest(key, known)) is not None
    )


def named_environment(name: str, arguments: Mapping[str, Any]) -> NamedEnvironment:
    """Return the environment `name`, its defaults replaced by `arguments`.

    Raises ConfigInvalid for an unknown name, a misspelled argument or a missing one.
    """
    own = "; one of your own is the function that makes it, or its import path, package.module.name"
    values = settings_of_named(name, own)
    defaults = {key: value for key, value in values.items() if key not in (TARGET, *ENV_KEYS)}
    merged = {**defaults, **arguments}
    problems = [*misspelled_settings(name, arguments, defaults)]
    unset = [key for key, value in merged.items() if value == UNSET]
    problems += [f"environment {name!r} needs {key!r}: write Env({name!r}, {{{key!r}: ...}})" for key in unset]
    wrappers = wrappers_of(values["wrappers"], problems)
    if problems:
        raise ConfigInvalid(problems)
    return NamedEnvironment(values[TARGET], merged, wrappers, values["num_envs"])
