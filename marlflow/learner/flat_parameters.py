"""A module's parameters and gradients as views into one vector each.

Clearing gradients, clipping, the optimizer's step, soft targets and publishing are then one operation each, however
many layers the module has. The parameters of the actors come first: what is published is from a prefix of the vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from marlflow.base.batch import Array
from marlflow.base.errors import WeightsMismatch
from marlflow.policy.tensors import in_flat_order


class FlatParameters:
    """Moves all parameters of `module` into `vector`, float32 [P], those of its `actors` first; gradients likewise.

    `actors` has the part of `module` by which each policy acts. Raises TypeError if two of them share parameters: what
    one policy publishes could not be trained without the other. `groups` of parameters, each learned by a loss of its
    own, come next to each other in their order. Parameters that do not learn (`requires_grad` False: running
    statistics) stand at the two ends, so that no optimizer sees them. The module keeps its Parameter objects. Autograd
    adds into an existing `.grad` in place, so `gradient` is complete after a backward pass; the caller has to clear it
    before. Raises TypeError for parameters not of float32.
    """

    __slots__ = ("_actors", "_learning", "_span", "gradient", "parameters", "publishes_all", "vector")

    def __init__(
        self, module: nn.Module, actors: Mapping[str, nn.Module], groups: Sequence[Iterable[nn.Parameter]] = ()
    ) -> None:
        acting = sorted((p for actor in actors.values() for p in actor.parameters()), key=lambda p: p.requires_grad)
        if len(set(acting)) < len(acting):
            raise TypeError(f"the actors of policies {', '.join(actors)} share parameters; give each its own")
        others = [parameter for group in groups for parameter in group] + list(module.parameters())
        rest = [parameter for parameter in others if parameter.requires_grad]
        rest += [parameter for parameter in others if not parameter.requires_grad]
        # A dict keeps the order and drops the parameters of `module` that are also of `acting`.
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
            parameter.grad = self.gradient[part].view_as(parameter) if parameter.requires_grad else None
            offset = part.stop
        self._actors = {policy: self._pieces(actor) for policy, actor in actors.items()}
        learning = [self._span[parameter] for parameter in self.parameters if parameter.requires_grad]
        self._learning = slice(learning[0].start, learning[-1].stop) if learning else slice(0, 0)

    def span(self, parameters: Iterable[nn.Parameter]) -> slice:
        """The span of these parameters in the vector; raises ValueError unless they are adjacent and all learn."""
        spans = sorted((self._span[parameter] for parameter in set(parameters)), key=lambda span: span.start)
        whole = slice(spans[0].start, spans[-1].stop)
        if sum(span.stop - span.start for span in spans) != whole.stop - whole.start:
            raise ValueError("the parameters that one loss is for must be one submodule, or neighboring ones")
        return whole

    def _pieces(self, actor: nn.Module) -> list[slice]:
        """The adjacent parts of the vector that are the parameters of an actor, in flat order."""
        pieces: list[slice] = []
        for span in (self._span[parameter] for parameter in in_flat_order(actor)):
            if pieces and pieces[-1].stop == span.start:
                pieces[-1] = slice(pieces[-1].start, span.stop)
            else:
                pieces.append(span)
        return pieces

    def publish(self) -> dict[str, Array]:
        """For each policy a copy of its actor's parameters, float32; with `publishes_all`, of all parameters [P]."""
        found = {}
        for policy, pieces in self._actors.items():
            parts = [self.vector] if self.publishes_all else [self.vector[piece] for piece in pieces]
            found[policy] = np.concatenate([part.cpu().numpy() for part in parts or [self.vector[:0]]])
        return found

    def load(self, vector: Tensor) -> None:
        """Copies `vector` [P] into all parameters at once; raises WeightsMismatch if it has another size."""
        if vector.shape != self.vector.shape:
            expected, came = len(self.vector), tuple(vector.shape)
            raise WeightsMismatch(f"expected a flat vector of {expected} parameters of a learner, got shape {came}")
        self.vector.copy_(vector)

    def approach(self, vector: Tensor, tau: float) -> None:
        """Moves what learns by `tau` of the way to `vector` [P] (Lillicrap et al., 2016); the rest wholly."""
        if tau == 1.0:
            self.vector.copy_(vector)
            return
        first, stop = self._learning.start, self._learning.stop
        self.vector[first:stop].lerp_(vector[first:stop], tau)
        if stop - first < len(vector):
            self.vector[:first].copy_(vector[:first])
            self.vector[stop:].copy_(vector[stop:])
