"""Methods that a subclass of a shipped loss overrides are called, and change the gradient, with every network."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import marlflow as mf
from marlflow.algorithms.dqn_loss import DQNLoss
from tests.algorithms.loss_cases import CASES, Case, minibatches
from tests.algorithms.parts import DISCRETE, SMALL, make_learner, terms_of_step
from tests.architecture.sources import modules, parsed, within
from tests.learner.batches import Columns

# Methods that a step does not call; schedules are tried below.
OTHERS = {"__init__", "set_schedule", "priorities"}
# The cases of one kind of actions.
KIND_OF = {"_sampled": "Box", "_expected": "Discrete"}
# HAPPO trains the two parts of PPO's loss apart.
NO_PART_OF = {"ActorLoss": {"of_rows", "of_critic", "_value_loss"}, "CriticLoss": {"of_rows", "of_actor"}}


def overridable(kind: type) -> Iterator[str]:
    """The methods of a loss class that a learner's step calls."""
    for cls in kind.__mro__:
        yield from (name for name, value in vars(cls).items() if isinstance(value, FunctionType) and name not in OTHERS)


def tripled(result: Any) -> Any:
    """A result of a loss's method, as a subclass may change it: losses with a gradient three times as large."""
    if isinstance(result, mf.LossTerms):
        return mf.LossTerms(3.0 * result.total, {**result.terms, "own": torch.tensor(7.0)}, result.priorities)
    if isinstance(result, Tensor | float):
        return 3.0 * result + 0.7
    if isinstance(result, tuple):
        return (tripled(result[0]), *result[1:])
    if all(value.dim() == 0 for value in result.values()):
        return {**result, "own": torch.tensor(7.0)}
    return {name: tripled(value) for name, value in result.items()}


def overriding(loss: Any, method: str, calls: list[str]) -> Any:
    """The loss, as one of a subclass that overrides a method."""
    inherited = getattr(type(loss), method)

    def own(self: Any, *given: Any, **named: Any) -> Any:
        calls.append(method)
        return tripled(inherited(self, *given, **named))

    loss.__class__ = type("Own", (type(loss),), {method: own})
    return loss


def step(learner: mf.TorchLearner, case: Case) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, float]]:
    """The gradient of each loss group, and all terms, of one step on the case's minibatches."""
    terms = terms_of_step(learner, minibatches(case).__getitem__)
    return {group.name: group.gradient.numpy().copy() for group in learner.parameters.groups}, terms


def with_losses(case: Case, changed: Any) -> mf.TorchLearner:
    """The case's learner of an algorithm, and parts, whose losses are `changed(group name, loss)` of each."""
    kind: Any = type(case.algorithm)

    def whole_losses(self: Any, members: Any) -> Any:
        groups = kind.whole_losses(self, members)
        return [replace(group, loss=changed(group.name, group.loss)) for group in groups]

    own = object.__new__(type("Own", (kind,), {"whole_losses": whole_losses}))
    vars(own).update(vars(case.algorithm))
    return case.spec(own).learner()


# Networks are like the dense one, or like the recurrent one.
EACH = [pytest.param(one, id=str(one), marks=() if one.model in ("mlp", "gru") else pytest.mark.slow) for one in CASES]


@pytest.mark.parametrize("case", EACH)
def test_every_overridden_method_is_called_and_its_gradient_arrives(case: Case) -> None:
    plain, terms = step(with_losses(case, lambda _, loss: loss), case)
    for group, loss in {one.name: one.loss for one in case.spec().learner().parameters.groups}.items():
        for method in {*overridable(type(loss))} - NO_PART_OF.get(type(loss).__name__, set()):
            if KIND_OF.get(method, case.action) != case.action:
                continue
            calls: list[str] = []
            changed = with_losses(
                case,
                lambda name, one: overriding(one, method, calls) if name == group else one,  # noqa: B023
            )
            gradients, reported = step(changed, case)
            assert calls, f"{type(loss).__name__}.{method} is not called"
            own_term = reported.keys() - terms.keys()
            if method == "__call__":
                np.testing.assert_allclose(gradients[group], 3.0 * plain[group], rtol=2e-3, atol=1e-4)
                assert own_term == {"own"}
            else:
                # The loss of a temperature reads what that of its actor has found.
                moved = max(np.abs(gradients[one] - plain[one]).max() for one in plain)
                assert moved > 1e-6 or own_term, f"{type(loss).__name__}.{method} has no effect"


