"""Normalization of observations (as by VecNormalize), values (Pop-Art) and rewards, with running statistics.

The statistics are published, saved and copied into target networks like other parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from marlflow.policy.dense import as_rows
from marlflow.policy.tensors import as_float32

_MIN_VARIANCE = 1e-8
_CLIP_DEVIATIONS = 10.0
"""Number of standard deviations at which a normalized observation is clipped."""
_WINDOW_ROWS = 1e6
"""The number of rows after which older rows fade, so that statistics follow a policy whose observations change."""


@runtime_checkable
class Observer(Protocol):
    """A submodule that updates its statistics from each training batch, after the learner used it."""

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Update from columns [N, ...], or [S, T, ...] with a bool [S, T] column `valid`."""
        ...


class RunningMoments(nn.Module):
    """Mean and variance, [D] each, of about the last million rows."""

    def __init__(self, width: int) -> None:
        super().__init__()
        # Parameters, though without gradients, so that they are published, saved and copied like the others.
        self.mean = nn.Parameter(torch.zeros(width), requires_grad=False)
        self.variance = nn.Parameter(torch.ones(width), requires_grad=False)
        self.count = nn.Parameter(torch.zeros(1), requires_grad=False)

    def add(self, rows: Tensor) -> None:
        """Merge in `rows` [N, D] (Chan et al., "Updating formulae and a pairwise algorithm", 1979, equation 2.1)."""
        if not len(rows):
            return
        # Float64, for float32 loses the small difference of large means. torch.var over the first dimension is slow.
        rows = rows.double()
        new_mean = rows.mean(0)
        new_variance = (rows - new_mean).square_().mean(0)
        count, mean = float(self.count), self.mean.double()
        share = len(rows) / (count + len(rows))
        difference = new_mean - mean
        variance = torch.lerp(self.variance.double(), new_variance, share)
        variance.addcmul_(difference, difference, value=share * (1.0 - share))
        if not math.isfinite(float(variance.float().amax())):
            # Skip NaN and infinite rows: merged in, they would spoil the statistics for good.
            return
        self.mean.copy_(mean.add_(difference, alpha=share))
        self.variance.copy_(variance)
        # A capped count gives new rows a fixed smallest share.
        self.count.fill_(min(count + len(rows), _WINDOW_ROWS))

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, [D]; 1 before any rows."""
        return torch.sqrt(self.variance + _MIN_VARIANCE)


class NormalizedRows(nn.Module):
    """Normalizes each component of observations to mean 0 and variance 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.moments = RunningMoments(width)
        self.column = "obs"
        """The column of a training batch that it normalizes; `central` in a central critic."""
        self.valid = "valid"
        """The bool column that says which of its rows exist, if there is one."""

    def forward(self, obs: Tensor) -> Tensor:
        """Return normalized rows [N, D] of `obs` [N, ...]."""
        scaled = (as_rows(obs) - self.moments.mean) / self.moments.deviation
        return scaled.clamp(-_CLIP_DEVIATIONS, _CLIP_DEVIATIONS)

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        with torch.no_grad():
            self.moments.add(as_rows(_valid_rows(columns, self.column, self.valid)))


class NormalizedTorso(nn.Module):
    """A torso over normalized observations."""

    def __init__(self, torso: nn.Module, width: int) -> None:
        super().__init__()
        self.rows, self.torso = NormalizedRows(width), torso

    def forward(self, obs: Tensor) -> Tensor:
        features: Tensor = self.torso(self.rows(obs))
        return features


class ValueCritic(nn.Module):
    """Base of networks that estimate values, whose head may learn them in a unit of its own.

    `returns` is None, or a module from outputs of the head to values, whose `variance` is the factor between their
    squared errors. Parts of algorithms set it; see `Part.change_critic`.
    """

    value_target: ClassVar[str] = "value_target"
    """The column of training batches that has the targets of its values."""

    def __init__(self) -> None:
        super().__init__()
        self.returns: Any = None

    @property
    def value_head(self) -> nn.Linear:
        """The last layer, whose outputs are [..., 1]."""
        raise NotImplementedError

    def as_values(self, outputs: Tensor) -> Tensor:
        """Convert outputs of the head, [..., 1], to values [...]."""
        outputs = as_float32(outputs).squeeze(-1)
        values: Tensor = outputs if self.returns is None else self.returns(outputs)
        return values

    def value_error(self, squared: Tensor) -> Tensor:
        """Convert squared errors of values to the squared unit of the head's outputs."""
        return squared if self.returns is None else squared / self.returns.variance


class ReturnScale(nn.Module):
    """Pop-Art: normalizes a critic's outputs by the running mean and deviation of returns.

    When the statistics change, the head's weights change so that its values do not (van Hasselt et al., 2016,
    arXiv:1602.07714, equations 2 and 3).
    """

    def __init__(self, head: nn.Linear, column: str) -> None:
        super().__init__()
        self.moments, self._column = RunningMoments(1), column
        # The list keeps nn.Module from registering the head here too: it belongs to the critic.
        self._head = [head]

    def forward(self, output: Tensor) -> Tensor:
        """Convert the head's output to values."""
        return output * self.moments.deviation + self.moments.mean

    @property
    def variance(self) -> Tensor:
        """The factor between squared value errors and squared errors of the head's output, [1]."""
        return self.moments.deviation.square()

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Update from the column of value targets, and rescale the head."""
        (head,) = self._head
        with torch.no_grad():
            mean, deviation = self.moments.mean.clone(), self.moments.deviation
            self.moments.add(_valid_rows(columns, self._column).reshape(-1, 1))
            now = self.moments.deviation
            head.weight.mul_(deviation / now)
            head.bias.copy_((head.bias * deviation + mean - self.moments.mean) / now)


class RewardMoments(nn.Module):
    """Divides rewards by their running root mean square, so that learning does not depend on their unit.

    No mean is subtracted: that would change the value of ending an episode early.
    """

    def __init__(self) -> None:
        super().__init__()
        self.moments = RunningMoments(1)

    @property
    def unit(self) -> Tensor:
        """The divisor of rewards, [1]; 1 until a reward differs from 0."""
        return (self.moments.variance + self.moments.mean.square()).sqrt()

    def observe(self, columns: Mapping[str, Tensor]) -> None:
        """Update from the rewards of rows, or of a team; in sequences, only trained steps count."""
        with torch.no_grad():
            rewards = _valid_rows(columns, "reward", "trained").reshape(-1, 1)
            # Zeros before the first reward would make the unit almost 0.
            if bool(rewards.any()) or float(self.moments.count):
                self.moments.add(rewards)


def reward_unit(network: Any) -> Tensor | float:
    """Return the reward that counts as 1 in a network's values: the unit of `network.rewards`, if a part added it."""
    rewards = getattr(network, "rewards", None)
    return rewards.unit if isinstance(rewards, RewardMoments) else 1.0


def observers(module: nn.Module) -> list[Observer]:
    """Return the submodules with statistics to update."""
    return [part for part in module.modules() if isinstance(part, Observer)]


def normalize_by(module: nn.Module, column: str, valid: str) -> None:
    """Have normalization of observations in `module` use these columns of training batches, not `obs` and `valid`."""
    for part in module.modules():
        if isinstance(part, NormalizedRows):
            part.column, part.valid = column, valid


def _valid_rows(columns: Mapping[str, Tensor], name: str, valid: str = "valid") -> Tensor:
    return columns[name][columns[valid]] if valid in columns else columns[name]
