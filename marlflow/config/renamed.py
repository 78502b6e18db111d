"""Report the new names of renamed configuration keys and algorithm hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from marlflow.base.near import absent
from marlflow.base.problems import Problem

KEYS: Final = {
    "copies": "num_envs",
    "grace_s": "grace_period_s",
    "grey": "gray",
    "normalise_observations": "normalize_observations",
    "normalise_returns": "normalize_values",
    "optimiser": "optimizer",
    "waiting_fragments": "queue_fragments",
}
_HOOKS: Final = {
    "from_0": "non_negative_fields",
    "only_for_actors": "actor_only_settings",
    "problems": "validate()",
    "sees_all_rows": "learner_sees_every_row",
}


def unknown_key(path: str, key: str, known: Collection[str], owner: str) -> str:
    """Return the error for an unknown key at `path`, with the new name if `key` was renamed.

    >>> unknown_key("env.copies", "copies", ["num_envs", "wrappers"], "env")
    'there is no env.copies; it has become env.num_envs'
    """
    if (new := KEYS.get(key)) in known:
        return f"there is no {path}; it has become {path.removesuffix(key)}{new}"
    return absent(path, key, known, owner)


def renamed_hooks(algorithm: object) -> Iterator[Problem]:
    """Yield a problem for each hook under an old name, which nothing would call."""
    for cls in type(algorithm).__mro__:
        for old, new in _HOOKS.items():
            if old in vars(cls):
                yield Problem(f"has {cls.__name__}.{old}, which nothing calls", remedy=f"it has become {new}")
