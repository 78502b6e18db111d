"""The manifest of a dataset folder, `manifest.json`, written first; its spaces are plain data that runs nothing."""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.errors import ConfigInvalid
from marlflow.base.files import is_signed, replacing, signature_of
from marlflow.base.public_names import current_name, with_current_names
from marlflow.base.serialization import MALFORMED
from marlflow.base.spaces import Spaces
from marlflow.env.factories import import_factory
from marlflow.env.make import Wrapper

_T = TypeVar("_T")

NAME = "manifest.json"
_FORMAT = "marlflow records 2"


@dataclass(frozen=True, slots=True)
class RecordedEnvironment:
    """How to make the recorded environment, or in `unknown` why not."""

    factory: str
    arguments: Mapping[str, Any]
    wrappers: Sequence[tuple[str, Mapping[str, Any]]]
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """The environment, its agents' spaces, the recorded policies' spaces, and the policy that played each agent.

    `mapping` is empty if a matchmaker decided who played whom, and of records by earlier versions.
    """

    agents: Mapping[str, Spaces]
    policies: Mapping[str, Spaces]
    environment: RecordedEnvironment
    mapping: Mapping[str, str] = field(default_factory=dict, compare=False)
    record: str = field(default_factory=partial(secrets.token_hex, 8), compare=False)
    """Identifies the dataset folder, even if it is moved."""
    is_own: bool = field(default=False, compare=False)
    """Whether this user described the environment, which has not been changed since."""


def environment_described(
    factory: Callable[..., Any] | str, arguments: Mapping[str, Any], wrappers: Sequence[object]
) -> RecordedEnvironment:
    """Describe as JSON data how to make an environment."""
    path = factory if isinstance(factory, str) else _path(factory)
    named = [(wrapper.name, wrapper.arguments) for wrapper in wrappers if isinstance(wrapper, Wrapper)]
    if path is None:
        # Without an address, which another process would not have.
        name = getattr(factory, "__qualname__", type(factory).__name__)
        return RecordedEnvironment("", {}, [], f"its factory {name} has no import path")
    if len(named) < len(wrappers):
        return RecordedEnvironment("", {}, [], "its wrappers are not named by import paths")
    # NaN and infinity are not JSON: other readers would reject the manifest.
    try:
        json.dumps([dict(arguments), [dict(given) for _, given in named]], allow_nan=False)
    except (TypeError, ValueError) as error:
        return RecordedEnvironment("", {}, [], f"its arguments are not plain data ({error})")
    return RecordedEnvironment(path, dict(arguments), [(name, dict(given)) for name, given in named])


def _path(factory: Callable[..., Any]) -> str | None:
    path = f"{getattr(factory, '__module__', '')}.{getattr(factory, '__qualname__', '')}"
    try:
        # Lambdas and local functions have a path, too, but it does not lead back to them.
        return path if import_factory(path) is factory else None
    except ConfigInvalid:
        return None


def wrappers_of(environment: RecordedEnvironment) -> list[Wrapper]:
    """Import the wrappers; raises ConfigInvalid."""
    wrappers = []
    for path, arguments in environment.wrappers:
        module, _, name = path.rpartition(".")
        try:
            wrappers.append(Wrapper(path, getattr(importlib.import_module(module), name), arguments))
        except (ImportError, AttributeError, ValueError) as error:
            raise ConfigInvalid([f"wrapper {path} of the recorded environment cannot be imported: {error}"]) from error
    return wrappers