def test_every_shipped_loss_is_among_the_cases() -> None:
    files = [path for path in modules() if within(path).startswith("marlflow/algorithms/")]
    classes = [node for path in files for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    shipped = {
        node.name
        for node in classes
        if {"__call__"} <= {one.name for one in node.body if isinstance(one, ast.FunctionDef)}
        and "-> LossTerms" in ast.unparse(node)
    }
    tried = {type(group.loss).__name__ for case in CASES for group in case.spec().learner().parameters.groups}
    assert tried >= shipped
    assert len(shipped) >= 20


class Wrapping:
    """A loss that has a shipped one, and adds a term to its total."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def set_schedule(self, values: Mapping[str, float]) -> None:
        self.inner.set_schedule(values)

    def __call__(self, module: Any, target_module: Any, minibatch: Mapping[str, Tensor]) -> mf.LossTerms:
        loss = self.inner(module, target_module, minibatch)
        own = module.actor(minibatch["obs"]).square().mean()
        return mf.LossTerms(loss.total + 10.0 * own, {**loss.terms, "own": own.detach()}, loss.priorities)


@pytest.mark.parametrize("algorithm", [mf.PPO, mf.APPO, mf.DQN, mf.Clone, mf.BC], ids=lambda one: one.name)
def test_a_term_is_added_to_the_loss_of_super(algorithm: Any) -> None:
    case = next(one for one in CASES if type(one.algorithm) is algorithm)
    plain, terms = step(case.spec().learner(), case)
    gradients, reported = step(with_losses(case, lambda _, loss: Wrapping(loss)), case)
    assert reported.keys() - terms.keys() == {"own"}
    assert np.abs(gradients["all"] - plain["all"]).max() > 1e-6


@dataclass(frozen=True)
class OwnCoefficients(mf.Coefficients):
    """PPO's, and two more: one that a schedule sets, one that no setting has."""

    floor: float = 0.5
    power: float = 2.0


@dataclass(frozen=True)
class Floored(mf.PPO):
    """PPO with a setting of its own."""

    name: ClassVar[str] = "floored"
    floor: mf.ScheduledFloat = 0.5

    def losses(self, spaces: Any) -> Any:
        return mf.PPOLoss(OwnCoefficients(floor=mf.initial_value(self.floor), power=3.0))


def test_a_schedule_keeps_the_coefficients_of_a_subclass_and_sets_those_that_have_its_name() -> None:
    algorithm = Floored(floor=mf.Linear(1.0, 0.0, 10), clip_range=mf.Linear(0.4, 0.2, 10))
    learner = make_learner(algorithm)
    learner.set_schedule(algorithm.schedules(5))
    assert learner.parameters.groups[0].loss.coefficients == OwnCoefficients(
        clip_range=pytest.approx(0.3), floor=0.5, power=3.0
    )


def test_schedules_reach_every_overridden_set_schedule() -> None:
    for case in {type(one.algorithm): one for one in CASES}.values():
        calls: list[str] = []

        def scheduling(_: str, loss: Any, calls: list[str] = calls) -> Any:
            inherited = type(loss).set_schedule

            def own(self: Any, values: Mapping[str, float]) -> None:
                calls.append(type(self).__name__)
                inherited(self, values)

            loss.__class__ = type("Own", (type(loss),), {"set_schedule": own})
            return loss

        learner = with_losses(case, scheduling)
        learner.set_schedule({"clip_range": 0.1})
        assert len(calls) == len(learner.parameters.groups)


class Doubled(mf.QNetwork):
    """A network of a user's own."""

    def forward(self, obs: Tensor) -> Tensor:
        return 2.0 * super().forward(obs)


def swapped(network: mf.QNetwork) -> mf.QNetwork:
    """The network with another head, as a user may give it after it was made."""
    network.actor.head = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3))
    return network


def frozen(network: mf.QNetwork) -> mf.QNetwork:
    """The network with a layer that is not trained."""
    network.actor.head.requires_grad_(False)
    return network


@pytest.mark.parametrize(
    "network",
    [
        lambda: Doubled(DISCRETE, SMALL, dueling=False, seed=0),
        lambda: swapped(mf.QNetwork(DISCRETE, SMALL, dueling=False, seed=0)),
        lambda: frozen(mf.QNetwork(DISCRETE, SMALL, dueling=False, seed=0)),
    ],
    ids=["subclass", "swapped head", "frozen head"],
)
@pytest.mark.parametrize("compile", [False, True])
def test_a_network_of_a_users_own_is_trained_as_it_is(network: Any, compile: bool) -> None:
    case = next(one for one in CASES if type(one.algorithm) is mf.DQN)
    draw = {name: column[..., :2] if "obs" in name else column for name, column in minibatches(case)["all"].items()}
    made = network()
    expected = copy.deepcopy(made)
    settings: Any = {"trains_on": Columns, "learning_rate": 0.1, "target": True, "compile": compile}
    learner = mf.TorchLearner("own", made, DQNLoss(), **settings)
    update = learner.update(Columns({name: column.numpy() for name, column in draw.items()}))
    assert not update.note
    assert (update.compiles > 0) == compile
    DQNLoss()(expected, expected, draw).total.backward()
    gradients = [parameter.grad for parameter in expected.parameters() if parameter.requires_grad]
    trained = [parameter.grad for parameter in made.parameters() if parameter.requires_grad]
    torch.testing.assert_close(trained, gradients, rtol=1e-4, atol=1e-6)
    assert max(float(gradient.abs().max()) for gradient in gradients) > 0
