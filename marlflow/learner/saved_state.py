"""Checks of a learner's saved state against the learner that loads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from marlflow.base.errors import CheckpointUnusable
from marlflow.base.serialization import Tree

PUBLISHED_SIZES: Final = "published_sizes"
"""The key of a state with the number of published parameters of each policy, int64, if there are several."""


def check_state(learner: str, state: Tree, arrays: Mapping[str, Tensor], counts: Sequence[str]) -> None:
    """Raise CheckpointUnusable unless `state` has exactly these counts and arrays, by shape and dtype."""
    if not isinstance(state, Mapping):
        raise CheckpointUnusable([f"learner {learner!r}: expected a dict of its parts, got {_described(state)}"])
    problems = [_mismatch(name, like, state.get(name)) for name, like in arrays.items()]
    problems += [
        f"{name}: expected a count, got {_described(state.get(name))}"
        for name in counts
        if not _is_count(state.get(name))
    ]
    problems += [f"{name}: expected nothing of this name" for name in state if name not in {*arrays, *counts}]
    # Only an array of the right shape can be tried as a generator's state.
    problems += [] if any(problems) else [_generator_problem(state["generator"])]
    sentences = [f"learner {learner!r}: {problem}" for problem in problems if problem]
    if sentences:
        raise CheckpointUnusable(
            [*sentences[:-1], f"{sentences[-1]}; was it kept with another algorithm, model or environment?"]
        )


def as_mapping(state: Tree) -> Mapping[str, Any]:
    """Return the state, or an empty mapping if it is not a mapping."""
    return state if isinstance(state, Mapping) else {}


def with_published(state: Tree, count: int) -> Tree:
    """Return `state` with its published parameters cut, or extended from the learner's own, to `count`.

    The sizes of each policy's parameters, which are for readers of a checkpoint, are removed.
    """
    # The count changes if a run resumes with stages in other processes, which need more than the actors.
    # A malformed state is returned unchanged, because `check_state` reports it.
    try:
        published = state["published"]
        state = {name: value for name, value in state.items() if name != PUBLISHED_SIZES}
        return {**state, "published": np.concatenate([published, state["vector"][len(published) :]])[:count]}
    except (AttributeError, TypeError, KeyError, ValueError, IndexError):
        return state


def _mismatch(name: str, like: Tensor, value: Any) -> str:
    expected = f"{like.numpy(force=True).dtype} {list(like.shape)}"
    actual = f"{value.dtype} {list(value.shape)}" if isinstance(value, np.ndarray) else _described(value)
    return "" if actual == expected else f"{name}: expected {expected}, got {actual}"


def _is_count(value: Any) -> bool:
    # Not isinstance, which is true of a bool.
    return type(value) is int and value >= 0


def _generator_problem(generator: np.ndarray[Any, np.dtype[np.uint8]]) -> str:
    try:
        torch.Generator().set_state(torch.from_numpy(generator.copy()))
    except RuntimeError as error:
        return f"generator: expected the state of a random generator, got something else ({error})"
    return ""


def _described(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r:.40}"
