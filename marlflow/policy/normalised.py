"""Running means and variances that belong to a policy: of what it observes, and of what its critic estimates.

They are parameters that no optimiser steps (`requires_grad` False): so they are published, kept in checkpoints and
copied into targets with all others. A learner shows its module the rows of each batch once it has learned from them
(`observe`), so that a batch is learned from with the same numbers by which its actions were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from marlflow.policy.dense import as_rows

_SMALLEST_VARIANCE = 1e-8
_FARTHEST = 10.0
"""Standard deviations from the mean beyond which an observation is clipped."""
_WINDOW_ROWS = 1e6
"""How many rows count: older ones fade, so that statistics follow a policy that changes what it sees."""


@runtime_checkable
class Observer(Protocol):
    """A submodule that wants to see each batch that was learned from."""

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Takes notice of columns [N, ...], or of sequences [S, T, ...] of which only some rows are `present`."""
        ...


class RunningMoments(nn.Module):
    """Mean and variance, [D] each, of all rows shown so far, the latest million or so."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(width), requires_grad=False)
        self.count = nn.Parameter(torch.zeros(1), requires_grad=False)

    def add(self, rows: Tensor) -> None:
        """Merges in `rows` [N, D] (Chan et al., "Updating formulae and a pairwise algorithm", 1979, equation 2.1)."""
        if not len(rows):
            return
        new_mean, new_variance = rows.double().mean(0), rows.double().var(0, correction=0)
        count, mean = float(self.count), self.mean.double()
        share = len(rows) / (count + len(rows))
        difference = new_mean - mean
        variance = (1.0 - share) * self.variance + share * new_variance + share * (1.0 - share) * difference.square()
        if not bool(torch.isfinite(variance.float()).all()):
            return  # of rows such as these nothing can be learned; those that were are still usual
        self.mean.copy_(mean + share * difference)
        self.variance.copy_(variance)
        self.count.fill_(min(count + len(rows), _WINDOW_ROWS))

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, [D]; 1 before anything was shown."""
        return torch.sqrt(self.variance + _SMALLEST_VARIANCE)


class NormalisedRows(nn.Module):
    """Observations shifted and scaled to mean 0 and variance 1, component by component."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.moments = RunningMoments(width)

    def forward(self, obs: Tensor) -> Tensor:
        """Numbers [N, D] of `obs` [N, ...]."""
        scaled = (as_rows(obs) - self.moments.mean) / self.moments.deviation
        return scaled.clamp(-_FARTHEST, _FARTHEST)

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Learns what is usual."""
        with torch.no_grad():
            self.moments.add(as_rows(_present(columns, "obs")))


class NormalisedTorso(nn.Module):
    """A torso over normalised observations."""

    def __init__(self, torso: nn.Module, width: int) -> None:
        super().__init__()
        self.rows, self.torso = NormalisedRows(width), torso

    def forward(self, obs: Tensor) -> Tensor:
        """Features [N, F] of `obs` [N, ...]."""
        features: Tensor = self.torso(self.rows(obs))
        return features


class ReturnScale(nn.Module):
    """What a critic's head gives is in these units, whose zero and one follow the returns; values stay what they were.

    Pop-Art (van Hasselt et al., "Learning values across many orders of magnitude", 2016, arXiv:1602.07714, equations
    2 and 3): whenever mean and deviation change, the head is changed so that no value does.
    """

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.moments = RunningMoments(1)
        self._head = [head]  # in a list: it is a submodule of whoever has both

    def forward(self, output: Tensor) -> Tensor:
        """Values of what the head gave, any shape."""
        return output * self.moments.deviation + self.moments.mean

    @property
    def variance(self) -> Tensor:
        """By which a squared error of values has to be divided to be one of the head's own units, [1]."""
        return self.moments.deviation.square()

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Learns from `value_target` how large returns are."""
        (head,) = self._head
        with torch.no_grad():
            mean, deviation = self.moments.mean.clone(), self.moments.deviation
            self.moments.add(_present(columns, "value_target").reshape(-1, 1))
            now = self.moments.deviation
            head.weight.mul_(deviation / now)
            head.bias.copy_((head.bias * deviation + mean - self.moments.mean) / now)


def in_units_of(returns: ReturnScale | None, output: Tensor) -> Tensor:
    """Values of what a critic's head gave, any shape; without a scale they are that."""
    if returns is None:
        return output
    value: Tensor = returns(output)
    return value


def observers(module: nn.Module) -> list[Observer]:
    """The submodules that want to see each batch."""
    return [part for part in module.modules() if isinstance(part, Observer)]


def _present(columns: Mapping[str, Tensor], name: str) -> Tensor:
    return columns[name][columns["present"]] if "present" in columns else columns[name]
