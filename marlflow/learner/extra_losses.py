"""Extra losses: a user's own loss terms; autograd adds their gradients to the gradients of an algorithm's losses."""

from __future__ import annotations

import inspect
import math
import re
from bdb import BdbQuit
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from numbers import Real
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn

from marlflow.base.errors import ConfigInvalid, InvalidInput, MarlflowError, Problem, UserCodeFailed
from marlflow.base.schedules import Schedule, ScheduledFloat, initial_value
from marlflow.env.episode_location import raised
from marlflow.learner.part_state import MULTIPLIER

ExtraLossFunction: TypeAlias = Callable[[Any, Mapping[str, Tensor]], Tensor]
"""A function of the learner's module and a minibatch, columns [N, ...], to a scalar, []: a mean over rows.

It may have an attribute `coefficient`, a number or a schedule, and an attribute `group`, as ExtraLoss has them.
"""
ExtraLosses: TypeAlias = Mapping[str, ExtraLossFunction | None]
"""Extra losses by the name of their term in reports; None is left out."""

EXTRA_LOSSES: Final = "extra_losses"
"""The setting of algorithms that has them."""
RESERVED: Final = ("grad_norm", "factor_distance", "cost_mean", "cost_violation", MULTIPLIER)
"""Terms of reports that no loss gives."""
_NAME = re.compile(r"\w[\w-]{0,99}")


