"""Q-networks and epsilon-greedy actors (Watkins, 1989; Mnih et al., 2015), also distributional over fixed atoms.

C51: Bellemare et al., 2017, arXiv:1707.06887.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import MarlflowError
from marlflow.base.random import RowRandom
from marlflow.base.spaces import Spaces
from marlflow.policy.actor import EvaluationMode, Mode, NetworkActor, Scheduled, as_scheduled
from marlflow.policy.dense import Layers, as_rows, is_plain, linear, plain_layers, through
from marlflow.policy.scripted import uniform_legal
from marlflow.policy.tensors import as_array, as_float32
from marlflow.policy.torso import TorsoConfig, build_torso

_TINY = np.finfo(np.float64).tiny


class DuelingHead(nn.Module):
    """State value plus each action's advantage over the mean (Wang et al., 2016, arXiv:1511.06581, equation 9)."""

    def __init__(self, features: int, num_actions: int, generator: torch.Generator, gain: float = 1.0) -> None:
        super().__init__()
        self.state = linear(features, 1, gain, generator)
        self.advantage = linear(features, num_actions, gain, generator)

    def forward(self, features: Tensor) -> Tensor:
        """Return action values [N, A] of `features` [N, F]."""
        advantage: Tensor = self.advantage(features)
        state: Tensor = self.state(features)
        return state + (advantage - advantage.mean(-1, keepdim=True))


