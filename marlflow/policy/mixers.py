"""Mixers, which combine agents' values into one value of the team (VDN, QMIX), and their inputs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal, TypeAlias, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from marlflow.base.observations import BRIGHTEST, ObservationLayout, layout
from marlflow.base.spaces import Spaces
from marlflow.policy.dense import as_rows
from marlflow.policy.normalized import NormalizedRows, normalize_by
from marlflow.policy.policy_modules import PolicyModules, Prefix
from marlflow.policy.q import QActor
from marlflow.policy.recurrent import RecurrentNetworkActor, unrolled_after
from marlflow.policy.torso import Flattened

MixerSees: TypeAlias = Literal["state", "observations"]
"""The environment's global state, or all agents' observations."""

_HYPERNET_HIDDEN = 64


class SumMixer(nn.Module):
    """The sum of the present agents' values (VDN: Sunehag et al., 2017, arXiv:1706.05296, section 3.1)."""

    def forward(self, q: Tensor, present: Tensor, seen: Tensor | None) -> Tensor:
        """Return team values [N] of the agents' values `q` [N, K], and which are `present`, float [N, K]."""
        return (q * present).sum(1)


class MonotonicMixer(nn.Module):
    """A network from agents' values to the team's, which increases with each (QMIX: Rashid et al., 2018, section 4).

    Hypernetworks compute its weights and biases from the mixer's input; the weights' absolute values are used.
    `hypernet_layers` 1 is linear, 2 has a hidden layer.
    """

    def __init__(self, seats: int, width: int, embed: int, hypernet_layers: int, generator: torch.Generator) -> None:
        super().__init__()
        self.seats, self.embed = seats, embed

        def weights(outputs: int) -> nn.Module:
            sizes = [width, outputs] if hypernet_layers == 1 else [width, _HYPERNET_HIDDEN, outputs]
            return _layers(sizes, generator)

        self.w1, self.w2 = weights(seats * embed), weights(embed)
        self.b1 = _layers([width, embed], generator)
        self.v = _layers([width, embed, 1], generator)

    def forward(self, q: Tensor, present: Tensor, seen: Tensor | None) -> Tensor:
        """Return team values [N] of `q` [N, K], `present`, float [N, K], and rows that the mixer sees, [N, D]."""
        assert seen is not None
        w1 = self.w1(seen).abs().view(-1, self.seats, self.embed)
        hidden = functional.elu(torch.bmm((q * present).unsqueeze(1), w1).squeeze(1) + self.b1(seen))
        mixed: Tensor = (self.w2(seen).abs() * hidden).sum(1) + self.v(seen).squeeze(1)
        return mixed


def _layers(sizes: Sequence[int], generator: torch.Generator) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(sizes):
        layer = nn.Linear(inputs, outputs)
        # torch's own start, with random biases: of zero biases, hypernetworks would make no weights for a state of 0.
        bound = 1.0 / math.sqrt(inputs)
        for parameter in (layer.weight, layer.bias):
            nn.init.uniform_(parameter, -bound, bound, generator)
        layers += [nn.ReLU(), layer] if layers else [layer]
    return layers[0] if len(layers) == 1 else nn.Sequential(*layers)


class MixerInput(nn.Module):
    """Makes the rows that a mixer sees, float32 [N, width]: the state or all observations, then presence bits.

    With `normalizes`, the numbers have running mean 0 and variance 1. With `squashes`, each number x becomes
    sign(x) log(1 + |x|) (Hafner et al., 2023, arXiv:2301.04104, equation 9): otherwise a mixer's value grows with the
    square of the state, and learning diverges where the state grows along an episode.
    """

    def __init__(
        self, members: Mapping[str, Spaces], sees: MixerSees, normalizes: bool = False, squashes: bool = False
    ) -> None:
        super().__init__()
        self.sees, self.squashes = sees, squashes
        self.seats = {policy: len(spaces.seats) for policy, spaces in members.items()}
        # An environment has one state, which all members have.
        state = next(iter(members.values())).state
        self.state = None if state is None or sees != "state" else _numbers(layout(state), normalizes, "state", "valid")
        obs = {
            policy: _numbers(spaces.layout(), normalizes, f"{policy}:obs", f"{policy}:present")
            for policy, spaces in members.items()
        }
        self.obs = PolicyModules({} if self.state is not None else obs)
        widths = [part.width * self.seats[policy] for policy, part in obs.items()]
        self.width = (sum(widths) if self.state is None else self.state.width) + sum(self.seats.values())

    def forward(self, columns: Mapping[str, Tensor], present: Tensor, prefix: Prefix) -> Tensor:
        """Return the rows of `columns`, the columns of a joint batch, [N, ...]; `present` is float [N, K]."""
        if self.state is not None:
            parts = [self.state(columns[f"{prefix}state"])]
        else:
            seats = present.split(list(self.seats.values()), 1)
            observed = zip(self.obs.items(), seats, strict=True)
            parts = [
                _of_present(numbers, columns[f"{policy}:{prefix}obs"], here) for (policy, numbers), here in observed
            ]
        if self.squashes:
            parts = [part.sign() * torch.log1p(part.abs()) for part in parts]
        return torch.cat((*parts, present), 1)


def _of_present(numbers: Numbers, obs: Tensor, present: Tensor) -> Tensor:
    # [N, K * width], with zeros for absent agents: the zeros that they observe are others where normalized.
    seats: Tensor = numbers(obs.flatten(0, 1)).unflatten(0, obs.shape[:2])
    return (seats * present.unsqueeze(2)).flatten(1)


def _numbers(rows: ObservationLayout, normalizes: bool, column: str, valid: str) -> Numbers:
    numbers = Numbers(rows, normalizes)
    normalize_by(numbers, column, valid)
    return numbers


class Numbers(nn.Module):
    """Reads rows of observations or states as plain numbers, float32 [N, width]; pixels become 0 to 1."""

    def __init__(self, rows: ObservationLayout, normalizes: bool = False) -> None:
        super().__init__()
        self.width = sum(leaf.size for leaf in rows.leaves)
        self.flattened = Flattened(rows, nn.Identity()) if rows.form == "packed" else None
        self.scale = 1.0 / BRIGHTEST if rows.form == "plain" and rows.leaves[0].pixels else 1.0
        is_plain = self.flattened is None and self.scale == 1.0
        self.rows = NormalizedRows(self.width) if normalizes and is_plain else None

    def forward(self, rows: Tensor) -> Tensor:
        """Return the numbers of `rows` [N, ...]."""
        if self.flattened is not None:
            flat: Tensor = self.flattened(rows)
            return flat
        if self.rows is not None:
            normalized: Tensor = self.rows(rows)
            return normalized
        return as_rows(rows) * self.scale


class TeamQNetwork(nn.Module):
    """Publishes `actors`, by policy. All agents of a policy share its actor.

    `mixer` maps the agents' values [N, K], presence [N, K] and the rows of `mixer_input` (None: it sees nothing) to the
    team's value [N]. Agents are in the order of `actors`, and within a policy in the order of its seats. Values are of
    rewards divided by `reward_unit(network)`.
    """

    def __init__(
        self,
        actors: Mapping[str, nn.Module],
        mixer: nn.Module,
        mixer_input: MixerInput | None,
    ) -> None:
        super().__init__()
        self.actors = PolicyModules(actors)
        self.mixer = mixer
        self.mixer_input = mixer_input
        self.policies = tuple(actors)
        for policy, actor in actors.items():
            normalize_by(actor, f"{policy}:obs", f"{policy}:present")

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
            # Each seat is a separate sequence: [S * K_p, B + L + 1, ...].
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