@dataclass(frozen=True)
class ExtraLoss:
    """A function, to be minimized times `coefficient`, by the parameters of the loss group `group`.

    With `coefficient` None it is only reported. `group` None is the group that trains the actor; if several policies
    have a group each, all of these.
    """

    function: ExtraLossFunction
    coefficient: ScheduledFloat | None = 1.0
    group: str | None = None

    def __call__(self, module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the scalar of `function`."""
        return self.function(module, minibatch)


class AddedLoss:
    """An extra loss of one loss group, reported as `term`."""

    def __init__(self, name: str, function: ExtraLossFunction, term: str) -> None:
        self.name, self.function, self.term = name, function, term
        coefficient = _coefficient_of(function)
        self.coefficient = None if coefficient is None else initial_value(coefficient)

    def set_schedule(self, values: Mapping[str, float]) -> None:
        """Set the coefficient, if it is scheduled."""
        self.coefficient = values.get(_setting(self.name), self.coefficient)

    def add_gradient(
        self, module: Any, minibatch: Mapping[str, Tensor], parameters: Sequence[nn.Parameter] | None
    ) -> Tensor:
        """Add the gradient to `parameters`, None for all, and return the value without coefficient or gradient.

        A value that does not depend on any parameter counts as a constant. Raises InvalidInput unless it is a scalar.
        """
        value = self.value(module, minibatch)
        if value.requires_grad and self.coefficient is not None:
            (self.coefficient * value).backward(inputs=None if parameters is None else list(parameters))
        return value.detach()

    def value(self, module: Any, minibatch: Mapping[str, Tensor]) -> Tensor:
        """Return the value, a scalar with gradient.

        Raises InvalidInput if it is something else, and UserCodeFailed if the function raises.
        """
        try:
            value: object = self.function(module, minibatch)
        except (MarlflowError, BdbQuit):
            raise  # of marlflow's own parts, what cannot be compiled, and the end of a debugger in it
        except Exception as error:
            raise UserCodeFailed(f"extra loss {self.name!r}", raised(error)) from error
        if isinstance(value, Tensor) and value.dim() == 0:
            return value
        found = f"a tensor {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise InvalidInput([f"extra loss {self.name!r} must return a scalar tensor, not {found}; return its mean()"])


class CheckedLoss(AddedLoss):
    """An extra loss that raises InvalidInput also for values that cannot be minimized; for trials before a run."""

    def __init__(self, added: AddedLoss) -> None:
        super().__init__(added.name, added.function, added.term)

    def add_gradient(
        self, module: Any, minibatch: Mapping[str, Tensor], parameters: Sequence[nn.Parameter] | None
    ) -> Tensor:
        value, subject = self.value(module, minibatch), f"extra loss {self.name!r}"
        if not math.isfinite(value.item()):
            raise InvalidInput([f"{subject} must return a finite number, not {value.item()}"])
        if self.coefficient is None:
            return value.detach()
        if not value.requires_grad:
            raise InvalidInput(
                [f"{subject} has no gradient; compute it from outputs of `module`, without detach() or no_grad()"]
            )
        trained = [parameter for parameter in parameters or module.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(value, trained, retain_graph=True, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise InvalidInput(
                [f"{subject} does not depend on the parameters that its loss group trains; give it another group=..."]
            )
        return super().add_gradient(module, minibatch, parameters)


def added_losses(
    losses: ExtraLosses, trains: Mapping[str, set[nn.Parameter]], actors: Mapping[str, nn.Module]
) -> dict[str, list[AddedLoss]]:
    """Return the extra losses of each loss group; `trains` has the parameters of the groups, `actors` the policies'.

    Raises ConfigInvalid for a group that is not there.
    """
    acting = {
        policy: group
        for policy, actor in actors.items()
        for group, parameters in trains.items()
        if parameters & set(actor.parameters())
    }
    apart = len(set(acting.values())) > 1
    added: dict[str, list[AddedLoss]] = {group: [] for group in trains}
    for name, function in losses.items():
        if function is None:
            continue
        if (group := _group_of(function)) is None:
            terms = {of: f"{name}/{policy}" if apart else name for policy, of in acting.items()}
        else:
            terms = {group: name}
        if unknown := [one for one in terms or (None,) if one not in trains]:
            known = ", ".join(map(repr, trains))
            raise ConfigInvalid(
                [f"extra loss {name!r} has group={unknown[0]!r}, and the loss groups of its learner are {known}"]
            )
        for one, term in terms.items():
            added[one].append(AddedLoss(name, function, term))
    return added


def scheduled_coefficients(losses: ExtraLosses, agent_steps: int) -> dict[str, float]:
    """Return the scheduled coefficients after `agent_steps`, in the form that learners receive."""
    coefficients = {_setting(name): _coefficient_of(loss) for name, loss in losses.items() if loss is not None}
    return {name: float(one.at(agent_steps)) for name, one in coefficients.items() if isinstance(one, Schedule)}


def extra_loss_problems(algorithm: str, losses: Mapping[Any, Any], learns: bool) -> Iterator[Problem]:
    """Yield why an algorithm cannot have these extra losses, as far as it is known without calling them."""
    if losses and not learns:
        yield Problem("does not learn, so it cannot have extra_losses", algorithm, remedy="leave them out")
        return
    for name, loss in losses.items():
        if problem := None if loss is None else _problem(name, loss):
            says, remedy = problem
            yield Problem(f"has an extra loss {name!r} {says}", algorithm, remedy=remedy)


def without_extra_losses(policy: Any) -> Any:
    """Return a policy, as plain data of a configuration, without its extra losses, which only training needs."""
    algorithm = policy.get("algorithm") if isinstance(policy, Mapping) else None
    if not isinstance(algorithm, Mapping):
        return policy
    return {**policy, "algorithm": {key: value for key, value in algorithm.items() if key != EXTRA_LOSSES}}


def _problem(name: Any, loss: Any) -> tuple[str, str] | None:
    """Return the problem of an extra loss, and the remedy."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        return "with a name that no term can have", "use letters, digits, _ and -"
    if name in RESERVED:
        return "with the name of a term that learners report", "give it another"
    if problem := _function_problem(loss.function if isinstance(loss, ExtraLoss) else loss):
        return problem
    coefficient, group = _coefficient_of(loss), _group_of(loss)
    is_number = isinstance(coefficient, Real) and not isinstance(coefficient, bool)
    # The fields of a dataclass are checked like all settings.
    if not isinstance(coefficient, Schedule | None) and not (
        is_number and (is_dataclass(loss) or math.isfinite(coefficient))
    ):
        return f"with coefficient={coefficient!r}", "give it a finite number, a schedule, or None"
    if group is not None and not isinstance(group, str):
        return f"with group={group!r}", "give it the name of a loss group, or None"
    return None


def _function_problem(function: Any) -> tuple[str, str] | None:
    if isinstance(function, type):
        made = f"{function.__name__}(...), in a configuration {{_target_: {function.__module__}.{function.__name__}}}"
        return f"that is the class {function.__name__}", f"make one of it: {made}"
    if not callable(function):
        return f"that is {function!r:.60}, not a function", "give a function of (module, minibatch) to a scalar"
    try:
        inspect.signature(function).bind(None, {})
    except TypeError:
        taken = inspect.signature(function)
        remedy = "give a function of (module, minibatch) to a scalar; functools.partial sets its other arguments"
        return f"that takes {taken}", remedy
    except ValueError:
        pass  # a function written in C, which does not say
    if isinstance(function, nn.Module) and any(parameter.requires_grad for parameter in function.parameters()):
        remedy = "make them in the algorithm's network(), where module.<name> has them"
        return "with parameters of its own, which no optimizer trains", remedy
    return None


def _coefficient_of(loss: Any) -> Any:
    return getattr(loss, "coefficient", 1.0)


def _group_of(loss: Any) -> Any:
    return getattr(loss, "group", None)


def _setting(name: str) -> str:
    """Return the name under which a scheduled coefficient is sent."""
    return f"{EXTRA_LOSSES}.{name}.coefficient"
