"""A trained policy of another run, which no longer learns."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from marlflow.algorithms.algorithm import Algorithm, critic_sees
from marlflow.algorithms.scripted import ActsOnly
from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError, Problem
from marlflow.base.spaces import Spaces
from marlflow.batches.critic_input import OWN_OBSERVATION
from marlflow.policy.actor import Actor, AskedMode, WeightedActor
from marlflow.policy.torso import TorsoConfig


@dataclass(frozen=True)
class SavedPolicy:
    """A policy apart from its run: its published parameters `flat`, float32 [P], and what they are, as plain data.

    `description` is JSON: `member`, `policy`, `algorithm`, `config` (the algorithm and model as configured),
    `observation_space`, `action_space`, `version`, `agent_steps`, `scheduled`, `stages`, `acts`, and more that is only
    shown. `source` names it in messages, such as `main@12 of runs/c4/a`. `network` has all parameters of its learner,
    float32 [Q], if that trains this policy alone and they were saved.
    """

    flat: Array = field(compare=False, repr=False)
    description: Mapping[str, Any]
    source: str
    network: Array | None = field(default=None, compare=False, repr=False)

    @cached_property
    def sha256(self) -> str:
        """The SHA-256 of the parameters, as little-endian float32."""
        return hashlib.sha256(self.flat.astype("<f4").tobytes()).hexdigest()

    @property
    def acts(self) -> AskedMode:
        """How the league of its run had it act in evaluation games."""
        acts: Any = self.description.get("acts")
        return acts if acts in {"greedy", "sampled"} else "as_learned"

    @property
    def spaces(self) -> tuple[str, str]:
        """Its observation and action space, as text."""
        return self.description["observation_space"], self.description["action_space"]


@dataclass(frozen=True)
class Imported(ActsOnly):
    """Acts as the policy `saved`, whose network is that of `algorithm`; learns nothing."""

    name: ClassVar[str] = "frozen"

    saved: SavedPolicy
    algorithm: Algorithm

    def validate(self, spaces: Spaces, model: TorsoConfig) -> list[Problem]:
        acting: Any = self.algorithm
        if critic_sees(acting) != OWN_OBSERVATION:
            # Its critic is not used, and need not see anything here.
            acting = replace(acting, critic_sees=OWN_OBSERVATION)
        found = acting.validate(spaces, model)
        return [Problem(one, self.saved.source) if isinstance(one, str) else one for one in found]

    def actor(self, spaces: Spaces, model: TorsoConfig, seed: int) -> Actor:
        """Make an actor with the saved parameters; raises WeightsMismatch if they are of another network."""
        actor = self.algorithm.actor(spaces, model, seed)
        if not isinstance(actor, WeightedActor):
            raise MarlflowError(f"{self.saved.source} cannot act: {self.algorithm.name} has no parameters")
        flat = np.asarray(self.saved.flat, np.float32)
        # Where stages ran apart from the learner, the published parameters end with the critic's.
        actor.load_flat(flat[: len(actor.flat())] if self._ends_with_critic else flat)
        actor.set_schedule(self.scheduled)
        return actor

    @property
    def scheduled(self) -> dict[str, float]:
        """The scheduled values by which it acts."""
        agent_steps = int(self.saved.description["agent_steps"])
        return {**self.algorithm.schedules(agent_steps), **self.saved.description["scheduled"]}

    @property
    def _ends_with_critic(self) -> bool:
        stages = {**self.algorithm.stages, **self.saved.description.get("stages", {})}
        return any(where != "learner" for where in stages.values())