def write_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """Write the manifest into `folder`, or return an equal existing one.

    Raises ConfigInvalid if a different one exists, or writing fails.
    """
    # Runs that record the same environment and policies may share a folder.
    if (folder / NAME).exists():
        if (existing := read_manifest(folder)) != manifest:
            raise ConfigInvalid([f"{folder} already has records, of {_summary(existing)}; record into another folder"])
        return existing
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with replacing(folder / NAME) as aside:
            aside.write_text(json.dumps(_data(manifest), indent=1))
    except OSError as error:
        problem = f"records cannot be written to {folder}: {error}; give another record.folder, or see that it can be"
        raise ConfigInvalid([problem]) from error
    return manifest


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest; raises ConfigInvalid if missing or damaged."""
    try:
        if not folder.is_dir():
            raise ConfigInvalid(
                [f"there is no folder of records {folder}; give that of a run with record, runs/.../record"]
            )
        data = json.loads((folder / NAME).read_text())
        if data["format"] != _FORMAT:
            raise ValueError(f"it is of format {data['format']!r}, not {_FORMAT!r}")
        return _manifest(data)
    except FileNotFoundError:
        raise ConfigInvalid([f"{folder} has no {NAME}, so it is no folder of records"]) from None
    except OSError as error:
        raise ConfigInvalid([f"{folder / NAME} cannot be read: {error}"]) from error
    except MALFORMED as error:
        raise ConfigInvalid([f"{folder / NAME} is damaged: {type(error).__name__}: {error}"]) from error


def _summary(manifest: Manifest) -> str:
    policies = ", ".join(
        f"{name!r} ({spaces.observation}, {spaces.action})" for name, spaces in manifest.policies.items()
    )
    return f"policies {policies} of {manifest.environment.factory or 'an environment'}"


def _data(manifest: Manifest) -> dict[str, Any]:
    environment = {
        "factory": manifest.environment.factory,
        "arguments": manifest.environment.arguments,
        "wrappers": [{"factory": path, "arguments": arguments} for path, arguments in manifest.environment.wrappers],
        "unknown": manifest.environment.unknown,
    }
    return {
        "format": _FORMAT,
        "record": manifest.record,
        "marlflow": version("marlflow"),
        "environment": environment,
        # Only of the environment: it names code, which is imported.
        "signature": signature_of(_signed_content(environment)),
        "agents": {name: described(spaces) for name, spaces in manifest.agents.items()},
        "policies": {name: described(spaces) for name, spaces in manifest.policies.items()},
        "mapping": dict(manifest.mapping),
    }


def _manifest(data: Mapping[str, Any]) -> Manifest:
    environment = data["environment"]
    wrappers = [
        (current_name(_is(str, wrapper["factory"])), with_current_names(_is(dict, wrapper["arguments"])))
        for wrapper in _is(list, environment["wrappers"])
    ]
    return Manifest(
        {name: spaces_of(spaces) for name, spaces in data["agents"].items()},
        {name: spaces_of(spaces) for name, spaces in data["policies"].items()},
        RecordedEnvironment(
            current_name(_is(str, environment["factory"])),
            with_current_names(_is(dict, environment["arguments"])),
            wrappers,
            _is(str, environment["unknown"]),
        ),
        {agent: _is(str, policy) for agent, policy in _is(dict, data.get("mapping", {})).items()},
        _is(str, data["record"]),
        is_signed(_signed_content(environment), data.get("signature")),
    )


def _signed_content(environment: Mapping[str, Any]) -> bytes:
    return json.dumps([_FORMAT, environment], sort_keys=True).encode()


def _is(kind: type[_T], value: object) -> _T:
    if not isinstance(value, kind):
        raise ValueError(f"it has {value!r} instead of a {kind.__name__}")
    return value


def described(spaces: Spaces) -> dict[str, Any]:
    """Describe a policy's spaces as plain data."""
    return {
        "observation": space_described(spaces.observation),
        "action": space_described(spaces.action),
        "masked": spaces.masked,
    }


def spaces_of(data: Mapping[str, Any]) -> Spaces:
    """Return described spaces; raises ValueError or KeyError."""
    return Spaces(space_of(data["observation"]), space_of(data["action"]), _flag(data["masked"]))


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"masked is {value!r}, neither true nor false")
    return value


def space_described(space: gym.Space[Any]) -> dict[str, Any]:
    """Describe a space as plain data; raises TypeError if unsupported."""
    match space:
        case gym.Box():
            bounds = {"low": _bound(space.low), "high": _bound(space.high)}
            return {"space": "Box", "shape": list(space.shape), "dtype": str(space.dtype), **bounds}
        case gym.Discrete():
            return {"space": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
        case gym.MultiDiscrete():
            numbers = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
            return {"space": "MultiDiscrete", "dtype": str(space.dtype), **numbers}
        case gym.MultiBinary():
            return {"space": "MultiBinary", "n": space.n if isinstance(space.n, int) else list(space.n)}
        case gym.Dict():
            return {"space": "Dict", "spaces": {key: space_described(part) for key, part in space.spaces.items()}}
        case gym.Tuple():
            return {"space": "Tuple", "spaces": [space_described(part) for part in space.spaces]}
    raise TypeError(f"expected a Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple, got {space}")


def space_of(data: Mapping[str, Any]) -> gym.Space[Any]:
    """Return a described space; raises ValueError or KeyError."""
    match data["space"]:
        case "Box":
            dtype, shape = np.dtype(data["dtype"]), tuple(data["shape"])
            low, high = (_bounds(data[side], shape, dtype) for side in ("low", "high"))
            return gym.Box(low, high, shape, dtype.type)
        case "Discrete":
            return gym.Discrete(data["n"], start=data["start"], dtype=np.dtype(data["dtype"]).type)
        case "MultiDiscrete":
            return gym.MultiDiscrete(
                np.array(data["nvec"]), dtype=np.dtype(data["dtype"]).type, start=np.array(data["start"])
            )
        case "MultiBinary":
            return gym.MultiBinary(data["n"])
        case "Dict":
            # As a sequence: gymnasium sorts the keys of a dict, and rows have the order of the recorded space.
            return gym.Dict([(key, space_of(part)) for key, part in data["spaces"].items()])
        case "Tuple":
            return gym.Tuple([space_of(part) for part in data["spaces"]])
    raise ValueError(f"there is no space {data['space']!r}")


def _bound(bound: Any) -> Any:
    """Return one number if all are equal; infinities as text, because JSON has none."""
    numbers = bound.reshape(-1).tolist()
    numbers = numbers[:1] if numbers and numbers.count(numbers[0]) == len(numbers) else numbers
    return [number if np.isfinite(number) else str(number) for number in numbers]


def _bounds(numbers: list[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    values = np.array([float(number) if isinstance(number, str) else number for number in numbers], dtype)
    return np.full(shape, values[0], dtype) if len(values) == 1 else values.reshape(shape)
