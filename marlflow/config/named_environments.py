"""Environments that ship, by the names that `env=` takes on the command line: what conf/env/ says of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import OmegaConf

from marlflow.base.errors import ConfigInvalid
from marlflow.base.near import meant, nearest
from marlflow.config.comments import names, text_of
from marlflow.config.construct import TARGET
from marlflow.config.experiment import ENV_KEYS
from marlflow.config.schema import wrappers_of

_UNSET = "???"


@dataclass(frozen=True, slots=True)
class NamedEnvironment:
    """What stands for a name: the import path of a factory, its arguments, and what it is run with."""

    factory: str
    arguments: Mapping[str, Any]
    wrappers: Sequence[Any]
    num_envs: int


def named_environment(name: str, arguments: Mapping[str, Any]) -> NamedEnvironment:
    """The environment `name` with its own arguments, but for those in `arguments`.

    Raises ConfigInvalid if there is none of that name, for an argument that looks like one of its own and is none, and
    if one is left out that it cannot do without.
    """
    known = [one for one in names("env") if one != "python"]  # that one stands for a factory, which is given itself
    if name not in known:
        question = meant(name, known, "there are")
        own = "; one of your own is the function that makes it, or its import path, package.module.name"
        raise ConfigInvalid([f"there is no environment {name!r}{question}{'' if 'did you mean' in question else own}"])
    values: Any = OmegaConf.to_container(OmegaConf.create(text_of(f"env/{name}")))
    its_own = {key: value for key, value in values.items() if key not in (TARGET, *ENV_KEYS)}
    taken = {**its_own, **arguments}
    problems = [
        f"environment {name!r} has no argument {key!r}; did you mean {close!r}?"
        for key in taken.keys() - its_own.keys()
        if (close := nearest(key, its_own)) is not None
    ]
    unset = [key for key, value in taken.items() if value == _UNSET]
    problems += [f"environment {name!r} needs {key!r}: write Env({name!r}, {{{key!r}: ...}})" for key in unset]
    wrappers = wrappers_of(values["wrappers"], problems)
    if problems:
        raise ConfigInvalid(problems)
    return NamedEnvironment(values[TARGET], taken, wrappers, values["num_envs"])
