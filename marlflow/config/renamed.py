"""Answer unknown settings: with the new name, the name here of another library's, or the nearest one.

Apart from `other_names`: it imports the algorithms, which completion of a command line does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from marlflow.algorithms.algorithm import TorchAlgorithm
from marlflow.algorithms.cost_limit import CostLimit
from marlflow.algorithms.part import Part
from marlflow.algorithms.pop_art import PopArt
from marlflow.algorithms.reward_unit import RewardUnit
from marlflow.algorithms.shipped import SHIPPED
from marlflow.base.errors import Problem
from marlflow.base.sentences import misspelled_key, nearest
from marlflow.config.other_names import BECAME_PARTS, FOREIGN_NAMES, own_key
from marlflow.config.target_nodes import TARGET

KEYS: Final = {
    "copies": "num_envs",
    "grace_s": "grace_period_s",
    "grey": "gray",
    "normalise_observations": "normalize_observations",
    "optimiser": "optimizer",
    "waiting_fragments": "queue_fragments",
}
_RANGE: Final = "Annotated[int, Range(0, <at most>)] on each of its fields"
_LIMIT: Final = ("a limit on costs", CostLimit(0.0))
_POP_ART: Final = ("normalization of values", PopArt())
_NOT_OF_ALL: Final = {
    "cost_limit": _LIMIT,
    "initial_multiplier": _LIMIT,
    "multiplier_learning_rate": _LIMIT,
    "normalise_returns": _POP_ART,
    "normalize_rewards": ("normalization of rewards", RewardUnit()),
    "normalize_values": _POP_ART,
}
"""What has become a part that some algorithms cannot have, and the part."""
_HOOKS: Final = {
    "from_0": _RANGE,
    "non_negative_fields": _RANGE,
    "only_for_actors": "actor_only_settings",
    "problems": "validate()",
    "sees_all_rows": "learner_sees_every_row",
}


def unknown_key(path: str, key: str, known: Collection[str], owner: str) -> str:
    """Return the error for an unknown key at `path`, with the new name if `key` was renamed, or is another library's.

    >>> unknown_key("env.copies", "copies", ["num_envs", "wrappers"], "env")
    'there is no env.copies; it has become env.num_envs'
    """
    if (new := KEYS.get(key)) in known:
        return f"there is no {path}; it has become {path.removesuffix(key)}{new}"
    subject, part = _NOT_OF_ALL.get(key, ("", Part()))
    if unfit := _without(part, owner):
        return f"there is no {path}; {subject} has become a part, and {unfit}"
    if key in BECAME_PARTS and "parts" in known:
        return f"there is no {path}; it has become {BECAME_PARTS[key].format(parts=f'{path.removesuffix(key)}parts')}"
    if key in ("extra_losses", "parts"):
        return f"there is no {path}: {owner} does not learn, so nothing can be added to it"
    if own := own_key(path, key, known):
        return f"there is no {path}; here it is {own}{FOREIGN_NAMES[key].note}"
    if path == f"{path.rpartition('.algorithm.')[0]}.algorithm.{key}" and nearest(key, known) is None:
        names = FOREIGN_NAMES[key].candidates(known) if key in FOREIGN_NAMES else (key,)
        settings = {algorithm.name: vars(algorithm) for algorithm in SHIPPED}
        for name in names:
            if having := [algorithm for algorithm, taken in settings.items() if name in taken]:
                is_called = "" if name == key else f", which is {name} here"
                return f"there is no {path}: {owner} has none{is_called}; {', '.join(having)} have it"
    return misspelled_key(path, key, known, owner)


def _without(part: Part, owner: str) -> Problem | None:
    """Return why a shipped class of an algorithm cannot have a part."""
    shipped = next((one for one in SHIPPED if type(one).__name__ == owner and isinstance(one, TorchAlgorithm)), None)
    return next(iter(part.validate(shipped, None, None)), None) if shipped else None


def with_parts(policy: Any) -> Any:
    """Return a recorded policy, as plain data, with parts in place of the settings that they have replaced."""
    algorithm = policy.get("algorithm") if isinstance(policy, Mapping) else None
    # A class of the user's own may have a setting of this name.
    if not isinstance(algorithm, Mapping) or not str(algorithm.get(TARGET)).startswith("marlflow."):
        return policy
    if not algorithm.keys() & BECAME_PARTS.keys():
        return policy
    parts: dict[str, Any] = {}
    if (normalizes := algorithm.get("normalize_values", algorithm.get("normalise_returns"))) is not None:
        parts["values"] = {TARGET: "marlflow.PopArt"} if normalizes else None
    if algorithm.get("normalize_rewards"):
        parts["rewards"] = {TARGET: "marlflow.RewardUnit"}
    if (beta := algorithm.get("kl_to_reference")) is not None:
        parts["reference"] = {TARGET: "marlflow.KLToReference", "beta": beta}
    if (limit := algorithm.get("cost_limit")) is not None:
        others = {key: algorithm[key] for key in ("multiplier_learning_rate", "initial_multiplier") if key in algorithm}
        parts["cost"] = {TARGET: "marlflow.CostLimit", "limit": limit, **others}
    kept = {key: value for key, value in algorithm.items() if key not in BECAME_PARTS}
    return {**policy, "algorithm": {**kept, "parts": {**parts, **(algorithm.get("parts") or {})}}}


def renamed_hooks(algorithm: object) -> Iterator[Problem]:
    """Yield a problem for each hook under an old name, which nothing would call."""
    for cls in type(algorithm).__mro__:
        for old, new in _HOOKS.items():
            if old in vars(cls):
                yield Problem(f"has {cls.__name__}.{old}, which nothing calls", remedy=f"it has become {new}")
