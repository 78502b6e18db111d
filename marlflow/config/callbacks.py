"""Read and check callbacks and sinks: `callbacks` and `log.sinks`, by name.

A run's folder has its configuration as plain text, so secrets must not be in it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from marlflow.base.sentences import overrides_nothing
from marlflow.config.construct import LEFT, build, imported
from marlflow.config.experiment import Experiment
from marlflow.config.target_nodes import TARGET
from marlflow.env.episode_location import raised
from marlflow.observe.callback import Callback

_SECRET: Final = re.compile(
    r"(api|access|private|secret)[_-]?key$|(^|[_-])(token|secret|password|passwd|passphrase|authorization)$", re.I
)
_USER_IN_URL: Final = re.compile(r"^[\w+.-]+://[^/@\s]*:[^/@\s]*@")
# The environment variables that the shipped sinks' packages read.
_VARIABLES: Final = {"wandb": "WANDB_API_KEY", "mlflow": "MLFLOW_TRACKING_PASSWORD", "trackio": "HF_TOKEN"}


def with_callbacks(sections: Mapping[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return a configuration with `callbacks` and `log.sinks` built, null left out. Append to `problems`."""
    read = dict(sections)
    if isinstance(log := read.get("log"), Mapping) and isinstance(log.get("sinks"), Mapping):
        read["log"] = {**log, "sinks": _all_built(log["sinks"], "log.sinks", problems)}
    if isinstance(callbacks := read.get("callbacks"), Mapping):
        read["callbacks"] = _all_built(callbacks, "callbacks", problems)
    return read


def _all_built(values: Mapping[str, Any], path: str, problems: list[str]) -> dict[str, Callback]:
    built = {str(name): _built(entry, f"{path}.{name}", problems) for name, entry in values.items()}
    return {name: callback for name, callback in built.items() if callback is not None}


def _built(entry: Any, path: str, problems: list[str]) -> Callback | None:
    if entry is None:
        return None
    if not isinstance(entry, Mapping) or TARGET not in entry:
        problems.append(f"{path} must be {{{TARGET}: package.module.Class, ...}} or null, not {entry!r}")
        return None
    if secrets := list(_secrets(entry, path)):
        problems += secrets
        return None
    make = imported(entry[TARGET], f"{path}.{TARGET}", problems)
    if make is LEFT:
        return None
    if isinstance(make, type) and not issubclass(make, Callback):
        problems.append(f"{path}: {make.__name__} is no callback; derive it from marlflow.Callback")
        return None
    made = build(entry, path, problems)
    if isinstance(made, Callback):
        return made
    if made is not LEFT:
        problems.append(f"{path}: {entry[TARGET]} returned {made!r:.60}, which is no marlflow.Callback")
    return None


def callback_problems(experiment: Experiment) -> Iterator[str]:
    """Yield what callbacks and sinks lack, and the secrets in their settings."""
    sinks: Mapping[str, object] = experiment.log.sinks
    for section, callbacks in (("log.sinks", sinks), ("callbacks", experiment.callbacks)):
        for name, callback in callbacks.items():
            # A value of a wrong type has a problem of its own.
            if not isinstance(callback, Callback):
                continue
            path, settings = f"{section}.{name}", _settings(callback)
            yield from _secrets(settings, path)
            if problem := overrides_nothing(callback, Callback):
                yield f"{path}: {problem}"
            yield from _signature_problems(callback, path)
            try:
                found: Any = callback.problems()
                yield from (f"{path} {problem}" for problem in ([found] if isinstance(found, str) else found))
            except Exception as error:  # noqa: BLE001  code of a user
                yield f"{path}: {type(callback).__name__}.problems() raised {raised(error)}"


def _signature_problems(callback: Callback, path: str) -> Iterator[str]:
    """Yield a problem for each method that cannot be called as that of Callback is."""
    for name, method in vars(Callback).items():
        if name.startswith("_") or not inspect.isfunction(method):
            continue
        given = list(inspect.signature(method).parameters)[1:]
        try:
            signature = inspect.signature(getattr(callback, name))
        except (TypeError, ValueError):  # it has none that Python knows
            continue
        try:
            signature.bind(*given)
        except TypeError:
            call = f"{name}({', '.join(given)})"
            yield f"{path}: {type(callback).__name__}.{name}{signature} cannot be called as {call}, as it will be"


def _settings(callback: object) -> Mapping[str, Any]:
    if not is_dataclass(callback) or isinstance(callback, type):
        return {}
    return {field.name: getattr(callback, field.name) for field in fields(callback)}


def _secrets(values: Any, path: str) -> Iterator[str]:
    """Yield a problem for each text under the name of a secret, and for each password in an address."""
    if isinstance(values, Mapping):
        for key, value in values.items():
            if isinstance(value, str) and value and _SECRET.search(str(key)):
                yield _refused(f"{path}.{key}", path)
            else:
                yield from _secrets(value, f"{path}.{key}")
    elif isinstance(values, list | tuple):
        for number, value in enumerate(values):
            yield from _secrets(value, f"{path}[{number}]")
    elif isinstance(values, str) and _USER_IN_URL.search(values):
        yield _refused(path, path.rpartition(".")[0])


def _refused(path: str, owner: str) -> str:
    name = owner.rpartition(".")[2]
    variable = _VARIABLES.get(name, "the environment variable that its package reads")
    return (
        f"{path} is a secret, and the run's folder would have it as plain text; leave it out, and set {variable} in "
        "the environment instead"
    )
