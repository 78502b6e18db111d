"""Which numbers make sense for settings that many algorithms have, by their names."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from marlflow.base.schedules import Schedule

_SHARE, _NOT_NEGATIVE, _POSITIVE = (0.0, 1.0), (0.0, math.inf), (math.ulp(0.0), math.inf)
_RANGES: Mapping[str, tuple[float, float]] = {
    **dict.fromkeys(("discount", "gae_lambda", "trace_lambda", "epsilon", "priority_alpha", "priority_beta"), _SHARE),
    **dict.fromkeys(("tau", "target_entropy_share", "scale_rate"), _SHARE),
    **dict.fromkeys(
        ("learning_rate", "actor_learning_rate", "inner_learning_rate", "entropy_coefficient"), _NOT_NEGATIVE
    ),
    **dict.fromkeys(("value_coefficient", "temperature", "exploration_noise", "target_noise", "beta"), _NOT_NEGATIVE),
    **dict.fromkeys(("clip_range", "value_clip_range", "huber_delta", "max_grad_norm", "rho_max", "c_max"), _POSITIVE),
    **dict.fromkeys(("target_noise_clip", "max_weight"), _POSITIVE),
}
_LATE_AGENT_STEPS = 2**62


def range_problems(algorithm: str, name: str, value: Any) -> Iterator[str]:
    """Why a setting of this name cannot have this value, or a schedule's first or last."""
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    values = (value.at(0), value.at(_LATE_AGENT_STEPS)) if isinstance(value, Schedule) else (value,)
    for number in values:
        if isinstance(number, int | float) and not low <= number <= high:
            wanted = f"from 0 to {high:g}" if math.isfinite(high) else "above 0" if low > 0.0 else "of at least 0"
            yield f"{algorithm} needs {name} {wanted}, not {number:g}"
