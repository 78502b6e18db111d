"""Extra losses: their gradient is added, exactly, in every algorithm; what cannot be one is refused at the start."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.description import describe
from marlflow.config.schema import read_values
from marlflow.learner.extra_losses import RESERVED, AddedLoss, ExtraLoss
from tests.algorithms.extra import Head, Weight, entropy_floor
from tests.algorithms.loss_cases import CASES, Case, minibatches
from tests.algorithms.parts import SMALL, make_learner, terms_of_step
from tests.config.composition import experiment_of
from tests.learner.experience import estimated
from tests.runtime.small_runs import SMALL_PPO, policies, small_run
from tests.sentences import refusals

FUNCTION = f"{entropy_floor.__module__}.entropy_floor"
CLASS = f"{Weight.__module__}.Weight"
ONE_OF_EACH = list({(type(one.algorithm), one.policies): one for one in reversed(CASES) if one.model != "cnn"}.values())


def gradients(learner: mf.TorchLearner, case: Case) -> tuple[dict[str, Any], dict[str, float]]:
    """The gradient of each loss group and the terms of one step."""
    terms = terms_of_step(learner, minibatches(case).__getitem__)
    return {group.name: group.gradient.numpy().copy() for group in learner.parameters.groups}, terms


def test_all_learning_algorithms_are_tried() -> None:
    assert {type(case.algorithm) for case in ONE_OF_EACH} >= {type(case.algorithm) for case in CASES}


@pytest.mark.parametrize("case", ONE_OF_EACH, ids=str)
def test_the_gradient_is_that_of_the_loss_and_the_extra_loss(case: Case) -> None:
    own = replace(case.algorithm, extra_losses={"weight": Weight(0.1)})  # type: ignore[type-var]
    learner = case.spec(own).learner()
    expected, terms = gradients(case.spec().learner(), case)
    found, reported = gradients(learner, case)
    parameters = learner.parameters
    parameters.flat.gradient.zero_()
    # The gradient of the actors alone; each loss group has its own part of it.
    (0.1 * Weight()(learner.module, {})).backward()
    assert float(parameters.flat.gradient.abs().max()) > 0
    for group in parameters.groups:
        added = group.gradient.numpy()
        np.testing.assert_allclose(found[group.name], expected[group.name] + added, rtol=1e-4, atol=1e-5)
    trained_by = [group.name for group in parameters.groups if group.extra_losses]
    names = ["weight"] if len(trained_by) == 1 else [f"weight/p{number}" for number in range(case.policies)]
    assert reported.keys() - terms.keys() == {*names}
    assert {name: reported[name] for name in terms} == pytest.approx(terms, nan_ok=True)


def test_the_group_says_which_parameters_get_the_gradient() -> None:
    case = next(one for one in ONE_OF_EACH if type(one.algorithm) is mf.SAC)
    plain, _ = gradients(case.spec().learner(), case)

    def of_critics(module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return sum(parameter.square().sum() for parameter in module.parameters())

    for group in ("critics", "actor", "temperature"):
        extra = {"size": ExtraLoss(of_critics, 0.1, group)}
        found, _ = gradients(case.spec(replace(case.algorithm, extra_losses=extra)).learner(), case)  # type: ignore[type-var]
        changed = [name for name in plain if np.abs(found[name] - plain[name]).max() > 1e-7]
        assert changed == [group] or (group == "temperature" and changed == [])


def test_a_scheduled_coefficient_multiplies_and_is_sent_like_a_setting() -> None:
    schedule = mf.Linear(1.0, 0.0, agent_steps=100)
    algorithm = mf.PPO(extra_losses={"a": Weight(schedule), "b": ExtraLoss(entropy_floor, 0.5), "c": None})
    assert algorithm.schedules(25) == {"extra_losses.a.coefficient": 0.75}
    learner = make_learner(algorithm)
    (group,) = learner.parameters.groups
    assert {extra.name: extra.coefficient for extra in group.extra_losses} == {"a": 1.0, "b": 0.5}
    learner.set_schedule(algorithm.schedules(25))
    assert {extra.name: extra.coefficient for extra in group.extra_losses} == {"a": 0.75, "b": 0.5}


def test_a_value_that_does_not_depend_on_parameters_is_a_constant() -> None:
    plain = make_learner(mf.PPO())
    learner = make_learner(mf.PPO(extra_losses={"none": lambda module, minibatch: torch.tensor(3.0)}))
    for each in (plain, learner):
        update = each.update(_rows(), 2, 10)
    assert update.loss["none"] == 3.0
    assert torch.equal(plain.parameters.flat.vector, learner.parameters.flat.vector)


def _rows() -> mf.EstimatedBatch:
    batch = estimated(40)
    return mf.EstimatedBatch({**batch.columns, "obs": batch.columns["obs"][:, :2]}, batch.segments)


def test_a_value_that_is_not_finite_is_a_step_that_is_skipped_and_counted() -> None:
    def nan_first(module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return entropy_floor(module, minibatch, 9.0) * float("nan" if bool(minibatch["reward"].sum() > 0) else 1.0)

    update = make_learner(mf.PPO(extra_losses={"nan": nan_first})).update(_rows(), 3, 10)
    assert update.updates_skipped > 0
    assert update.updates + update.updates_skipped == 12
    assert np.isfinite(update.loss["nan"])


def test_a_network_may_have_a_head_for_an_extra_loss() -> None:
    """An auxiliary task: the reward, from the actor's features."""
    learner = make_learner(WithHead(extra_losses={"reward": predicted_reward}, max_grad_norm=float("inf")))
    head = learner.module.reward_head
    before, first = head.weight.detach().clone(), learner.update(_rows(), 1).loss["reward"]
    last = [learner.update(_rows(), 20).loss["reward"] for _ in range(3)][-1]
    assert not torch.equal(head.weight, before)
    assert last < first


