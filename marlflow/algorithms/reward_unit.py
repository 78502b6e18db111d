"""Rewards in the learner's own unit, so that the same is learned whatever unit the environment has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from marlflow.algorithms.algorithm import Member, TorchAlgorithm
from marlflow.algorithms.apex import ApeX
from marlflow.algorithms.dqn import DQN
from marlflow.algorithms.part import Part
from marlflow.algorithms.vdn import VDN
from marlflow.base.errors import Problem
from marlflow.policy.normalized import RewardMoments


@dataclass(frozen=True)
class RewardUnit(Part):
    """Divides the rewards that DQN, VDN and QMIX learn from, sums of `n_step`, by their running root mean square.

    Rare rewards are then far above 1, DQN's `huber_delta`, and values come out too low; take an infinite one.
    """

    def validate(self, algorithm: TorchAlgorithm, spaces: Any, model: Any) -> Iterator[Problem]:
        # Ape-X's workers compare rewards as they are with values.
        is_dqn = isinstance(algorithm, DQN) and algorithm.atoms == 1 and not isinstance(algorithm, ApeX)
        if not (is_dqn or isinstance(algorithm, VDN)):
            remedy = "use vdn, qmix, or dqn with one atom, or leave the part out"
            reason = "its loss has no unit of rewards"
            yield Problem("cannot have a RewardUnit", algorithm.name, reason, remedy)

    def extend(self, network: Any, algorithm: TorchAlgorithm, members: Mapping[str, Member], seed: int) -> None:
        network.rewards = RewardMoments()
