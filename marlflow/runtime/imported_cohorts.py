"""Imported policies with one network, which act in one call, as snapshots do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from marlflow.algorithms.imported import Imported

if TYPE_CHECKING:
    from marlflow.runtime.spec import PolicySpec


def alike(policies: Iterable[PolicySpec]) -> list[Mapping[str, Mapping[str, float]]]:
    """Return the imported ones among `policies` by network: the scheduled values of each by name.

    Networks are the same if the configurations of algorithm and model are equal, and the spaces.
    """
    found: list[tuple[Any, dict[str, Mapping[str, float]]]] = []
    for policy in policies:
        if not isinstance(policy.algorithm, Imported):
            continue
        scheduled = policy.algorithm.scheduled
        network = policy.algorithm.algorithm, policy.model, policy.spaces, sorted(scheduled)
        for known, members in found:
            if known == network:
                members[policy.name] = scheduled
                break
        else:
            found.append((network, {policy.name: scheduled}))
    return [members for _, members in found]
