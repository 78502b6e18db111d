"""An experiment that passed all checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gymnasium import spaces as gym

from marlflow.algorithms.algorithm import critic_sees
from marlflow.config.environment import NOT_REPRODUCIBLE
from marlflow.config.experiment import Experiment
from marlflow.config.opponents import Pairings
from marlflow.config.settings import remarks
from marlflow.matchmaking.matchmakers import AllowedSeats
from marlflow.policy.recurrent import RecurrentTorsoConfig
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
        found = [*remarks(self.experiment), *self._critic_remarks()]
        return found if self.reproducible else [*found, NOT_REPRODUCIBLE]

    @property
    def seats(self) -> AllowedSeats:
        """Return the seats that a matchmaker may assign."""
        return AllowedSeats(self.agents, self.players)

    def _critic_remarks(self) -> Iterator[str]:
        """Yield a note on recurrent policies whose critic has no memory, though its state is no Markov state."""
        made_by = {
            getattr(getattr(wrapper, "make", wrapper), "__name__", "") for wrapper in self.experiment.env.wrappers
        }
        if "joint_state" not in made_by:
            return
        for name, policy in self.spec.policies.items():
            if isinstance(policy.model, RecurrentTorsoConfig) and "state" in critic_sees(policy.algorithm):
                yield (
                    f"policy {name!r}: its critic has no memory, and the state of wrappers=joint_state is only what "
                    "agents observe now; if that does not determine the future, keep obs in critic_sees and stack "
                    "frames"
                )