def test_layers_that_draw_from_torchs_generator_are_seeded_too() -> None:
    spec = ready(small_run(policies=policies(hunters=WithHead(), prey=mf.Random()))).spec.learners["hunters"]
    state = torch.get_rng_state()
    heads = [spec.learner().module.reward_head.weight for _ in range(2)]
    assert torch.equal(*heads)
    assert torch.equal(torch.get_rng_state(), state)
    other = spec.with_fresh_seed(1).learner().module.reward_head.weight
    assert not torch.equal(heads[0], other)


@dataclass(frozen=True)
class WithHead(mf.PPO):
    """PPO with a head that predicts rewards."""

    name: ClassVar[str] = "with_head"

    def network(self, spaces: Any, model: Any, seed: int) -> Any:
        network = super().network(spaces, model, seed)
        network.reward_head = torch.nn.Linear(network.actor.head.in_features, 1)
        return network


def predicted_reward(module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
    predicted = module.reward_head(module.actor.torso(minibatch["obs"])).squeeze(-1)
    return (predicted - minibatch["reward"]).square().mean()


# -- what is refused at the start ---------------------------------------------------------------------------------


class Coefficient:
    """An object that is no dataclass."""

    def __init__(self, coefficient: Any, group: Any = None) -> None:
        self.coefficient, self.group = coefficient, group

    def __call__(self, module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return entropy_floor(module, minibatch)


def scaled(module: Any, minibatch: Mapping[str, torch.Tensor], by: float) -> torch.Tensor:
    return by * entropy_floor(module, minibatch)


REFUSED: Mapping[str, tuple[Any, str]] = {
    "not callable": (5, "extra_losses.own must be an import path, package.module.name, not 5"),
    "a text": (FUNCTION, "not a function; give a function of (module, minibatch) to a scalar"),
    "one argument": (lambda module: module, "'own' that takes (module); give a function of (module, minibatch)"),
    "three arguments": (scaled, "functools.partial sets its other arguments"),
    "a class": (Weight, "'own' that is the class Weight; make one of it: Weight(...)"),
    "own parameters": (Head(), "'own' with parameters of its own, which no optimizer trains; make them in"),
    "not a scalar": (lambda module, rows: module.actor(rows["obs"]), "a scalar tensor, not a tensor [2, 2]"),
    "a number": (lambda module, rows: 1.0, "must return a scalar tensor, not a float"),
    "nothing": (lambda module, rows: None, "must return a scalar tensor, not a NoneType"),
    "not finite": (lambda m, rows: entropy_floor(m, rows) + float("inf"), "must return a finite number, not inf"),
    "no gradient": (lambda m, rows: entropy_floor(m, rows).detach(), "extra loss 'own' has no gradient; compute it"),
    "of no parameter": (
        lambda m, rows: torch.ones((), requires_grad=True),
        "does not depend on the parameters that its loss group trains; give it another group=...",
    ),
    "raises": (
        lambda module, rows: rows["nothing"],
        "2 rows of this policy's spaces: extra loss 'own': KeyError: 'nothing'",
    ),
    "a text as coefficient": (
        ExtraLoss(entropy_floor, "0.1"),
        "own.coefficient must be a number or Schedule or null, not '0.1'",
    ),  # type: ignore[arg-type]
    "nan as coefficient": (ExtraLoss(entropy_floor, float("nan")), "own.coefficient must be a finite number, not nan"),
    "true as coefficient": (
        Coefficient(True),
        "coefficient=True; give it a finite number, a schedule, or None",
    ),
    "inf as coefficient": (Coefficient(float("inf")), "'own' with coefficient=inf; give it a finite number"),
    "an infinite end": (ExtraLoss(entropy_floor, mf.Linear(0.1, float("inf"), 9)), "own.coefficient.end must be"),
    "no such group": (ExtraLoss(entropy_floor, group="critics"), "the loss groups of its learner are 'all'"),
    "a number as group": (Coefficient(1.0, group=3), "'own' with group=3; give it the name of a loss group"),
}


def problems_of(algorithm: Any, **changes: Any) -> list[str]:
    experiment = small_run(policies=policies(hunters=algorithm, prey=mf.Random()), **changes)
    return refusals(mf.ConfigInvalid, mf.plan, experiment)


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_an_extra_loss_is_refused_with_one_sentence(case: str) -> None:
    loss, said = REFUSED[case]
    (problem,) = problems_of(replace(SMALL_PPO, extra_losses={"own": loss}))
    assert said in problem
    assert len(problem) < 2_000


def test_one_that_raises_while_it_is_compiled_is_named_with_its_lines() -> None:
    losses = {"right": entropy_floor, "own": lambda module, rows: module.actorr(rows["obs"]).mean()}
    (problem,) = problems_of(replace(SMALL_PPO, extra_losses=losses, compile=True))
    assert "compile=true, and this failed while it was compiled: extra loss 'own': AttributeError: " in problem
    assert "test_extra_losses.py" in problem
    assert 'module.actorr(rows["obs"])' in problem


def test_quitting_a_debugger_in_one_is_no_error_of_it() -> None:
    def quits(module: Any, minibatch: Mapping[str, torch.Tensor]) -> torch.Tensor:
        raise BdbQuit

    with pytest.raises(BdbQuit):
        AddedLoss("own", quits, "own").value(None, {})


@pytest.mark.parametrize("name", ["policy", "a.b", "a/b", 5, *RESERVED])
def test_names_that_no_term_can_have_are_refused(name: Any) -> None:
    (problem,) = problems_of(replace(SMALL_PPO, extra_losses={name: entropy_floor}))
    said = "report the term 'policy'; rename one" if name == "policy" else f"has an extra loss {name!r} with"
    assert said in problem


def test_the_term_of_another_loss_group_is_no_name_either() -> None:
    case = next(one for one in ONE_OF_EACH if type(one.algorithm) is mf.SAC)
    learner = case.spec(replace(case.algorithm, extra_losses={"critics": Weight()})).learner()  # type: ignore[type-var]
    with pytest.raises(mf.InvalidInput, match="two losses of a learner report the term 'critics'"):
        learner.update(_transitions(case))


def _transitions(case: Case) -> mf.Transitions:
    columns = {name: column.numpy() for name, column in minibatches(case)["critics"].items() if name != "noise"}
    return mf.Transitions(**columns, row_id=np.arange(len(columns["obs"])))


def test_extra_losses_that_are_not_by_name_are_refused() -> None:
    (problem,) = problems_of(replace(SMALL_PPO, extra_losses=[entropy_floor]))  # type: ignore[arg-type]
    assert "extra_losses must be a mapping {...}" in problem


def test_losses_that_are_delayed_are_tried_too() -> None:
    """TD3's actor learns on every other minibatch."""
    case = next(one for one in ONE_OF_EACH if type(one.algorithm) is mf.TD3)
    learns = replace(case.algorithm, extra_losses={"own": lambda module, minibatch: 1.0})  # type: ignore[type-var]
    experiment = mf.Experiment(
        mf.Env("pendulum_team"), default_policy=mf.Policy(learns, SMALL), runtime=mf.RuntimeConfig("inline")
    )
    with pytest.raises(mf.ConfigInvalid, match="extra loss 'own' must return a scalar tensor, not a float"):
        mf.plan(experiment)


# -- configurations -----------------------------------------------------------------------------------------------

KEY = "policies.cart.algorithm.extra_losses"
ENTRIES: Mapping[str, tuple[str, Any]] = {
    "an import path": (FUNCTION, entropy_floor),
    "a function": (f"{{_target_: {FUNCTION}}}", partial(entropy_floor)),
    "its arguments": (f"{{_target_: {FUNCTION}, floor: 0.5}}", partial(entropy_floor, floor=0.5)),
    "a coefficient": (
        f"{{_target_: {FUNCTION}, floor: 0.5, coefficient: 0.1, group: all}}",
        ExtraLoss(partial(entropy_floor, floor=0.5), 0.1, "all"),
    ),
    "a class": (
        f"{{_target_: {CLASS}, coefficient: {{_target_: marlflow.Linear, start: 1, end: 0, agent_steps: 50}}}}",
        Weight(mf.Linear(1.0, 0.0, 50)),
    ),
    "null": ("null", None),
}


def same(one: Any, other: Any) -> bool:
    """Whether two extra losses are equal; partials are not comparable."""
    if isinstance(one, partial) and isinstance(other, partial):
        return (one.func, one.args, one.keywords) == (other.func, other.args, other.keywords)
    if isinstance(one, ExtraLoss) and isinstance(other, ExtraLoss):
        return same(one.function, other.function) and (one.coefficient, one.group) == (other.coefficient, other.group)
    return bool(one == other)


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_configuration_gives_them_and_a_record_gives_them_again(entry: str) -> None:
    written, expected = ENTRIES[entry]
    experiment = experiment_of("env=cartpole_team", "policy@policies.cart=ppo", f"{KEY}.own={written}")
    algorithm: Any = experiment.policies["cart"].algorithm
    assert same(algorithm.extra_losses["own"], expected)
    described = describe(experiment)
    assert described.lost == []
    problems: list[str] = []
    again: Any = read_values(described.values, problems)
    assert problems == []
    assert same(again.policies["cart"].algorithm.extra_losses["own"], expected)


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (f"{{_target_: {FUNCTION}, flor: 0.5}}", f"there is no {KEY}.own.flor; did you mean '{KEY}.own.floor'?"),
        (f"{{_target_: {FUNCTION}, coefficient: high}}", "own.coefficient"),
        ("{_target_: nowhere.at_all}", "nowhere.at_all cannot be imported"),
        (CLASS, "'own' that is the class Weight; make one of it"),
        ("{coefficient: 0.1}", "own must be an import path"),
    ],
)
def test_what_a_configuration_cannot_give_is_refused(entry: str, said: str) -> None:
    words = "env=cartpole_team", "policy@policies.cart=ppo", f"{KEY}.own={entry}"
    (problem,) = refusals(mf.ConfigInvalid, lambda: mf.plan(experiment_of(*words)))
    assert said in problem


def test_an_algorithm_that_does_not_learn_has_none() -> None:
    words = ["env=simple_tag", "policy@policies.adversary=random", "policy@policies.agent=ppo"]
    assert list(
        refusals(mf.ConfigInvalid, experiment_of, *words, f"policies.adversary.algorithm.extra_losses.own={FUNCTION}")
    ) == ["there is no policies.adversary.algorithm.extra_losses: Random does not learn, so nothing can be added to it"]
    with pytest.raises(TypeError, match="unexpected keyword argument 'extra_losses'"):
        mf.Random(extra_losses={"own": entropy_floor})  # type: ignore[call-arg]
