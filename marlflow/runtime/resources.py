"""What the processes of a run ask for, held against what there is, before anything starts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marlflow.runtime.spec import Placement, RunSpec

_SMALLEST_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Asked:
    """One process: what it is for, and what it takes."""

    what: str
    placement: Placement


def asked_by(spec: RunSpec) -> list[Asked]:
    """Every process of a run."""
    asked = [Asked(f"rollout worker {number}", spec.rollout_placement) for number in range(spec.num_workers)]
    for name in spec.learning:
        placement = spec.policies[name].placement
        asked.append(Asked(f"learner {name}", placement))
        if spec.policies[name].algorithm.remembers and placement.replay == "own":
            asked.append(Asked(f"replay {name}", Placement(node=placement.node)))
    return asked


def problems(asked: Sequence[Asked], available: Mapping[str, float]) -> list[str]:
    """One sentence for each resource of which more is asked than there is, and one if nothing is left to share."""
    wanted: Counter[str] = Counter()
    by_whom: dict[str, list[str]] = {}
    for one in asked:
        for resource, amount in explicit(one.placement).items():
            wanted[resource] += amount  # type: ignore[assignment]  # fractions are meant
            by_whom.setdefault(resource, []).append(f"{amount:g} for {one.what}")
    found = [
        f"the run asks for {amount:g} {resource} ({', '.join(by_whom[resource])}), but there "
        f"{'is' if available.get(resource, 0.0) == 1 else 'are'} {available.get(resource, 0.0):g}; "
        "lower the reservations, or leave num_cpus unset for an equal share"
        for resource, amount in wanted.items()
        if amount > available.get(resource, 0.0) + 1e-9
    ]
    cpus, sharing = available.get("CPU", 0.0), [one.what for one in asked if one.placement.num_cpus is None]
    left = cpus - wanted["CPU"]
    if sharing and -1e-9 <= left < len(sharing) * _SMALLEST_SHARE - 1e-9:
        found.append(
            f"of {cpus:g} CPU {left:g} are left to share among {', '.join(sharing)}; lower the reservations, or wait "
            "until other runs have ended"
        )
    return found


def explicit(placement: Placement) -> dict[str, float]:
    """What a placement names by itself, by Ray's names of resources."""
    named = {"CPU": placement.num_cpus or 0.0, "GPU": placement.num_gpus, **placement.resources}
    if placement.node is not None:
        named[f"node:{placement.node}"] = 0.001
    return {resource: amount for resource, amount in named.items() if amount > 0}


def bundles(asked: Sequence[Asked], available: Mapping[str, float]) -> list[dict[str, float]]:
    """What each process takes: what it names, and of the CPUs that are left, an equal share if it names none."""
    open_ended = sum(one.placement.num_cpus is None for one in asked)
    named = sum(one.placement.num_cpus or 0.0 for one in asked)
    share = (available.get("CPU", 0.0) - named) / max(1, open_ended)
    share = max(_SMALLEST_SHARE, min(1.0, int(share * 100) / 100))
    return [{**({"CPU": share} if one.placement.num_cpus is None else {}), **explicit(one.placement)} for one in asked]
