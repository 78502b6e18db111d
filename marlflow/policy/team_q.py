"""The network of a team of Q-learners: an actor for each policy, and a mixer of their values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn

from marlflow.policy.mixers import MixerInput
from marlflow.policy.normalized import RewardUnit, normalize_by
from marlflow.policy.q import QActor
from marlflow.policy.recurrent_actors import RecurrentNetworkActor, unrolled_after

Prefix: TypeAlias = Literal["", "next_"]
"""Of the columns of JointTransitions: of the decisions themselves, or of what follows them."""


class TeamQNetwork(nn.Module):
    """Publishes `actors`, by policy. All agents of a policy share its actor.

    `mixer` maps the agents' values [N, K], presence [N, K] and the rows of `mixer_input` (None: it sees nothing) to the
    team's value [N]. Agents are in the order of `actors`, and those of a policy in the order of its seats.
    `normalize_rewards`: values are those of rewards divided by `reward_unit`, their running root mean square.
    """

    def __init__(
        self,
        actors: Mapping[str, nn.Module],
        mixer: nn.Module,
        mixer_input: MixerInput | None,
        normalize_rewards: bool = False,
    ) -> None:
        super().__init__()
        self.actors = nn.ModuleDict(actors)
        self.mixer = mixer
        self.mixer_input = mixer_input
        self._rewards = RewardUnit() if normalize_rewards else None
        self.policies = tuple(actors)
        for policy, actor in actors.items():
            normalize_by(actor, f"{policy}:obs", f"{policy}:present")

    @property
    def reward_unit(self) -> Tensor | float:
        """The reward that counts as 1."""
        return 1.0 if self._rewards is None else self._rewards.unit

    def values(self, columns: Mapping[str, Tensor], prefix: Prefix = "") -> list[Tensor]:
        """Return each policy's action values, [N, K_p, A_p] each, of a minibatch of JointTransitions."""
        values = []
        for policy, actor in self.actors.items():
            obs = columns[f"{policy}:{prefix}obs"]
            q: Tensor = actor(obs.flatten(0, 1))
            values.append(q.float().unflatten(0, obs.shape[:2]))
        return values

    def present(self, columns: Mapping[str, Tensor], prefix: Prefix = "") -> Tensor:
        """Return which agents decide, float [N, K]."""
        return torch.cat([columns[f"{policy}:{prefix}present"] for policy in self.policies], 1).float()

    def mixed(self, q: Tensor, present: Tensor, columns: Mapping[str, Tensor], prefix: Prefix = "") -> Tensor:
        """Return the team's value [N] of one value for each agent, [N, K]."""
        seen = None if self.mixer_input is None else self.mixer_input(columns, present, prefix)
        mixed: Tensor = self.mixer(q, present, seen)
        return mixed.float()


class RecurrentTeamQNetwork(TeamQNetwork):
    """A TeamQNetwork whose actors have memory, for JointSequenceTransitions."""

    def unrolled(self, columns: Mapping[str, Tensor], burn_in: int) -> list[Tensor]:
        """Return each policy's action values, [S, L + 1, K_p, A_p] each, of the steps after the burn-in."""
        values = []
        for policy, actor in self.actors.items():
            recurrent = cast("RecurrentNetworkActor[QActor]", actor)
            # Each seat is a sequence of its own: [S * K_p, B + L + 1, ...].
            seats = columns[f"{policy}:obs"].shape[2]
            obs, valid = (columns[f"{policy}:{name}"].transpose(1, 2).flatten(0, 1) for name in ("obs", "valid"))
            q = unrolled_after(burn_in, recurrent, obs, columns[f"{policy}:memory"].flatten(0, 1), valid)
            values.append(q.float().unflatten(0, (-1, seats)).transpose(1, 2))
        return values

    def present_after(self, columns: Mapping[str, Tensor], burn_in: int) -> Tensor:
        """Return which agents decide, or count at the last step, float [S, L + 1, K]."""
        valid = [columns[f"{policy}:valid"][:, burn_in:] for policy in self.policies]
        return torch.cat(valid, 2).float()

    def mixed_steps(self, q: Tensor, present: Tensor, columns: Mapping[str, Tensor], first: int) -> Tensor:
        """Return the team's value [S, L] of one value for each agent, [S, L, K], at the steps from `first` on."""
        seen = ["state", *(f"{policy}:obs" for policy in self.policies)]
        steps = slice(first, first + q.shape[1])
        rows = {name: columns[name][:, steps].flatten(0, 1) for name in seen if name in columns}
        return self.mixed(q.flatten(0, 1), present.flatten(0, 1), rows).view(q.shape[:2])
