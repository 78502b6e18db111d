"""The tensors of a simulator that have a row for each of its environments: to save, restore, and reset single rows.

Simulators such as VMAS keep their state in tensors [B, ...] of many objects, and scenarios add their own. They are
found by walking from the simulator through attributes, lists and dicts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, TypeAlias

import torch

from marlflow.base.arrays import Array

Path: TypeAlias = tuple[str | int, ...]


class RowTensors:
    """The row tensors of `simulator`, which has `num_envs` environments.

    `other` is the same simulator with another number of environments: a tensor is taken only if its rows match the
    number of environments in both, which a constant can do by chance in only one. Both must have been reset and
    stepped, so that all tensors exist.
    """

    def __init__(self, simulator: object, num_envs: int, other: object, other_num_envs: int) -> None:
        self._simulator, self._num_envs = simulator, num_envs
        others = dict(_tensors(other))
        self._paths = [
            path
            for path, tensor in _tensors(simulator)
            if tensor.shape[:1] == (num_envs,)
            and path in others
            and others[path].shape == (other_num_envs, *tensor.shape[1:])
        ]

    def reset(self, rows: Array, reset: Callable[[], object]) -> None:
        """Call `reset`, which resets all environments, and restore the state of the environments not in `rows`."""
        if len(rows) == self._num_envs:
            reset()
            return
        before = [_get(holder, path[-1]) for path, holder in self._holders()]
        # A reset may write in place.
        saved = [tensor.clone() if isinstance(tensor, torch.Tensor) else None for tensor in before]
        reset()
        keeps = torch.ones(self._num_envs, dtype=torch.bool)
        keeps[torch.from_numpy(rows)] = False
        # Attributes that shared a tensor, before and after, still do.
        merged: dict[tuple[int, int], torch.Tensor] = {}
        for (path, holder), old, values in zip(self._holders(), before, saved, strict=True):
            new = _get(holder, path[-1])
            if values is None or (new is old and torch.equal(new, values)):
                continue
            if not isinstance(new, torch.Tensor) or new.shape != values.shape:
                raise RuntimeError(f"a reset changed {_name(path)} from a tensor {list(values.shape)}")
            shared = (id(old), id(new))
            if shared not in merged:
                merged[shared] = torch.where(keeps.view(-1, *[1] * (new.dim() - 1)), values, new)
            _set(holder, path[-1], merged[shared])

    def get(self, rows: Array) -> dict[str, Array]:
        """Return copies of `rows` of each tensor, by name."""
        at, columns = torch.from_numpy(rows), {}
        for path, holder in self._holders():
            tensor = _get(holder, path[-1])
            if isinstance(tensor, torch.Tensor):
                columns[_name(path)] = tensor[at].numpy()
        return columns

    def set(self, rows: Array, columns: Mapping[str, Array]) -> None:
        """Write `rows` of each tensor; raises ValueError if `columns` belong to another simulator."""
        at = torch.from_numpy(rows)
        # Shared tensors are separated: their saved rows are equal anyhow.
        for path, holder in self._holders():
            name = _name(path)
            tensor, column = _get(holder, path[-1]), columns.get(name)
            if column is None and not isinstance(tensor, torch.Tensor):
                continue
            if column is None or not isinstance(tensor, torch.Tensor) or tensor.shape[1:] != column.shape[1:]:
                raise ValueError(f"the saved state has another {name}")
            changed = tensor.clone()
            changed[at] = torch.from_numpy(column)
            _set(holder, path[-1], changed)

    def _holders(self) -> list[tuple[Path, Any]]:
        """Return each path with the object, list or dict that has the tensor now."""
        found: dict[Path, Any] = {(): self._simulator}

        def holder(path: Path) -> Any:
            if path not in found:
                found[path] = _get(holder(path[:-1]), path[-1])
            return found[path]

        return [(path, holder(path[:-1])) for path in self._paths]


def shares_state(simulator: object, num_envs: int, reset: Callable[[int], object], resets: int = 8) -> bool:
    """Return whether shared state of all environments differs after resets: a number, or the object of an attribute.

    `reset(seed)` resets all environments. If it differs, a single environment cannot be reset by resetting all.
    """
    found = []
    for seed in range(resets):
        reset(seed)
        found.append(_shared(simulator, num_envs))
    return any(state != found[0] for state in found)


def _shared(simulator: object, num_envs: int) -> dict[Path, object]:
    shared: dict[Path, object] = {}
    for path, value in _walk(simulator):
        if isinstance(value, torch.Tensor):
            has_rows = value.shape[:1] == (num_envs,)
            shared[path] = tuple(value.shape) if has_rows else value.flatten().tolist()
        elif value is None or isinstance(value, int | float | str):
            shared[path] = value
        elif hasattr(value, "__dict__") and not callable(value):
            shared[path] = id(value)
    return shared


def _name(path: Path) -> str:
    return ".".join(str(key).strip("_") for key in path)


def _tensors(root: object) -> Iterator[tuple[Path, torch.Tensor]]:
    return ((path, value) for path, value in _walk(root) if isinstance(value, torch.Tensor))


def _walk(root: object) -> Iterator[tuple[Path, Any]]:
    """Yield everything that `root` refers to, with the keys that lead to it; each object is visited once."""
    seen: set[int] = set()
    open_values: list[tuple[Path, Any]] = [((), root)]
    while open_values:
        path, value = open_values.pop()
        yield path, value
        if not isinstance(value, torch.Tensor) and id(value) not in seen:
            seen.add(id(value))
            # Reversed, so that the first child is visited first.
            open_values += [((*path, key), child) for key, child in reversed(_children(value))]


def _children(value: Any) -> list[tuple[str | int, Any]]:
    if isinstance(value, list):
        return list(enumerate(value))
    if isinstance(value, dict):
        return [(key, child) for key, child in value.items() if isinstance(key, str | int)]
    if isinstance(value, ModuleType | type) or callable(value) or not hasattr(value, "__dict__"):
        return []
    return list(vars(value).items())


def _get(holder: Any, key: str | int) -> Any:
    if isinstance(holder, list | dict):
        return holder[key]  # type: ignore[index]
    return holder.__dict__.get(key)


def _set(holder: Any, key: str | int, value: torch.Tensor) -> None:
    if isinstance(holder, list | dict):
        holder[key] = value  # type: ignore[index]
    else:
        # Not by setattr, because setters of simulators check, copy, and notify other objects.
        vars(holder)[str(key)] = value
