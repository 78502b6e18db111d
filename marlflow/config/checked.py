"""An experiment that passed all checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gymnasium import spaces as gym

from marlflow.config.critics import critic_remarks
from marlflow.config.environment import NOT_REPRODUCIBLE
from marlflow.config.experiment import Experiment
from marlflow.config.opponents import Pairings
from marlflow.config.settings import remarks
from marlflow.matchmaking.matchmakers import AllowedSeats
from marlflow.runtime.spec import RunSpec


@dataclass(frozen=True)
class CheckedExperiment:
    """An experiment that passed all checks, with its RunSpec.

    `players` lists the agents that each policy plays, or may play by a matchmaker. `pairings` are for evaluation.
    `reproducible` is whether a seed determines its episode, as the environment's metadata says.
    """

    experiment: Experiment
    spec: RunSpec
    agents: tuple[str, ...]
    players: Mapping[str, Sequence[str]]
    state_space: gym.Box | None = None
    """Space of the environment's global state, if a policy needs it."""
    pairings: Pairings = field(default_factory=Pairings)
    reproducible: bool = True

    @property
    def remarks(self) -> Sequence[str]:
        """Return notes on settings that are allowed but unusual."""
        found = [*remarks(self.experiment), *critic_remarks(self.experiment.env, self.spec.policies)]
        return found if self.reproducible else [*found, NOT_REPRODUCIBLE]

    @property
    def seats(self) -> AllowedSeats:
        """Return the seats that a matchmaker may assign."""
        return AllowedSeats(self.agents, self.players)
