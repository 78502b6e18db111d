"""Another environment than a run's own, or its own with other settings, in which its policies play."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from marlflow.base.errors import ConfigInvalid
from marlflow.config.experiment import Env, Experiment
from marlflow.config.target_nodes import TARGET
from marlflow.runs.saved_runs import EXPERIMENT

OtherEnv: TypeAlias = Env | Mapping[str, Any] | None
"""Where policies play: another environment, the run's with other settings, by name, or the run's."""


# Takes the place of an environment that is not played, whose package may be missing.
_STAND_IN = "marlflow.env.games.cartpole_team.parallel_env"
_PATH = re.compile(r"env\b(?:\.(\w+))?")


def values_for(values: Mapping[str, Any], env: OtherEnv) -> dict[str, Any]:
    """Return an experiment's values for `in_env`: of another environment's, only what that one takes over is left.

    Raises ConfigInvalid for a setting that cannot be set.
    """
    if not isinstance(env, Env):
        return with_settings(values, env or {})
    own = values.get("env") or {}
    return {**values, "env": {TARGET: _STAND_IN, **{key: own[key] for key in _taken_over(env) if key in own}}}


def is_needed(path: str, env: OtherEnv) -> bool:
    """Return whether a text that begins with the path of a recorded value, such as env.max_cycles, is of one in use."""
    named = _PATH.match(path)
    return not isinstance(env, Env) or named is None or named[1] in _taken_over(env)


def _taken_over(env: Env) -> Sequence[str]:
    return ("num_envs",) if env.wrappers else ("num_envs", "wrappers")


def in_env(experiment: Experiment, env: OtherEnv) -> Experiment:
    """Return an experiment in another environment, which takes over `num_envs`, and wrappers if it has none."""
    if not isinstance(env, Env):
        return experiment
    wrappers, num_envs = env.wrappers or experiment.env.wrappers, experiment.env.num_envs
    return replace(experiment, env=replace(env, wrappers=wrappers, num_envs=num_envs))


def with_settings(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's values with other settings of env, by name, such as `arguments.penalty`.

    Raises ConfigInvalid for one that cannot be set.
    """
    if not settings:
        return dict(values)
    if not isinstance(values.get("env"), Mapping):
        raise ConfigInvalid([f"{EXPERIMENT} has no environment whose settings could be changed"])
    env = copy.deepcopy(dict(values["env"]))
    for name, value in settings.items():
        *outer, last = name.split(".")
        if not all(part.isidentifier() for part in (*outer, last)) or TARGET in (*outer, last):
            raise ConfigInvalid([f"env.{name} is no setting of an environment that can be changed"])
        place = env
        for part in outer:
            if not isinstance(place.get(part) or {}, dict):
                raise ConfigInvalid([f"env.{name} cannot be set: env.{part} is {place[part]!r}, no mapping"])
            place[part] = place = dict(place.get(part) or {})
        place[last] = value
    return {**values, "env": env}


def env_of_words(words: Iterable[str]) -> OtherEnv:
    """Return what words such as `env=simple_spread` and `env.batched=false`, with values of YAML, say.

    An environment of a user's own is named by its import path, `env=my_module.make_env`.

    Raises ConfigInvalid.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    chosen, settings = None, dict[str, Any]()
    for name, _, text in (word.partition("=") for word in words):
        if name == "env":
            chosen = text
            continue
        if not name.startswith("env."):
            raise ConfigInvalid([f"{name!r} is neither env=<name> nor env.<setting>=<value>"])
        try:
            # Numbers as in configurations, where 1e-3 is one.
            value = OmegaConf.create(f"value: {text}").value
            settings[name.removeprefix("env.")] = OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
        except (YAMLError, OmegaConfBaseException) as error:
            raise ConfigInvalid([f"{name} cannot be read: {str(error).splitlines()[0]}"]) from error
    return settings if chosen is None else _named(chosen, settings)


def _named(name: str, settings: Mapping[str, Any]) -> Env:
    from marlflow.config.named_environments import misspelled_settings, settings_of_named  # late: they read YAML
    from marlflow.config.schema import read_env

    if settings.get("wrappers", True) in (None, [], {}):
        raise ConfigInvalid(["env.wrappers is empty, but another environment without wrappers takes over the run's"])
    # With a dot it is the import path of a user's own.
    defaults = {TARGET: name} if "." in name else settings_of_named(name, "; one of your own is package.module.name")
    problems = [*misspelled_settings(name, (setting.partition(".")[0] for setting in settings), defaults)]
    env = read_env(with_settings({"env": defaults}, settings)["env"], problems)
    if problems:
        raise ConfigInvalid(problems)
    assert isinstance(env, Env), "without problems, it was read"
    return env
