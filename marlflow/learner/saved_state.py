"""Checks of a learner's saved state: the expected shape of each entry, and what came instead."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree


def check_state(learner: str, state: Tree, arrays: Mapping[str, Tensor], counts: Sequence[str]) -> None:
    """Raises CheckpointUnusable unless `state` has exactly arrays like these, by name, and these counts from 0 up."""
    if not isinstance(state, Mapping):
        raise CheckpointUnusable([f"learner {learner!r}: expected a dict of its parts, got {_shown(state)}"])
    problems = [_unlike(name, like, state.get(name)) for name, like in arrays.items()]
    problems += [
        f"{name}: expected a count, got {_shown(state.get(name))}" for name in counts if not _counts(state, name)
    ]
    problems += [f"{name}: expected nothing of this name" for name in state if name not in {*arrays, *counts}]
    problems += [] if any(problems) else [_unusable(state["generator"])]
    found = [f"learner {learner!r}: {problem}" for problem in problems if problem]
    if found:
        raise CheckpointUnusable(
            [*found[:-1], f"{found[-1]}; was it kept with another algorithm, model or environment?"]
        )


def as_mapping(state: Tree) -> Mapping[str, Any]:
    """The state; an empty mapping if it is no mapping."""
    return state if isinstance(state, Mapping) else {}


def publishing(state: Tree, count: int) -> Tree:
    """`state` with `count` parameters published: a learner whose stages run elsewhere publishes all of them.

    Parameters that were not published are taken from the learner's own; what is no state is returned as it is.
    """
    try:
        published = state["published"]
        return {**state, "published": np.concatenate([published, state["vector"][len(published) :]])[:count]}
    except (TypeError, KeyError, ValueError, IndexError):
        return state


def _unlike(name: str, like: Tensor, value: Any) -> str:
    expected = f"{like.numpy(force=True).dtype} {list(like.shape)}"
    came = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else _shown(value)
    return "" if came == expected else f"{name}: expected {expected}, got {came}"


def _counts(state: Mapping[str, Any], name: str) -> bool:
    return type(state.get(name)) is int and state[name] >= 0


def _unusable(generator: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    try:
        torch.Generator().set_state(torch.from_numpy(generator.copy()))
    except RuntimeError as error:
        return f"generator: expected the state of a random generator, got something else ({error})"
    return ""


def _shown(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.40}"
