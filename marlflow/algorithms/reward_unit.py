"""Rewards in the learner's own unit, so that a team learns the same whatever unit its environment has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.part import Part
from marlflow.algorithms.vdn import VDN
from marlflow.base.errors import Problem
from marlflow.policy.normalized import RewardMoments


@dataclass(frozen=True)
class RewardUnit(Part):
    """Divides the rewards that VDN and QMIX learn from, sums of `n_step`, by their running root mean square."""

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterator[Problem]:
        if not isinstance(algorithm, VDN):
            reason, remedy = "its loss has no unit of rewards", "use vdn or qmix, or leave the part out"
            yield Problem("cannot have a RewardUnit", algorithm.name, reason, remedy)

    def extend(self, network: Any, algorithm: TorchAlgorithm, members: Mapping[str, Member], seed: int) -> None:
        network.rewards = RewardMoments()