class QActor(NetworkActor):
    """Epsilon-greedy actor; the schedule `epsilon` starts at 1.

    With a `ladder` above 0, each of `num_envs` environments has its own epsilon (see `epsilon_of_env`).
    """

    def __init__(self, torso: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.torso, self.head = torso, head
        self.epsilon: Scheduled = 1.0
        self.ladder = 0.0
        self.num_envs: Scheduled = 1

    @property
    def layers(self) -> Layers | None:
        """The layers that compute `outputs`; None if anything else does."""
        modules = self._modules
        return plain_layers(modules["torso"], modules["head"]) if is_plain(self, QActor) else None

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values [N, A] of `obs` [N, ...]."""
        return through(self.torso, self.head, obs)

    def probabilities(self, obs: Array, action_mask: Array | None, mode: EvaluationMode) -> Array:
        q = _checked(self.outputs_of(obs))
        masked = q if action_mask is None else np.where(action_mask, q, -np.inf)
        greedy: Array = np.eye(q.shape[1])[masked.argmax(1)]
        return greedy

    def outputs(self, obs: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
        # With gradients on, outputs have to have them.
        if torch.is_grad_enabled() or (layers := self.layers) is None:
            return self(obs), None
        return layers.run(as_rows(obs)), None

    def choose(
        self, outputs: Tensor, action_mask: Array | None, mode: Mode, generator: RowRandom
    ) -> tuple[Array, Array]:
        epsilon = self._epsilon(generator) if mode == "explore" else 0.0
        return epsilon_greedy(_checked(as_array(outputs)), action_mask, epsilon, generator)

    def set_schedule(self, values: Mapping[str, Scheduled]) -> None:
        self.epsilon = as_scheduled(values.get("epsilon", self.epsilon))
        self.num_envs = as_scheduled(values.get("num_envs", self.num_envs))

    def _epsilon(self, generator: RowRandom) -> Scheduled:
        if self.ladder:
            return epsilon_of_env(self.epsilon, generator.env_indices, self.num_envs, self.ladder)
        # Never 0 for a row, whose logarithm is infinite.
        return self.epsilon if isinstance(self.epsilon, float) else np.maximum(self.epsilon, _TINY)


def q_head(
    features: int, num_actions: int, dueling: bool, generator: torch.Generator, gain: float
) -> DuelingHead | nn.Linear:
    """Build a head of action values, orthogonal with `gain`, which is about the spread of the first values."""
    if dueling:
        return DuelingHead(features, num_actions, generator, gain)
    return linear(features, num_actions, gain, generator)


class QNetwork(nn.Module):
    """The network of a Q-learner; publishes `actor`. `gain`: see `q_head`."""

    def __init__(self, spaces: Spaces, torso: TorsoConfig, dueling: bool, seed: int, gain: float = 1.0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        body, features = build_torso(spaces, torso, generator)
        self.actor = QActor(body, q_head(features, spaces.num_actions, dueling, generator, gain))

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.actor(obs)
        return q


def _checked(q: Array) -> Array:
    if np.isnan(q.sum()):
        raise MarlflowError("cannot choose an action: the network's output is not a number")
    return q


def epsilon_of_env(epsilon: Scheduled, env_indices: Array, num_envs: Scheduled, ladder: float) -> Array:
    """Return the probability of a random action, [N]: epsilon ** (1 + i * ladder / (num_envs - 1)) in environment i.

    Horgan et al., 2018, arXiv:1803.00933, section 4.1.
    """
    # Environment 0 explores with epsilon itself, the last one with epsilon ** (1 + ladder).
    exponent = 1.0 + env_indices * (ladder / np.maximum(1, num_envs - 1))
    # Never 0, whose logarithm is infinite.
    return np.maximum(epsilon**exponent, _TINY)


def epsilon_greedy(q: Array, mask: Array | None, epsilon: float | Array, generator: RowRandom) -> tuple[Array, Array]:
    """Choose actions (int64 [N]) and their log-probabilities (float32 [N]).

    `q` is float32 [N, A] without NaN, `mask` bool [N, A], `epsilon` one number or [N] above 0.
    """
    rows, actions = q.shape
    if mask is not None:
        q = np.where(mask, q, -np.inf)
        if not mask.any(1).all():
            raise MarlflowError("cannot choose an action: a row has no legal action")
    greedy = q.argmax(1)
    if isinstance(epsilon, float) and epsilon <= 0.0:
        return greedy, np.zeros(rows, np.float32)
    # One draw does both: below epsilon it explores, and divided by epsilon it is uniform again and picks the action.
    uniform = generator.uniform()
    explores = uniform < epsilon
    # Rounding must not make the quotient 1: there is no action with that index.
    within = np.minimum(uniform, np.nextafter(epsilon, 0.0)) / epsilon
    if mask is None:
        other, legal = (within * actions).astype(np.int64), actions
    else:
        other, legal = uniform_legal(mask, within)
    action = np.where(explores, other, greedy)
    # The random draw may pick the greedy action too.
    probability = epsilon / legal + (1.0 - epsilon) * (action == greedy)
    return action, np.log(probability).astype(np.float32)


class AtomsHead(nn.Module):
    """Logits of the atoms `support` [K] per action; `forward` returns expected values, as a QActor needs.

    `dueling` is as in Hessel et al., 2018, arXiv:1710.02298.
    """

    support: Tensor

    def __init__(
        self, features: int, num_actions: int, support: Tensor, dueling: bool, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.register_buffer("support", support, persistent=False)
        atoms = len(support)
        self.state = linear(features, atoms, 1.0, generator) if dueling else None
        self.advantage = linear(features, num_actions * atoms, 1.0, generator)

    def logits(self, features: Tensor) -> Tensor:
        """Return logits [N, A, K] of `features` [N, F]."""
        advantage: Tensor = as_float32(self.advantage(features)).unflatten(-1, (-1, len(self.support)))
        if self.state is None:
            return advantage
        state: Tensor = as_float32(self.state(features)).unsqueeze(1)
        return state + (advantage - advantage.mean(1, keepdim=True))

    def expected(self, logits: Tensor) -> Tensor:
        """Return values [...] of `logits` [..., K]."""
        return logits.softmax(-1) @ self.support

    def forward(self, features: Tensor) -> Tensor:
        return self.expected(self.logits(features))


class DistributionalQNetwork(nn.Module):
    """The network of a C51 learner, with `atoms` atoms from `low` to `high`; publishes `actor`."""

    def __init__(
        self, spaces: Spaces, torso: TorsoConfig, dueling: bool, atoms: int, low: float, high: float, seed: int
    ) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        body, features = build_torso(spaces, torso, generator)
        head = AtomsHead(features, spaces.num_actions, torch.linspace(low, high, atoms), dueling, generator)
        self.actor = QActor(body, head)

    @property
    def head(self) -> AtomsHead:
        return cast(AtomsHead, self.actor.head)

    def forward(self, obs: Tensor) -> Tensor:
        q: Tensor = self.actor(obs)
        return q

    def logits(self, obs: Tensor) -> Tensor:
        """Return logits of each action's atoms, [N, A, K], of `obs` [N, ...]."""
        return self.head.logits(self.actor.torso(obs))
