"""Critics of several agents' observations and actions, and the rows that they see.

Centralized training with decentralized execution (Lowe et al., 2017, arXiv:1706.02275): a critic values one agent's
return, given what all agents see and do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeAlias, cast

import torch
from gymnasium import spaces as gym
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.errors import ConfigInvalid
from marlflow.base.spaces import Spaces
from marlflow.policy.box import BoxCoordinates
from marlflow.policy.critics import Ensemble
from marlflow.policy.dense import as_rows
from marlflow.policy.normalized import NormalizedRows, normalize_by
from marlflow.policy.policy_modules import Prefix
from marlflow.policy.torso import MLP, LeafReader, TorsoConfig

JointCriticSees: TypeAlias = Literal["state", "observations"]
"""The environment's global state, or the observations of all agents of the learner."""


class JointCritics(Ensemble):
    """An ensemble of `count` critics, with `outputs` values each for a row of `inputs` numbers."""

    def __init__(self, inputs: int, outputs: int, model: TorsoConfig, count: int, generator: torch.Generator) -> None:
        if isinstance(model, MLP):
            # JointView normalizes observations, and nothing else: actions are in [-1, 1] already.
            model = replace(model, normalize_observations=False)
        super().__init__((model.build((inputs,), generator) for _ in range(count)), outputs, generator)


class ActionNumbers(nn.Module):
    """Converts stored actions to the numbers that critics see: [-1, 1] for a Box, one-hot for Discrete."""

    def __init__(self, space: gym.Space[object]) -> None:
        super().__init__()
        self.box = BoxCoordinates(space) if isinstance(space, gym.Box) else None
        self.size = int(space.n) if isinstance(space, gym.Discrete) else cast(BoxCoordinates, self.box).size

    def forward(self, action: Tensor) -> Tensor:
        """Return numbers [N, A] of `action` [N, ...]."""
        return functional.one_hot(action, self.size).float() if self.box is None else self.box.within(action)


