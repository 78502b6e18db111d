"""Spaces as plain data; reading them executes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces as gym

from marlflow.base.spaces import Spaces


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
            return gym.Dict({key: space_of(part) for key, part in data["spaces"].items()})
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
