"""Read Hydra's own keys of a node with a `_target_`: `_args_`, `_partial_`, `_recursive_` and `_convert_`.

Source: hydra.utils.instantiate (https://hydra.cc/docs/1.3/advanced/instantiate_objects/overview/).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

TARGET: Final = "_target_"
ARGS: Final = "_args_"
PARTIAL: Final = "_partial_"
RECURSIVE: Final = "_recursive_"
CONVERT: Final = "_convert_"
ENV_KEYS: Final = ("num_envs", "wrappers", "step_timeout_s", "batched")
"""The keys of the node `env` that are not arguments of its factory."""
KEYWORDS: Final = "_kwargs_"
"""Arguments of its factory that have the name of a key of marlflow, such as `num_envs`."""


@dataclass(frozen=True, slots=True)
class TargetNode:
    """Hold what a node calls: `target` with `positional` arguments and named `settings`; later if `is_partial`."""

    target: Any
    positional: Sequence[Any]
    settings: Mapping[str, Any]
    is_partial: bool


def target_node(values: Mapping[str, Any], path: str, problems: list[str]) -> TargetNode:
    """Split the mapping at `path`; append a problem for each key of Hydra that has another meaning there or none."""
    positional, is_partial = values.get(ARGS, ()), values.get(PARTIAL, False)
    if not isinstance(positional, list | tuple):
        problems.append(f"{path}.{ARGS} must be a list of positional arguments, not {positional!r}")
        positional = ()
    if not isinstance(is_partial, bool):
        problems.append(f"{path}.{PARTIAL} must be true or false, not {is_partial!r}")
        is_partial = False
    if values.get(RECURSIVE, True) is not True:
        problems.append(
            f"{path}.{RECURSIVE} must be true: a {TARGET} inside another is always made first; leave the key out, or "
            f"set {PARTIAL}: true inside to have it called later"
        )
    if values.get(CONVERT, "all") != "all":
        problems.append(f"{path}.{CONVERT} must be all: values are plain lists and mappings; leave the key out")
    settings = {key: value for key, value in values.items() if key not in _KEYS}
    return TargetNode(values[TARGET], positional, settings, is_partial)


_KEYS: Final = (TARGET, ARGS, PARTIAL, RECURSIVE, CONVERT)


def without_positional(node: TargetNode, path: str, instead: str, problems: list[str]) -> Mapping[str, Any]:
    """Return the settings of a node whose function marlflow calls with arguments of its own first."""
    if node.positional:
        problems.append(f"{path}.{ARGS}: {instead}, so name the others by keys of their own")
    return node.settings