class JointView(nn.Module):
    """Builds the rows that the critics of a learner see, from columns of JointTransitions.

    A row of a critic of policy `p`, one for each of its seats: the parts `sees`, all agents' actions, which agents are
    present, and the seat, one-hot. Numbers that never vary are left out: the presence of the only agent, and the seat
    of the only agent of a policy. Critics of the policies `values_all` value each action of an agent, so its own action
    is zero or left out. Absent agents are zeros throughout. Observations of the policies `normalized` are normalized.
    """

    def __init__(
        self,
        spaces: Mapping[str, Spaces],
        sees: Sequence[JointCriticSees],
        values_all: Collection[str] = (),
        normalized: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.policies = tuple(spaces)
        self.seats = {policy: len(own.seats) for policy, own in spaces.items()}
        self.agents = sum(self.seats.values())
        self.sees = tuple(sees)
        self._values_all = frozenset(values_all)
        self._numbers = nn.ModuleList(ActionNumbers(own.action) for own in spaces.values())
        self._readers = {policy: _readers(own) for policy, own in spaces.items()}
        state = next(iter(spaces.values())).state
        if "state" in self.sees and state is None:
            raise ConfigInvalid(["critics see the state (critic_sees), which these spaces do not have"])
        self._observed = 0 if "state" not in self.sees or state is None else int(torch.Size(state.shape).numel())
        self._normalized: dict[str, NormalizedRows] = {}
        for policy, own in spaces.items() if "observations" in self.sees else ():
            size = sum(leaf.size for leaf in own.layout().leaves)
            self._observed += self.seats[policy] * size
            if policy in normalized:
                rows = self._normalized[policy] = NormalizedRows(size)
                normalize_by(rows, f"{policy}:obs", f"{policy}:present")
        # Registered, so that their statistics are saved and copied into the target network.
        self.normalizers = nn.ModuleList(self._normalized.values())

    def action_size(self, policy: str) -> int:
        """Return how many numbers an action of `policy` is."""
        return int(self._numbers_of(policy).size)

    def width(self, policy: str) -> int:
        """Return the width of the rows of the critics of `policy`."""
        actions = sum(self.seats[other] * self.action_size(other) for other in self._with_actions(policy))
        return self._observed + actions + self._varying(self.agents) + self._varying(self.seats[policy])

    def taken(self, columns: Mapping[str, Tensor], policy: str) -> Tensor:
        """Return the stored actions of a policy, [B, K_p, A]; zero where absent."""
        action, present = columns[f"{policy}:action"], columns[f"{policy}:present"]
        numbers: Tensor = self._numbers_of(policy)(action.flatten(0, 1))
        return only_present(numbers.unflatten(0, action.shape[:2]), present)

    def actions(self, policy: str, actions_of: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Return the actions that the critics of `policy` see, for `rows`, from each policy's, [B, K, A]."""
        seen = {other: actions_of(other) for other in self._with_actions(policy)}
        if policy in self._values_all and policy in seen:
            seen[policy] = replaced_own(seen[policy], torch.zeros_like(seen[policy]))
        return seen

    def rows(
        self, policy: str, columns: Mapping[str, Tensor], actions: Mapping[str, Tensor], prefix: Prefix = ""
    ) -> Tensor:
        """Return the rows of the critics of `policy`, [B * K_p, width], of a minibatch.

        `actions` are each policy's numbers [B, K, A], zero where absent; of `policy` itself [B, K_p, K, A] where they
        depend on the seat of the row.
        """
        batch, seats = columns[f"{policy}:present"].shape
        parts = [part.unsqueeze(1) for part in self._observed_numbers(columns, prefix)]
        for other in self._with_actions(policy):
            numbers = actions[other]
            parts.append((numbers if numbers.dim() == 4 else numbers.unsqueeze(1)).flatten(2))
        if self._varying(self.agents):
            present = [columns[f"{other}:{prefix}present"] for other in self.policies]
            parts.append(torch.cat(present, 1).float().unsqueeze(1))
        if self._varying(seats):
            parts.append(torch.eye(seats, device=parts[0].device).unsqueeze(0))
        return torch.cat([part.expand(batch, seats, -1) for part in parts], -1).flatten(0, 1)

    def _observed_numbers(self, columns: Mapping[str, Tensor], prefix: Prefix) -> list[Tensor]:
        # Each is [B, D].
        parts = [as_rows(columns[f"{prefix}state"])] if "state" in self.sees else []
        if "observations" not in self.sees:
            return parts
        for policy in self.policies:
            obs, present = columns[f"{policy}:{prefix}obs"].flatten(0, 1), columns[f"{policy}:{prefix}present"]
            numbers = as_rows(obs)
            if readers := self._readers[policy]:
                numbers = torch.cat([as_rows(read(obs)) for read in readers], 1)
            if policy in self._normalized:
                numbers = self._normalized[policy](numbers)
            parts.append(only_present(numbers.unflatten(0, present.shape), present).flatten(1))
        return parts

    def _numbers_of(self, policy: str) -> ActionNumbers:
        return cast(ActionNumbers, self._numbers[self.policies.index(policy)])

    def _with_actions(self, policy: str) -> list[str]:
        # The critics of the only agent of a policy, which value all its actions, see none of this policy.
        without = policy in self._values_all and self.seats[policy] == 1
        return [other for other in self.policies if not (without and other == policy)]

    @staticmethod
    def _varying(width: int) -> int:
        return width if width > 1 else 0


def only_present(numbers: Tensor, present: Tensor) -> Tensor:
    """Return `numbers` [B, K, A] with zeros where agents are absent (`present`, bool [B, K])."""
    return numbers.masked_fill(~present.unsqueeze(-1), 0.0)


def replaced_own(others: Tensor, own: Tensor) -> Tensor:
    """Return [B, K, K, A]: for the row of each seat (dimension 1), `own` at that seat and `others` at the rest.

    Both are [B, K, A].
    """
    seats = others.shape[1]
    is_own = torch.eye(seats, dtype=torch.bool, device=others.device).unsqueeze(-1)
    return torch.where(is_own, own.unsqueeze(1), others.unsqueeze(1))


def _readers(spaces: Spaces) -> list[LeafReader]:
    # Rows of other layouts than packed ones are numbers already.
    layout = spaces.layout()
    return [LeafReader(layout, leaf) for leaf in layout.leaves] if layout.form == "packed" else []
