"""Losses of a learner as functions of arrays that XLA compiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from marlflow.base.errors import NotCompiled
from marlflow.compiled.constants import attributes_of, changed_number, numbers_of
from marlflow.learner.flat_parameters import FlatParameters
from marlflow.learner.loss import LossTerms
from marlflow.learner.loss_groups import OptimizerGroup
from marlflow.learner.parameters import LearnerParameters

if TYPE_CHECKING:
    from marlflow.compiled.update import LossOfRows, LossValues


class TracedLosses:
    """The losses of some loss groups; `others` are the tensors of the networks that are no parameters.

    While a loss is traced, its coefficients are traced values; afterwards they are `scheduled`.
    """

    def __init__(self, parameters: LearnerParameters, groups: Sequence[OptimizerGroup]) -> None:
        self._parameters, self._groups = parameters, groups
        self.others = [buffer for module in self._modules() for buffer in module.buffers()]
        self.scheduled: Mapping[str, float] = {}
        # By a group's name and a keeper's number: the numbers that its programs have as constants.
        self._constants: dict[tuple[str, int], tuple[Any, Mapping[str, Any]]] = {}

    def verify_constants(self) -> None:
        """Raise NotCompiled if a number that a program has as a constant is another now."""
        for keeper, constants in self._constants.values():
            if (name := changed_number(keeper, constants)) is not None:
                raise NotCompiled(f"{_named(keeper)} changes its own {name} from one update to the next")

    def _modules(self) -> list[Any]:
        return [one for one in (self._parameters.module, self._parameters.target_module) if one is not None]

    def of(self, group: OptimizerGroup) -> LossOfRows:
        """Return the group's loss, with its extra losses, as a function of arrays; it may raise NotCompiled."""
        from marlflow.compiled.tracing import Traced, traced, value_of
        from marlflow.compiled.update import LossValues

        parameters = self._parameters

        def loss(
            vector: Any, target: Any, others: Sequence[Any], columns: Any, rows: Any, scheduled: Any
        ) -> LossValues:
            known = {id(tensor): value for tensor, value in zip(self.others, others, strict=True)}
            known |= _pieces(parameters.flat, vector)
            if parameters.target_flat is not None:
                known |= _pieces(parameters.target_flat, target)
            values: dict[str, Any] = {name: Traced(value) for name, value in scheduled.items()}

            keepers = self._keepers(group)

            def run() -> LossTerms:
                self._set_coefficients(values)
                before = [numbers_of(keeper) for keeper in keepers]
                terms = group.total_loss(parameters.module, parameters.target_module, _traced(columns))
                for keeper, numbers in zip(keepers, before, strict=True):
                    for name, value in numbers_of(keeper).items():
                        if numbers.get(name) != value:
                            raise NotCompiled(f"{_named(keeper)} changes its own {name} with each minibatch")
                # Scheduled coefficients are no numbers here.
                of_keepers = enumerate(zip(keepers, before, strict=True))
                self._constants |= {(group.name, number): constants for number, constants in of_keepers if constants[1]}
                return terms

            try:
                terms = traced(known, rows, run)
            finally:
                self._set_coefficients(self.scheduled)
            for keeper in keepers:
                if kept := [name for name, value in attributes_of(keeper).items() if isinstance(value, Traced)]:
                    raise NotCompiled(
                        f"{_named(keeper)} keeps {kept[0]} from one minibatch to the next; a loss returns it as "
                        "LossTerms(columns=...)"
                    )
            return LossValues(
                value_of(terms.total),
                {name: value_of(term) for name, term in terms.terms.items()},
                None if terms.priorities is None else value_of(terms.priorities),
                {name: value_of(column) for name, column in terms.columns.items()},
            )

        return loss

    def _keepers(self, group: OptimizerGroup) -> list[Any]:
        """Return the objects of a user's code that a loss may keep something in, each once."""
        functions = [extra.function for extra in group.extra_losses]
        found = _with_inner([group.loss, *functions])
        modules = (one for module in self._modules() for one in module.modules())
        return list({id(one): one for one in [*found, *modules]}.values())

    def _set_coefficients(self, values: Mapping[str, float]) -> None:
        # All groups, because their losses may share coefficients.
        for group in self._groups:
            group.set_coefficients(values)


def _with_inner(functions: Sequence[Any]) -> list[Any]:
    """Return functions, and all that they call by what they hold: as methods, partial functions, or attributes."""
    found: dict[int, Any] = {}
    left = [*functions]
    while left:
        one = left.pop()
        # A network's layers are its own; classes and tensors are no functions of a loss.
        if id(one) in found or not callable(one) or isinstance(one, type | Tensor | nn.Module):
            continue
        found[id(one)] = one
        left += [getattr(one, "__self__", None), getattr(one, "func", None), *attributes_of(one).values()]
    return [*found.values()]


def _named(keeper: Any) -> str:
    return str(getattr(keeper, "__name__", type(keeper).__name__))


def _pieces(flat: FlatParameters, vector: Any) -> dict[int, Any]:
    """Return the parts of `vector` [P] in each parameter's shape, by the parameter's id."""
    from jax import lax

    # Not slices: the gradient of each slice would be as long as the vector, and all would be added.
    parts = lax.split(vector, [parameter.numel() for parameter in flat.parameters])
    return {id(one): part.reshape(one.shape) for one, part in zip(flat.parameters, parts, strict=True)}


def _traced(columns: Mapping[str, Any]) -> dict[str, Any]:
    from marlflow.compiled.tracing import Traced

    return {name: Traced(column) for name, column in columns.items()}
