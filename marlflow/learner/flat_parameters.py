"""Flat parameters: a module's parameters and gradients as views into one vector each.

Clipping, optimizer steps, soft target updates and publishing are then one operation each, for any number of layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.arrays import Array
from marlflow.base.errors import WeightsMismatch
from marlflow.policy.tensors import in_flat_order


class FlatParameters:
    """Moves the parameters of `module` into `vector`, float32 [P], and their gradients into `gradient` [P].

    The module keeps its Parameter objects, now views: first the `actors` (by policy), then `groups` (by loss);
    parameters with gradients are the span `learning`. Backward passes add to `gradient`. Raises TypeError if actors
    share parameters, or if any are not float32.
    """

    __slots__ = ("_actors", "_span", "gradient", "learning", "parameters", "publishes_all", "vector")

    def __init__(
        self, module: nn.Module, actors: Mapping[str, nn.Module], groups: Sequence[Iterable[nn.Parameter]] = ()
    ) -> None:
        acting = sorted((p for actor in actors.values() for p in actor.parameters()), key=lambda p: p.requires_grad)
        if len(set(acting)) < len(acting):
            raise TypeError(f"the actors of policies {', '.join(actors)} share parameters; give each its own")
        # Parameters without gradients (running statistics) go to the two ends, out of the optimizers' spans.
        others = [parameter for group in groups for parameter in group] + list(module.parameters())
        rest = [parameter for parameter in others if parameter.requires_grad]
        rest += [parameter for parameter in others if not parameter.requires_grad]
        # dict.fromkeys drops duplicates and keeps the order.
        self.parameters = list(dict.fromkeys([*acting, *rest]))
        wrong = {parameter.dtype for parameter in self.parameters} - {torch.float32}
        if wrong:
            raise TypeError(f"expected parameters of float32, got {wrong}")
        self.publishes_all = False
        self.vector = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters])
        self.gradient = torch.zeros_like(self.vector)
        self._span: dict[nn.Parameter, slice] = {}
        offset = 0
        for parameter in self.parameters:
            part = self._span[parameter] = slice(offset, offset + parameter.numel())
            parameter.data = self.vector[part].view_as(parameter)
            # Autograd adds to an existing .grad in place.
            parameter.grad = self.gradient[part].view_as(parameter) if parameter.requires_grad else None
            offset = part.stop
        self._actors = {policy: self._pieces(actor) for policy, actor in actors.items()}
        learning = [self._span[parameter] for parameter in self.parameters if parameter.requires_grad]
        self.learning = slice(learning[0].start, learning[-1].stop) if learning else slice(0, 0)

    def span(self, parameters: Iterable[nn.Parameter]) -> slice:
        """Return the span of these parameters in the vector; raises ValueError if they are not adjacent."""
        spans = sorted((self._span[parameter] for parameter in set(parameters)), key=lambda span: span.start)
        whole = slice(spans[0].start, spans[-1].stop)
        if sum(span.stop - span.start for span in spans) != whole.stop - whole.start:
            raise ValueError("the parameters that one loss is for must be one submodule, or neighboring ones")
        return whole

    def _pieces(self, actor: nn.Module) -> list[slice]:
        pieces: list[slice] = []
        for span in (self._span[parameter] for parameter in in_flat_order(actor)):
            if pieces and pieces[-1].stop == span.start:
                pieces[-1] = slice(pieces[-1].start, span.stop)
            else:
                pieces.append(span)
        return pieces

    def publish(self) -> dict[str, Array]:
        """Return a copy of each policy's actor parameters; with `publishes_all`, of all parameters [P]."""
        flats = {}
        for policy, pieces in self._actors.items():
            parts = [self.vector] if self.publishes_all else [self.vector[piece] for piece in pieces]
            flats[policy] = np.concatenate([part.cpu().numpy() for part in parts or [self.vector[:0]]])
        return flats

    def load_actor(self, policy: str, flat: Tensor) -> None:
        """Copy published parameters [P] into the actor of `policy`, without a critic's that may follow them.

        Raises WeightsMismatch if they belong to another network.
        """
        pieces = self._actors[policy]
        expected = sum(piece.stop - piece.start for piece in pieces)
        if len(flat) not in (expected, len(self.vector)):
            raise WeightsMismatch(f"expected {expected} parameters of an actor of {policy!r}, got {len(flat)}")
        offset = 0
        for piece in pieces:
            stop = offset + piece.stop - piece.start
            self.vector[piece].copy_(flat[offset:stop])
            offset = stop

    def load(self, vector: Tensor) -> None:
        """Copy `vector` [P] into all parameters; raises WeightsMismatch if its size differs."""
        if vector.shape != self.vector.shape:
            expected, actual = len(self.vector), tuple(vector.shape)
            raise WeightsMismatch(f"expected a flat vector of {expected} parameters of a learner, got shape {actual}")
        self.vector.copy_(vector)

    def soft_update(self, vector: Tensor, tau: float) -> None:
        """Move trained parameters by the fraction `tau` toward `vector` [P] (Lillicrap et al., 2016); copy the rest."""
        if tau == 1.0:
            self.vector.copy_(vector)
            return
        first, stop = self.learning.start, self.learning.stop
        self.vector[first:stop].lerp_(vector[first:stop], tau)
        if stop - first < len(vector):
            self.vector[:first].copy_(vector[:first])
            self.vector[stop:].copy_(vector[stop:])
