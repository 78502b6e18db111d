"""QMIX (Rashid et al., 2018, arXiv:1803.11485): Q-learning of a team whose value increases with each agent's.

A mixer network makes the team's value of the agents' values. Hypernetworks give its weights from the global state, and
none is negative, so the team's best joint action is each agent's own best action. It represents more than VDN's sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from marlflow.algorithms.algorithm import Member
from marlflow.algorithms.vdn import VDN
from marlflow.base.errors import Problem
from marlflow.base.ranges import Range, Width
from marlflow.base.spaces import Spaces
from marlflow.policy.mixers import MixerInput, MixerSees, MonotonicMixer
from marlflow.policy.torso import TorsoConfig, normalizes


@dataclass(frozen=True)
class QMIX(VDN):
    """QMIX's settings: VDN's, and the mixer's."""

    name: ClassVar[str] = "qmix"

    mixer_sees: MixerSees = "state"  #: state (of the environment) or observations (of all agents); and who is present
    squash_state: bool = True  #: numbers x that it sees become sign(x) log(1 + |x|), which keeps learning stable
    embed_size: Width = 32  #: units of the mixer's hidden layer
    #: layers of the networks that make the mixer's weights: 1, or 2 with 64 hidden units
    hypernet_layers: Annotated[int, Range(1, 2)] = 2

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        problems = super().validate(spaces, model)
        if self.mixer_sees == "state" and spaces.state is None:
            message = "has a mixer that sees the state (mixer_sees), and the environment has no state() of numbers"
            remedy = "add wrappers=joint_state, which makes one of all agents' observations, or set "
            problems.append(Problem(message, self.name, remedy=f"{remedy}mixer_sees=observations"))
        return problems

    def _mixer(self, members: Mapping[str, Member], generator: torch.Generator) -> tuple[MonotonicMixer, MixerInput]:
        spaces = {name: member.spaces for name, member in members.items()}
        is_normalized = any(normalizes(member.model) for member in members.values())
        seen = MixerInput(spaces, self.mixer_sees, is_normalized, self.squash_state)
        seats = sum(len(member.seats) for member in spaces.values())
        return MonotonicMixer(seats, seen.width, self.embed_size, self.hypernet_layers, generator), seen
