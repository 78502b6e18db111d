"""All algorithms together: the page of the docs is what they say of themselves, and no plan is long."""

from __future__ import annotations

import ast
import dataclasses
import inspect

import pytest

import marlflow as mf
from docs.algorithms import OF_RLLIB_FLOW, PAGE, plan_lines, text
from marlflow.algorithms.shipped import SHIPPED
from tests.algorithms.parts import CONTINUOUS, DISCRETE, SMALL
from tests.architecture.sources import modules, parsed, within
from tests.sentences import sentences


def test_the_page_is_as_it_is_written() -> None:
    assert PAGE.read_text(encoding="utf-8") == text(), "run python docs/algorithms.py"


@pytest.mark.parametrize("algorithm", SHIPPED, ids=lambda algorithm: algorithm.name)
def test_a_plan_has_at_most_half_the_lines_of_its_ancestor(algorithm: mf.Algorithm) -> None:
    then = OF_RLLIB_FLOW.get(algorithm.name)
    if then is None or algorithm.name == "a3c":
        assert plan_lines(algorithm) <= 20  # a plan is 10 to 20 lines
    else:
        assert plan_lines(algorithm) <= then / 2


def test_all_that_learn_are_shipped_and_public() -> None:
    names = {one.name for one in SHIPPED}
    files = [path for path in modules() if within(path).startswith("marlflow/algorithms/")]
    bodies = [node for path in files for node in parsed(path).body if isinstance(node, ast.ClassDef)]
    classes = {node.name for node in bodies if "\n    name: ClassVar[str] = '" in ast.unparse(node)}
    assert {type(one).__name__ for one in SHIPPED} == classes - {"Random", "Scripted", "Imported", "Frozen"}
    assert len(names) == len(SHIPPED)
    for one in SHIPPED:
        assert getattr(mf, type(one).__name__) is type(one)
        assert isinstance(one, mf.Algorithm)
        assert len(inspect.getsource(inspect.getmodule(type(one))).splitlines()) < 150  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", SHIPPED, ids=lambda algorithm: algorithm.name)
def test_what_may_be_scheduled_is_and_what_may_not_is_a_problem(algorithm: mf.Algorithm) -> None:
    """A field says it by its annotation: a schedule in any other is refused before anything starts."""
    discrete = "Discrete" in algorithm.capabilities.actions
    spaces, model = (
        DISCRETE if discrete else CONTINUOUS,
        mf.GRU() if algorithm.capabilities.memory == "needed" else SMALL,
    )
    for field in dataclasses.fields(algorithm):  # type: ignore[arg-type]
        if not isinstance(getattr(algorithm, field.name), float):
            continue
        changed = dataclasses.replace(algorithm, **{field.name: mf.Linear(0.5, 0.25, 10)})  # type: ignore[type-var]
        said = f"{algorithm.name} cannot change {field.name} while it learns; give it a number"
        if "OrSchedule[" in str(field.type):
            assert said not in sentences(changed.validate(spaces, model))
            assert changed.schedules(5)[field.name] == 0.375
        else:
            assert said in sentences(changed.validate(spaces, model))
