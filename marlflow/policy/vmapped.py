"""A network's outputs for several members in one vectorized call, checked once against a loop over members."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from marlflow.policy.network_actor import NetworkActor
from marlflow.policy.row_groups import RowGroups

log = logging.getLogger("marlflow")

_TOLERANCE = 1e-4
"""How far the first vmapped answer may be from the loop's; a network that keeps parameters elsewhere is farther."""


class Vmapped:
    """A network's outputs for several members in one call, by torch.func.

    A network may do what cannot be vectorized, or read parameters elsewhere than in its own modules; `check` finds out.
    """

    def __init__(self, network: NetworkActor, parameters: Sequence[nn.Parameter]) -> None:
        self._module = _Outputs(network)
        name_of = {id(parameter): name for name, parameter in self._module.named_parameters()}
        self._names = [name_of[id(parameter)] for parameter in parameters]
        self.is_checked = self.is_wrong = False

    def __call__(
        self, stacks: Sequence[Tensor], groups: RowGroups, obs: Tensor, memory: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        index = torch.from_numpy(groups.slots)
        parameters = {name: stack.index_select(0, index) for name, stack in zip(self._names, stacks, strict=True)}
        inputs = [groups.padded(rows) for rows in (obs, memory) if rows is not None]
        # With gradients off, Dense computes in numpy, which cannot be vectorized.
        with torch.enable_grad():
            found = vmap(self._one)(parameters, *inputs)
        outputs = [groups.flat(one.detach()) for one in found]
        return outputs[0], outputs[1] if memory is not None else None

    def _one(self, parameters: Mapping[str, Tensor], *inputs: Tensor) -> tuple[Tensor, ...]:
        found: tuple[Tensor, ...] = functional_call(self._module, dict(parameters), inputs)
        return found

    def check(
        self,
        stacks: Sequence[Tensor],
        groups: RowGroups,
        obs: Tensor,
        memory: Tensor | None,
        expected: tuple[Tensor, Tensor | None],
    ) -> None:
        """Compare with what a loop found; one that is wrong is reported, and not to be called."""
        self.is_checked = True
        try:
            found = self(stacks, groups, obs, memory)
        except (RuntimeError, NotImplementedError, TypeError) as error:
            self._give_up(str(error).partition("\n")[0])
            return
        pairs = [(one, other) for one, other in zip(found, expected, strict=True) if one is not None]
        if not all(
            other is not None and torch.allclose(one, other, _TOLERANCE, _TOLERANCE, equal_nan=True)
            for one, other in pairs
        ):
            self._give_up("its outputs would differ from those of one version alone")

    def _give_up(self, reason: str) -> None:
        self.is_wrong = True
        log.warning(
            "frozen versions of %s act one after the other, which takes longer the more of them play: torch.func.vmap "
            "cannot compute them together (%s)",
            type(self._module.actor).__name__,
            reason,
        )


class _Outputs(nn.Module):
    """A network actor's outputs and memory as the result of `forward`, without None."""

    def __init__(self, actor: NetworkActor) -> None:
        super().__init__()
        self.actor = actor

    def forward(self, obs: Tensor, memory: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return outputs, and the next memory if there is one."""
        outputs, after = self.actor.outputs(obs, memory)
        return (outputs,) if after is None else (outputs, after)
